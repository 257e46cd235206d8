"""How a server ends: SIGTERM with requests that do not end in time, and what it says meanwhile; and
what weights do whose logits are no numbers."""

import http.client
import json
import signal
import struct
import threading
import unittest

import harness
from harness import MODEL_A

PROMPT = [1, 2, 3, 4, 5, 6, 7]
LONG = {"max_tokens": 1000, "temperature": 0, "ignore_eos": True}


def stream(server):
    """A stream that has begun: its connection and its reply."""
    connection = server.connect()
    body = {"prompt": PROMPT, "stream": True, "return_token_ids": True, **LONG}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    first = reply.readline() + reply.readline()
    return connection, reply, first.decode()


def chunks(text):
    return [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")
            if event.startswith("data: {")]


class Draining(unittest.TestCase):
    # A pool of few pages and one sequence at a time: what is asked for cannot end soon.
    FLAGS = ("--max-num-seqs", "1", "--threads", "1")

    def test_a_drain_that_times_out_gives_what_was_made(self):
        with harness.Server(*self.FLAGS, "--drain-timeout-s", "0") as server:
            connection, reply, first = stream(server)
            whole = {}

            def ask():
                whole.update(server.post("/inference/v1/generate", {
                    "token_ids": PROMPT, "sampling_params": LONG}).json())

            waiting = threading.Thread(target=ask)
            waiting.start()
            harness.wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1
                               or not waiting.is_alive(), "a request waits")
            server.process.send_signal(signal.SIGTERM)
            text = first + reply.read().decode()
            connection.close()
            waiting.join(harness.TIMEOUT_S)
            self.assertEqual(server.process.wait(harness.TIMEOUT_S), 0)
            self.assertTrue(text.endswith("data: [DONE]\n\n"), text[-300:])
            got = [c for chunk in chunks(text) for c in chunk["choices"]]
            ids = [i for c in got for i in c.get("token_ids", [])]
            self.assertGreater(len(ids), 0)
            self.assertLess(len(ids), 1000)
            self.assertEqual(got[-1]["finish_reason"], "abort")
            self.assertEqual(got[-1]["weight_versions"][-1]["end"], len(ids))
            self.assertEqual(whole["choices"][0]["finish_reason"], "abort")
            self.assertTrue(any("drain timed out" in line for line in server.lines), server.lines)

    def test_while_it_drains_health_is_answered_and_new_requests_are_503(self):
        with harness.Server(*self.FLAGS) as server:
            connection, reply, first = stream(server)
            server.process.send_signal(signal.SIGTERM)
            harness.wait_until(lambda: any("draining" in line for line in server.lines),
                               "the drain has begun")
            self.assertEqual(server.get("/health").status, 200)
            harness.wait_until(lambda: server.get("/ready").status == 503, "not ready")
            self.assertIn("draining", server.get("/ready").text)
            refused = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
            self.assertEqual(refused.status, 503, refused.text)
            self.assertEqual(refused.headers["retry-after"], "1")
            self.assertEqual(refused.headers["connection"], "close")
            text = first + reply.read().decode()
            connection.close()
            self.assertIn('"finish_reason":"length"', text[-2000:])
            self.assertEqual(server.process.wait(harness.TIMEOUT_S), 0)
            with self.assertRaises(OSError):
                http.client.HTTPConnection("127.0.0.1", server.ports["public"],
                                           timeout=5).request("GET", "/health")


class NotFinite(unittest.TestCase):

    def test_weights_that_overflow_end_requests_and_the_next_weights_serve(self):
        header = json.dumps({"model.norm.weight": {
            "dtype": "BF16", "shape": [256], "data_offsets": [0, 512]}}).encode()
        upload = struct.pack("<Q", len(header)) + header + b"\x7f\x7f" * 256
        with harness.Server() as server:
            def control(path, body=None, headers=None):
                return server.request("POST", path, body, headers, listener="control")

            body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
            before = server.post("/v1/completions", body).json()["choices"][0]["text"]
            self.assertEqual(
                control("/start_weight_update", {"names": ["model.norm.weight"]}).status, 200)
            kind = {"Content-Type": "application/octet-stream"}
            self.assertEqual(control("/update_weights", upload, kind).status, 200)
            self.assertEqual(control("/finish_weight_update").status, 200)
            for _ in range(8):
                reply = server.post("/v1/completions", body)
                self.assertEqual(reply.json()["choices"][0]["finish_reason"], "abort")
            self.assertEqual(server.get("/ready").status, 200)
            self.assertEqual(control("/update_weights", {"weight_dir": MODEL_A}).status, 200)
            after = server.post("/v1/completions", body).json()["choices"][0]["text"]
            self.assertEqual(after, before)


class Refused(harness.TestCase):
    flags = ("--max-waiting", "4")

    def test_more_choices_than_may_wait_are_a_400_that_names_both(self):
        for path, body, param in (
                ("/v1/completions", {"prompt": "a", "n": 5}, "n"),
                ("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2}, "prompt"),
                ("/v1/chat/completions",
                 {"messages": [{"role": "user", "content": "a"}], "n": 5}, "n")):
            message = self.refused(path, body, param)["message"]
            self.assertIn("6" if "prompt" == param else "5", message)
            self.assertIn("4 requests may wait", message)
        self.ok("/v1/completions", {"prompt": "a", "n": 4, "max_tokens": 1})

    def test_a_path_that_ends_in_a_zero_byte_is_refused(self):
        for path, body in (("/update_weights", {"weight_dir": MODEL_A + "\0x"}),
                           ("/update_weights", {"update_info": {"path": MODEL_A + "\0"}}),
                           ("/update_weights_from_disk", {"model_path": MODEL_A + "\0"}),
                           ("/reload", {"directory": MODEL_A + "\0/../.."}),
                           ("/reload/plan", {"directory": MODEL_A + "\0"})):
            reply = self.server.request("POST", path, body, listener="control")
            self.assertEqual(reply.status, 400, f"{path}: {reply.text}")
            self.assertIn("zero byte", reply.text)


if __name__ == "__main__":
    harness.main()
