"""`serve` as a process: options from four places, what it says, how it answers, how it ends."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading

import harness
from harness import MODEL_A, PROGRAM, TIMEOUT_S, run

READY = re.compile(r"^ready: http://127\.0\.0\.1:(\d+) \(control http://127\.0\.0\.1:(\d+)\) "
                   r"model (\S+) in \d+\.\d s$")


class Server:
    """`holdfast serve` on ports that are free; killed at the end if it has not ended."""

    def __init__(self, test, *flags, model=MODEL_A, environment=None):
        command = [PROGRAM, "serve", model, "--port", "0", "--control-port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env={**os.environ, **(environment or {})})
        test.addCleanup(self.close)
        self.err = b""
        self.changed = threading.Condition()
        self.reader = threading.Thread(target=self.read_err, daemon=True)
        self.reader.start()
        line = self.process.stdout.readline().decode().rstrip("\n")
        found = READY.match(line)
        test.assertTrue(found, f"not ready: {line!r}\n{self.err.decode()}")
        self.port, self.control, self.name = int(found[1]), int(found[2]), found[3]

    def read_err(self):
        for line in self.process.stderr:
            with self.changed:
                self.err += line
                self.changed.notify_all()

    def wait_for_log(self, words):
        with self.changed:
            assert self.changed.wait_for(lambda: words in self.err, TIMEOUT_S), self.err

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def wait(self):
        code = self.process.wait(TIMEOUT_S)
        self.reader.join(TIMEOUT_S)
        return code

    def ask(self, path, body=None, port=None, headers=None):
        """Status and body text of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET" if body is None else "POST", path, headers=headers or {},
                               body=None if body is None else json.dumps(body))
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def stream(self, tokens):
        """An open stream of `tokens` tokens whose first event has come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        connection.request("POST", "/v1/completions", json.dumps(
            {"model": self.name, "prompt": "ROMEO:", "max_tokens": tokens, "stream": True,
             "ignore_eos": True, "temperature": 0}))
        reply = connection.getresponse()
        first = reply.readline()
        assert first.startswith(b"data: "), first
        return connection, reply


class Serve(harness.TestCase):

    def test_says_where_it_is_once_it_can_answer(self):
        server = Server(self)
        self.assertEqual(server.name, "gptoss-tiny-A")
        for port in (server.port, server.control):
            self.assertEqual(server.ask("/health", port=port), (200, ""))
            self.assertEqual(server.ask("/ready/", port=port), (200, '{"status":"ready"}'))
            self.assertIn("version", json.loads(server.ask("/version", port=port)[1]))
            status, models = server.ask("/v1/models", port=port)
            self.assertEqual(status, 200)
            self.assertEqual(json.loads(models)["data"][0]["id"], "gptoss-tiny-A")
        status, body = server.ask("/v1/completions", {
            "model": server.name, "prompt": "ROMEO:", "max_tokens": 4, "temperature": 0})
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body)["usage"]["completion_tokens"], 4)

    def test_control_routes_are_on_the_control_listener_alone(self):
        server = Server(self)
        status, body = server.ask("/pause", {}, port=server.port)
        self.assertEqual(status, 404)
        self.assertIn("there is no /pause on the public listener", body)
        self.assertEqual(server.ask("/pause?mode=keep", {}, port=server.control)[0], 200)
        self.assertEqual(server.ask("/ready")[0], 200)  # a pause is the trainer's own doing
        self.assertEqual(server.ask("/resume", {}, port=server.control)[0], 200)
        self.assertEqual(server.ask("/sleep", {}, port=server.control)[0], 200)
        status, body = server.ask("/ready")
        self.assertEqual(status, 503)
        self.assertIn("asleep", body)

    def test_tokens_are_asked_for_where_they_are_set(self):
        server = Server(self, "--control-token", "other",
                        environment={"HOLDFAST_API_KEY": "secret"})
        self.assertEqual(server.ask("/health")[0], 200)
        self.assertEqual(server.ask("/v1/models")[0], 401)
        status, body = server.ask("/v1/models", headers={"Authorization": "Bearer other"})
        self.assertEqual((status, json.loads(body)["error"]["code"]), (401, 401))
        self.assertEqual(
            server.ask("/v1/models", headers={"Authorization": "Bearer secret"})[0], 200)
        self.assertEqual(server.ask("/is_paused", port=server.control)[0], 401)
        self.assertEqual(server.ask("/is_paused", port=server.control,
                                    headers={"Authorization": "Bearer other"})[0], 200)

    def test_one_listener_serves_both_when_the_ports_are_equal(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = Server(self, "--port", str(port), "--control-port", str(port))
        self.assertEqual((server.port, server.control), (port, port))
        self.assertEqual(server.ask("/v1/models")[0], 200)
        self.assertEqual(server.ask("/is_paused")[0], 200)

    def test_sigterm_lets_streams_end_and_a_new_request_is_not_taken(self):
        server = Server(self, "--log-format", "json")
        connection, reply = server.stream(200)
        server.process.send_signal(signal.SIGTERM)
        rest = reply.read().decode()
        connection.close()
        self.assertTrue(rest.endswith("data: [DONE]\n\n"), rest[-200:])
        self.assertIn('"finish_reason":"length"', rest)
        self.assertEqual(server.wait(), 0)
        events = [json.loads(line)["event"] for line in server.err.decode().splitlines()]
        self.assertEqual(events, ["draining", "drained"])
        with self.assertRaises(OSError):
            server.ask("/health")

    def test_a_second_signal_ends_at_once(self):
        server = Server(self)
        with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as slow:
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n"
                         b"Expect: 100-continue\r\n\r\n")
            self.assertIn(b"100 Continue", slow.recv(4096))  # its request is under way
            server.process.send_signal(signal.SIGINT)
            server.wait_for_log(b"draining")
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.wait(), 0)
        self.assertIn("ended by a second signal", server.err.decode())

    def test_a_paused_server_does_not_hold_its_end(self):
        server = Server(self)
        connection, reply = server.stream(200)
        self.assertEqual(server.ask("/pause?mode=keep", {}, port=server.control)[0], 200)
        server.process.send_signal(signal.SIGTERM)
        self.assertIn('"finish_reason":"abort"', reply.read().decode())
        connection.close()
        self.assertEqual(server.wait(), 0)

    def test_requests_and_pauses_are_logged(self):
        server = Server(self, "--log-level", "debug")
        server.ask("/v1/models", headers={"X-Request-Id": "r-1"})
        server.ask("/pause", {}, port=server.control)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)
        text = server.err.decode()
        self.assertRegex(text, r"debug +request listener=public method=GET path=/v1/models "
                               r"status=200 ms=\S+ bytes=\d+ whole=true id=r-1\n")
        self.assertRegex(text, r"info +paused")


class Options(harness.TestCase):

    def print_config(self, *arguments, environment=None):
        process = subprocess.run([PROGRAM, "serve", "--print-config", *map(str, arguments)],
                                 capture_output=True, timeout=TIMEOUT_S, check=False,
                                 env={**os.environ, **(environment or {})})
        return harness.Done(process)

    def test_flags_go_before_the_environment_before_the_file_before_defaults(self):
        file = self.write("a.toml", 'model = "from-file"\nport = 1\ncontrol_port = 2\n'
                                    'max-num-seqs = 3\n')
        done = self.print_config("--config", file, "--port", 11,
                                 environment={"HOLDFAST_PORT": "21",
                                              "HOLDFAST_CONTROL_PORT": "22"})
        self.check_done(done)
        for line in ("model = 'from-file'", "port = 11", "control-port = 22", "max-num-seqs = 3",
                     "io-threads = 1"):
            self.assertIn(f"\n{line}\n", done.out)

    def test_a_group_is_for_int4_wherever_that_is_asked_for(self):
        file = self.write("int4.toml", "quantize-experts = 'int4'\n")
        for given in (("--quantize-experts", "int4"), ("--config", file)):
            done = self.print_config(MODEL_A, "--quantize-group", 64, *given)
            self.check_done(done)
            self.assertIn("\nquantize-group = 64\n", done.out)
        done = self.print_config(MODEL_A, "--quantize-group", 128)
        self.check_fails(done, 2, "--quantize-group is for --quantize-experts int4")
        self.check_done(self.print_config("--config", self.write(
            "printed.toml", self.print_config(MODEL_A).out)))

    def test_flags_of_vllms_run_or_say_what_to_do_instead(self):
        self.check_done(self.print_config(MODEL_A, "--tensor-parallel-size", 1,
                                          "--enable-chunked-prefill", "--dtype", "auto"))
        for flags, advice in ((("--gpu-memory-utilization", "0.9"), "--kv-tokens"),
                              (("--enforce-eager",), "leave it out"),
                              (("--weight-transfer-config", '{"backend": "nccl"}'),
                               "/update_weights")):
            done = self.print_config(MODEL_A, *flags)
            self.assertEqual(done.code, 2)
            self.assertIn(flags[0], done.err)
            self.assertIn(advice, done.err)

    def test_what_is_printed_is_a_file_that_gives_the_same(self):
        done = self.print_config(MODEL_A, "--no-prefix-cache", "--max-context", 128,
                                 "--model-roots", "/,/tmp", "--logprobs-mode",
                                 "processed_logprobs")
        self.check_done(done)
        again = self.print_config(environment={"HOLDFAST_CONFIG": self.write("b.toml", done.out)})
        self.check_done(again)
        self.assertEqual(again.out, done.out)
        self.assertIn("prefix-cache = false", done.out)
        self.assertIn("max-model-len = 128", done.out)
        self.assertIn("logprobs-mode = 'processed'", done.out)

    def test_tokens_are_not_printed(self):
        done = self.print_config(MODEL_A, environment={"HOLDFAST_API_KEY": "hush"})
        self.check_done(done)
        self.assertNotIn("hush", done.out)
        self.assertIn("api-key is set", done.out)

    def test_vllms_flags_are_taken(self):
        self.check_done(self.print_config(
            MODEL_A, "--weight-transfer-config", '{"backend": "disk"}', "--max-logprobs", -1,
            "--logprobs-mode", "processed_logprobs", "--enable-sleep-mode",
            "--enable-prefix-caching", "--max-model-len", 256, "--max-num-batched-tokens", 64))
        self.check_fails(self.print_config(MODEL_A, "--weight-transfer-config",
                                           '{"backend": "nccl"}'), 2, "nccl", "disk and http")

    def test_what_is_wrong_is_named_with_both_sides(self):
        self.check_fails(run("serve"), 2, "no model is named")
        self.check_fails(run("serve", MODEL_A, "--port", 70000), 2,
                         "--port is 70000, expected an integer from 0 to 65535")
        self.check_fails(run("serve", MODEL_A, "--log-format", "xml"), 2,
                         '"xml", expected one of text, json')
        self.check_fails(run("serve", MODEL_A, "--control-host", "0.0.0.0"), 2,
                         "control-host is 0.0.0.0", "control-token")
        self.check_fails(run("serve", MODEL_A, "--no-such-flag"), 2, "no-such-flag")
        self.check_fails(self.print_config(MODEL_A, environment={"HOLDFAST_PORT": "x"}), 2,
                         'HOLDFAST_PORT is "x", expected an integer from 0 to 65535')
        self.check_fails(run("serve", "--config", self.write("c.toml", "prot = 1\n")), 2,
                         "c.toml:1: prot is no option", "port")
        self.check_fails(run("serve", "--config", self.write("d.toml", "port = = 1\n")), 2,
                         "d.toml:1:")
        self.check_fails(run("serve", "--config", self.scratch / "none.toml"), 2, "none.toml")

    def test_a_model_that_is_not_there_is_named(self):
        self.check_fails(run("serve", self.scratch / "nothing", "--port", 0, "--control-port", 0),
                         1, "nothing")

    def test_a_port_that_is_taken_is_named_before_the_model_loads(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.check_fails(run("serve", self.scratch / "nothing", "--port", port), 1,
                             f"127.0.0.1:{port} for the public listener", "in use")

    def test_the_help_teaches(self):
        done = run("serve", "--help")
        self.check_done(done)
        for words in ("curl", "--max-num-seqs", "--control-token", "HOLDFAST_MAX_NUM_SEQS=64",
                      "SIGTERM"):
            self.assertIn(words, done.out)


if __name__ == "__main__":
    harness.main()
