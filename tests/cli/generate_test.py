"""`generate` and `score` against the reference outputs of the tiny models."""

import json
import os
import signal
import subprocess

import harness
from harness import MODEL_A, MODEL_A_BF16, MODEL_B, json_lines, reference, run

TOLERANCE = 1e-3  # of logits and log probabilities; the reference's own error is under 5e-5


def greedy_lines(prompts):
    return json_lines({"prompt_ids": p["ids"], "max_tokens": len(p["greedy_ids"]),
                       "ignore_eos": True, "id": p["id"]} for p in prompts)


class Generate(harness.TestCase):

    def check_greedy(self, model, name, *flags):
        prompts = reference(name)
        done = run("generate", "--model", model, "--input", "-", *flags,
                   stdin=greedy_lines(prompts))
        self.check_done(done)
        results = done.lines()
        self.assertEqual([r["id"] for r in results], [p["id"] for p in prompts])
        for result, prompt in zip(results, prompts):
            self.assertEqual(result["ids"], prompt["greedy_ids"])
            self.assertEqual(result["text"], prompt["greedy_text"])
            self.assertEqual(result["finish_reason"], "length")
            self.assertEqual(result["epoch"], 1)
            self.assertEqual(result["epochs"], [1] * len(result["ids"]))
            for ours, theirs in zip(result["logprobs"], prompt["greedy_logprobs"]):
                self.assertAlmostEqual(ours, theirs, delta=TOLERANCE)
        self.assertEqual(done.err, "")

    def test_greedy_tokens_of_a_are_the_references(self):
        self.check_greedy(MODEL_A, "gptoss-tiny-A")

    def test_greedy_tokens_of_b_are_the_references(self):
        self.check_greedy(MODEL_B, "gptoss-tiny-B")

    def test_greedy_tokens_of_the_bf16_layout_are_the_references(self):
        self.check_greedy(MODEL_A_BF16, "gptoss-tiny-A")

    def test_a_device_that_is_not_there_is_an_error_that_says_what_is(self):
        ask = ["generate", "--model", MODEL_A, "--prompt", "x", "--device"]
        self.check_fails(run(*ask, "tpu"), 1, '"tpu"', '"cpu"', '"cuda"')
        done = run(*ask, "cuda:7")  # a build without CUDA says so, one with it counts its GPUs
        self.check_fails(done, 1, "cuda:7" if "has no CUDA" in done.err else "device 7")

    def test_reference_kernels_give_the_same_greedy_tokens(self):
        self.check_greedy(MODEL_A, "gptoss-tiny-A", "--kernels", "reference")

    def test_a_text_prompt_gives_what_its_ids_give(self):
        prompt = reference("gptoss-tiny-A")[2]
        done = run("generate", "--model", MODEL_A, "--prompt", prompt["text"], "--json",
                   "--max-tokens", 48, "--ignore-eos")
        self.check_done(done)
        self.assertEqual(done.lines()[0]["ids"], prompt["greedy_ids"])

    def test_plain_output_is_the_text(self):
        prompt = reference("gptoss-tiny-A")[4]
        done = run("generate", "--model", MODEL_A, "--prompt", prompt["text"], "--max-tokens", 48,
                   "--ignore-eos")
        self.check_done(done)
        self.assertEqual(done.out, prompt["greedy_text"] + "\n")
        self.assertEqual(done.err, "")

    def test_stop_token_ends_a_request_and_its_text_does_not_show_it(self):
        prompt = reference("gptoss-tiny-A")[2]
        stop = prompt["greedy_ids"].index(1016)  # <|return|> is an end token of the model
        done = run("generate", "--model", MODEL_A, "--input", "-", "--max-tokens", 48,
                   stdin=json_lines([{"prompt_ids": prompt["ids"]}]))
        self.check_done(done)
        result = done.lines()[0]
        self.assertEqual(result["finish_reason"], "stop")
        self.assertEqual(result["ids"], prompt["greedy_ids"][:stop + 1])
        self.assertEqual(result["text"], prompt["greedy_text"].split("<|return|>")[0])

    def test_a_stop_string_ends_text_and_results_wherever_tokens_end(self):
        prompt = reference("gptoss-tiny-A")[4]
        text = prompt["greedy_text"]
        stop = text[len(text) // 2:len(text) // 2 + 5]
        flags = ["--max-tokens", 48, "--ignore-eos", "--stop", "never said", "--stop", stop]
        done = run("generate", "--model", MODEL_A, "--prompt", prompt["text"], *flags)
        self.check_done(done)
        self.assertEqual(done.out, text[:text.index(stop)] + "\n")
        done = run("generate", "--model", MODEL_A, "--input", "-", *flags,
                   stdin=json_lines([{"prompt_ids": prompt["ids"]}]))
        self.check_done(done)
        result = done.lines()[0]
        self.assertEqual(result["text"], text[:text.index(stop)])
        self.assertEqual(result["finish_reason"], "stop")
        self.assertLess(len(result["ids"]), 48)
        self.assertEqual(result["ids"], prompt["greedy_ids"][:len(result["ids"])])

    def test_results_come_in_input_order_whatever_finishes_first(self):
        lines = [{"prompt": "KING:\n", "max_tokens": n, "id": f"r{i}", "ignore_eos": True}
                 for i, n in enumerate([40, 1, 17, 0, 2] * 6)]
        done = run("generate", "--model", MODEL_A, "--input", "-", stdin=json_lines(lines))
        self.check_done(done)
        results = done.lines()
        self.assertEqual([r["id"] for r in results], [line["id"] for line in lines])
        self.assertEqual([len(r["ids"]) for r in results], [line["max_tokens"] for line in lines])
        for result in results:  # a shorter run is a prefix of a longer one
            self.assertEqual(result["ids"], results[0]["ids"][:len(result["ids"])])
            self.assertEqual(result["logprobs"], results[0]["logprobs"][:len(result["ids"])])

    def test_sampling_depends_on_the_seed_alone(self):
        line = {"prompt": "ROMEO:\n", "temperature": 0.9, "top_p": 0.95, "top_k": 50,
                "min_p": 0.01, "max_tokens": 24, "ignore_eos": True}
        lines = [dict(line, seed=seed) for seed in (1, 2, 1, 2**64 - 1)]
        done = run("generate", "--model", MODEL_A, "--input", "-", stdin=json_lines(lines))
        self.check_done(done)
        first, second, again, _ = [r["ids"] for r in done.lines()]
        self.assertEqual(first, again)
        self.assertNotEqual(first, second)
        alone = run("generate", "--model", MODEL_A, "--input", "-", "--seed", 2, "--max-sequences",
                    1, stdin=json_lines([line]))
        self.assertEqual(alone.lines()[0]["ids"], second)

    def test_output_file_holds_what_stdout_would(self):
        out = self.scratch / "results.jsonl"
        lines = json_lines([{"prompt": "A", "max_tokens": 3}])
        done = run("generate", "--model", MODEL_A, "--input", "-", "-o", out, stdin=lines)
        self.check_done(done)
        self.assertEqual(done.out, "")
        plain = run("generate", "--model", MODEL_A, "--input", "-", stdin=lines)
        self.assertEqual(out.read_text(), plain.out)
        self.assertEqual(os.listdir(self.scratch), ["results.jsonl"])

    def test_closed_pipe_ends_quietly(self):
        lines = json_lines([{"prompt": "A", "max_tokens": 400, "ignore_eos": True}] * 64)
        with subprocess.Popen([harness.PROGRAM, "generate", "--model", MODEL_A, "--input", "-"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.stdin.write(lines.encode())
            process.stdin.close()
            json.loads(process.stdout.readline())
            process.stdout.close()
            self.assertEqual(process.stderr.read(), b"")
            self.assertEqual(process.wait(harness.TIMEOUT_S), 128 + signal.SIGPIPE)

    def test_interrupt_leaves_no_file_behind(self):
        lines = json_lines([{"prompt": "A", "max_tokens": 400, "ignore_eos": True}] * 500)
        out = self.scratch / "out.jsonl"
        with subprocess.Popen([harness.PROGRAM, "generate", "--model", MODEL_A, "--input", "-",
                               "-o", out], stdin=subprocess.PIPE,
                              stderr=subprocess.PIPE) as process:
            process.stdin.write(lines.encode())
            process.stdin.close()
            while not os.listdir(self.scratch):  # it has begun
                self.assertIsNone(process.poll())
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(harness.TIMEOUT_S), 128 + signal.SIGINT)
        self.assertEqual(os.listdir(self.scratch), [])

    def test_closed_stdout_and_full_disk_are_errors(self):
        command = f"{harness.PROGRAM} generate --model {MODEL_A} --prompt A --max-tokens 2"
        for redirect, word in ((">&-", "stdout"), (">/dev/full", "No space left")):
            done = subprocess.run(["sh", "-c", f"{command} {redirect}"], capture_output=True,
                                  timeout=harness.TIMEOUT_S, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(word, done.stderr.decode())


class Score(harness.TestCase):

    def test_log_probabilities_and_logits_are_the_references(self):
        prompts = reference("gptoss-tiny-A")
        golden = harness.read_safetensors(harness.REFERENCE / "gptoss-tiny-A.safetensors")
        logits_file = self.scratch / "logits.safetensors"
        done = run("score", "--model", MODEL_A, "--input", "-", "--logits", logits_file,
                   stdin=json_lines({"ids": p["ids"]} for p in prompts))
        self.check_done(done)
        logits = harness.read_safetensors(logits_file)
        for i, (result, prompt) in enumerate(zip(done.lines(), prompts)):
            self.assertEqual(result["index"], i)
            self.assertEqual(result["ids"], prompt["ids"])
            self.assertEqual(len(result["logprobs"]), len(prompt["ids"]) - 1)
            for ours, theirs in zip(result["logprobs"], prompt["logprobs"]):
                self.assertAlmostEqual(ours, theirs, delta=TOLERANCE)
            shape, values = logits[f"logits.{i}"]
            self.assertEqual(shape, [len(prompt["ids"]), 1024])
            self.check_close(values[-1024:], golden[f"last_logits.{i}"][1])
            if f"all_logits.{i}" in golden:
                self.check_close(values, golden[f"all_logits.{i}"][1])
        self.assertEqual(sorted(os.listdir(self.scratch)), ["logits.safetensors"])

    def check_close(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        self.assertLess(max(abs(a - b) for a, b in zip(ours, theirs)), TOLERANCE)

    def test_text_and_ids_score_alike(self):
        prompt = reference("gptoss-tiny-A")[4]
        done = run("score", "--model", MODEL_A, "--input", "-",
                   stdin=json_lines([{"text": prompt["text"], "id": 7},
                                     {"prompt_ids": prompt["ids"], "id": "x"}]))
        self.check_done(done)
        first, second = done.lines()
        self.assertEqual([first["id"], second["id"]], [7, "x"])
        self.assertEqual(first["logprobs"], second["logprobs"])

    def test_no_logits_file_when_the_input_is_wrong(self):
        logits_file = self.scratch / "logits.safetensors"
        done = run("score", "--model", MODEL_A, "--input", "-", "--logits", logits_file,
                   stdin=json_lines([{"ids": [1, 2]}, {"ids": [1024]}]))
        self.check_fails(done, 1, "stdin:2", "1024", "0 to 1023")
        self.assertEqual(os.listdir(self.scratch), [])


if __name__ == "__main__":
    harness.main()
