"""Wrong flags and wrong input: one line that says what, where and what is accepted."""

import os

import harness
from harness import MODEL_A, json_lines, run

# Flags, words of the message. All are wrong usage: exit code 2.
WRONG_FLAGS = [
    (["generate"], ["--model"]),
    (["generate", "--model", MODEL_A], ["--prompt", "--input"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--input", "-"], ["exactly one"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--temperature", "nan"], ["temperature"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--temperature", "-1"],
     ["temperature is -1", "0 to 100"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--temperature", "warm"], ["temperature"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--top-p", "0"], ["top_p is 0"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--min-p", "1.5"], ["min_p is 1.5"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--top-k", "-3"], ["top_k is -3"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--max-tokens", "-5"], ["-5"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--max-tokens", "9999999999"],
     ["max-tokens"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--seed", "-1"], ["seed"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--stop-token", "-7"], ["-7"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--stop", ""], ["--stop", "0 bytes"]),
    (["generate", "--model", MODEL_A, "--prompt", "x"] + ["--stop", "a"] * 17, ["17 times", "16"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--threads", "100000"], ["100000"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--max-sequences", "0"], ["0 is not"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--kernels", "slow"],
     ["slow", "fast", "reference"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--experts", "none"], ["none", "auto"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--commit", "now"], ["now", "remap"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--wrong"], ["--wrong"]),
    (["score", "--model", MODEL_A], ["--input"]),
    (["tokenize", "--model", MODEL_A], ["--text", "--input"]),
    (["tokenize", "--model", MODEL_A, "--text", "x", "--decode"], ["--decode"]),
    (["chat", "--model", MODEL_A, "--effort", "extreme"], ["extreme", "low"]),
    (["inspect"], ["directory"]),
    (["drill", "--from", MODEL_A], ["--to"]),
    (["drill", "--from", MODEL_A, "--to", MODEL_A, "--inject", "gremlins"],
     ["gremlins", "rebind-constants"]),
    (["frobnicate"], ["frobnicate"]),
    # Flags that say nothing beside the others.
    (["serve", MODEL_A, "--quantize-group", "128", "--print-config"],
     ["--quantize-group is for --quantize-experts int4"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "--quantize-group", "128"],
     ["--quantize-group is for --quantize-experts int4"]),
    (["drill", "--from", MODEL_A, "--to", MODEL_A, "--quantize-experts", "mxfp4",
      "--quantize-group", "32"], ["--quantize-group is for --quantize-experts int4"]),
    (["tokenize", "--model", MODEL_A, "--text", "x", "--skip-special"],
     ["--skip-special is for --decode"]),
    (["tokenize", "--model", MODEL_A, "--input", "-", "--decode", "--plain-text"],
     ["--plain-text is for texts"]),
    (["inspect", "--matrix", "--json"], ["--json is for", "--matrix"]),
    (["inspect", "--matrix", "--tensors"], ["--tensors is for", "--matrix"]),
    (["inspect", "--matrix", MODEL_A], ["directory is for", "--matrix"]),
    (["census", "--model", MODEL_A, "--graphs", "-v"], ["--verbose", "--graphs"]),
    (["verify", "--model", MODEL_A, "--digests", ""], ["--digests: an empty name"]),
    (["verify", "--model", MODEL_A, "--write-digests", ""], ["--write-digests: an empty name"]),
    (["generate", "--model", MODEL_A, "--prompt", "x", "-o", ""], ["--output: an empty name"]),
    (["quantize", "--to", "mxfp4", MODEL_A, ""], ["directory: an empty name"]),
    (["bench", "serve", "--save-result", ""], ["--save-result: an empty name"]),
    (["bench", "serve", "--verify-spans", "-1"], ["--verify-spans is -1"]),
    (["bench", "serve", "--reloads", "-2"], ["--reloads is -2"]),
    (["bench", "serve", "--timeout", "0"], ["--timeout is 0"]),
    ([], ["a command is required"]),
]

# A line of generate's input, words of the message. Exit code 1, and nothing was generated.
WRONG_LINES = [
    (b"{", ["not JSON"]),
    (b"[1, 2]", ["expected an object"]),
    (b"7", ["7", "expected an object"]),
    (b"{} {}", ["not JSON"]),
    (b"{}", ["prompt", "prompt_ids", "exactly one"]),
    (b'{"prompt": "a", "prompt_ids": [1]}', ["more than one"]),
    (b'{"prompt": "a", "temprature": 1}', ['"temprature"', "temperature"]),
    (b'{"prompt": "a", "prompt": "b"}', ["prompt", "twice"]),
    (b'{"prompt": 5}', ["prompt is 5", "a string"]),
    (b'{"prompt": ""}', ["empty"]),
    (b'{"prompt": {"text": "a"}}', ["prompt is an object"]),
    (b'{"prompt": "\xff\xfe"}', ["not JSON"]),
    (b'{"prompt": "\\ud800"}', ["not JSON"]),
    (b'{"prompt_ids": []}', ["prompt_ids", "at least one"]),
    (b'{"prompt_ids": [1, 1.5]}', ["prompt_ids[1] is 1.5"]),
    (b'{"prompt_ids": [1, "2"]}', ["prompt_ids[1]"]),
    (b'{"prompt_ids": [1, [2]]}', ["array in an array"]),
    (b'{"prompt_ids": [-1]}', ["prompt_ids[0] is -1"]),
    (b'{"prompt_ids": [1024]}', ["1024", "0 to 1023"]),
    (b'{"prompt_ids": [99999999999999999999999]}', ["prompt_ids[0]"]),
    (b'{"prompt": "a", "temperature": -0.5}', ["temperature is -0.5", "0 to 100"]),
    (b'{"prompt": "a", "temperature": NaN}', ["not JSON"]),
    (b'{"prompt": "a", "temperature": 1e999}', ["not JSON"]),
    (b'{"prompt": "a", "temperature": true}', ["temperature is true", "a number"]),
    (b'{"prompt": "a", "top_p": 1.01}', ["top_p is 1.01"]),
    (b'{"prompt": "a", "top_k": -1}', ["top_k is -1"]),
    (b'{"prompt": "a", "top_k": 2.5}', ["top_k is 2.5", "an integer"]),
    (b'{"prompt": "a", "min_p": 2}', ["min_p is 2"]),
    (b'{"prompt": "a", "seed": -1}', ["seed is -1"]),
    (b'{"prompt": "a", "max_tokens": -1}', ["max_tokens is -1"]),
    (b'{"prompt": "a", "max_tokens": "many"}', ['max_tokens is "many"']),
    (b'{"prompt": "a", "stop_token_ids": 5}', ["stop_token_ids is 5", "array"]),
    (b'{"prompt": "a", "ignore_eos": 1}', ["ignore_eos is 1", "true or false"]),
    (b'{"prompt": "a", "id": [1]}', ["id is", "a string or an integer"]),
    (b'{"prompt_ids": [' + b"5," * 5000 + b"5]}", ["5001 tokens", "the context holds"]),
    (b"[" * 100000, ["expected an object"]),
    (b'{"prompt": "a"' + b', "x": 1' * 100 + b"}", ["x"]),
]


class WrongUsage(harness.TestCase):

    def test_each_wrong_flag_is_named(self):
        for flags, words in WRONG_FLAGS:
            with self.subTest(flags=flags):
                self.check_fails(run(*flags), 2, "holdfast: ", *words)

    def test_help_teaches_with_examples(self):
        for command in ("", "generate", "score", "tokenize", "chat", "inspect", "drill", "census"):
            with self.subTest(command=command):
                done = run(*[command][:len(command)], "--help")
                self.check_done(done)
                self.assertIn("holdfast " + command, done.out)
                self.assertEqual(done.err, "")

    def test_version_is_printed(self):
        done = run("version")
        self.check_done(done)
        self.assertRegex(done.out, r"^holdfast \d+\.\d+\.\d+\n$")


class WrongInput(harness.TestCase):

    def test_each_wrong_line_is_named_and_nothing_runs(self):
        good = b'{"prompt": "a", "max_tokens": 1}\n'
        for line, words in WRONG_LINES:
            with self.subTest(line=line[:80]):
                path = self.write("in.jsonl", good + line + b"\n")
                done = run("generate", "--model", MODEL_A, "--input", path)
                self.check_fails(done, 1, f"{path}:2: ", *words)

    def test_wrong_files_are_named(self):
        missing = str(self.scratch / "none.jsonl")
        for path, words in ((missing, [missing, "No such file"]),
                            (str(self.scratch), ["directory"]),
                            (self.write("empty.jsonl", ""), ["no lines"]),
                            (self.write("gap.jsonl", '{"prompt": "a"}\n\n{"prompt": "a"}\n'),
                             ["gap.jsonl:2", "empty line"])):
            with self.subTest(path=path):
                self.check_fails(run("generate", "--model", MODEL_A, "--input", path), 1, *words)

    def test_limits_of_an_input_are_named(self):
        for text, words in ((b'{"text": ""}\n' * (2**18 + 1), [f"stdin:{2**18 + 1}", "lines"]),
                            (b'{"text": "' + b"a" * 2**26 + b'"}\n', ["stdin:1", str(2**26)])):
            with self.subTest(words=words):
                done = run("tokenize", "--model", MODEL_A, "--input", "-", stdin=text)
                self.check_fails(done, 1, *words)

    def test_prompt_that_is_not_utf8_is_an_error(self):
        done = run("generate", "--model", MODEL_A, "--prompt", os.fsdecode(b"ab\xff"))
        self.check_fails(done, 1, "--prompt", "UTF-8")

    def test_missing_model_is_named(self):
        for command in (["generate", "--prompt", "x"], ["score", "--input", "-"],
                        ["tokenize", "--text", "x"], ["census"], ["chat"]):
            with self.subTest(command=command):
                done = run(*command, "--model", "/no/such/model", stdin='{"text": "a"}\n')
                self.check_fails(done, 1, "/no/such/model")
        self.check_fails(run("inspect", "/no/such/model"), 1, "/no/such/model")
        self.check_fails(run("drill", "--from", "/no/such/model", "--to", MODEL_A), 1,
                         "/no/such/model")
        self.check_fails(run("drill", "--from", MODEL_A, "--to", "/no/such/model"), 1,
                         "/no/such/model")

    def test_unwritable_output_is_an_error(self):
        done = run("tokenize", "--model", MODEL_A, "--text", "x", "-o", "/no/such/dir/out")
        self.check_fails(done, 1, "/no/such/dir/out")


class Tokenize(harness.TestCase):

    def cases(self):
        import json
        with open(harness.TOKENIZER / "tiny_cases.json", encoding="utf-8") as file:
            return json.load(file)

    def test_golden_texts_become_golden_ids_and_back(self):
        cases = self.cases()
        done = run("tokenize", "--model", MODEL_A, "--input", "-",
                   stdin=json_lines({"text": c["text"], "id": i} for i, c in enumerate(cases)))
        self.check_done(done)
        self.assertEqual(done.lines(), [{"id": i, "ids": c["ids"]} for i, c in enumerate(cases)])
        done = run("tokenize", "--model", MODEL_A, "--input", "-", "--decode",
                   stdin=json_lines({"ids": c["ids"]} for c in cases))
        self.check_done(done)
        self.assertEqual([line["text"] for line in done.lines()], [c["decoded"] for c in cases])

    def test_special_tokens_are_text_on_request(self):
        special = run("tokenize", "--model", MODEL_A, "--text", "<|end|>").lines()[0]["ids"]
        plain = run("tokenize", "--model", MODEL_A, "--text", "<|end|>", "--plain-text")
        self.assertEqual(special, [1020])
        self.assertNotIn(1020, plain.lines()[0]["ids"])
        self.assertGreater(len(plain.lines()[0]["ids"]), 1)

    def test_unknown_id_is_named_and_nothing_is_written(self):
        out = self.scratch / "out"
        done = run("tokenize", "--model", MODEL_A, "--input", "-", "--decode", "-o", out,
                   stdin=json_lines([{"ids": [1]}, {"ids": [5000]}]))
        self.check_fails(done, 1, "stdin:2", "5000")
        self.assertEqual(os.listdir(self.scratch), [])


if __name__ == "__main__":
    harness.main()
