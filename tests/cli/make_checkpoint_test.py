"""`make-checkpoint`: random models that open, swap and generate, and flags that are wrong."""

import base64
import collections
import json
import resource
import shutil
import struct
import subprocess

import harness
import serve_test
from harness import MODEL_A, PROGRAM, run


class MakeCheckpoint(harness.TestCase):

    def make(self, *flags):
        """Directories A and B of a tiny model, made with `flags`."""
        a, b = self.scratch / "a", self.scratch / "b"
        self.check_done(run("make-checkpoint", a, "--next", b, "--seed", 5, *flags))
        return a, b

    def test_the_first_reloads_to_the_next_and_back_on_ids_alone(self):
        a, b = self.make("--like", "tiny")
        done = run("drill", "--from", a, "--to", b, "--json", "-")
        self.check_done(done)
        report = json.loads(done.out)
        self.assertEqual(report["verdict"], "GREEN")
        self.assertEqual(report["slots"]["moved"], 0)

    def test_its_numbers_are_finite_and_sane(self):
        a, _ = self.make("--like", "gpt-oss-120b", "--scale", "tiny")
        lines = [{"ids": [(7 * i + j * j) % 1024 for i in range(64)]} for j in range(8)]
        done = run("score", "--model", a, "--input", "-", stdin=harness.json_lines(lines))
        self.check_done(done)
        sums = [line["sum"] for line in done.lines()]
        self.assertEqual(len(set(sums)), len(sums))
        for value in sums:  # 63 predictions of 1024 tokens: worse than chance, and not absurd
            self.assertLess(-63 * 25, value)
            self.assertLess(value, -63 * 3)

    def test_its_router_spreads_over_all_experts_and_it_is_served_on_ids(self):
        a, _ = self.make("--like", "tiny")
        server = serve_test.Server(self, model=str(a))
        counts = collections.Counter()
        for seed in range(8):
            body = {"input_ids": [(37 * i + 101 * seed) % 1024 for i in range(60)],
                    "sampling_params": {"max_new_tokens": 4, "ignore_eos": True},
                    "return_routed_experts": True}
            status, text = server.ask("/generate", body)
            self.assertEqual(status, 200, text)
            reply = json.loads(text)
            self.assertEqual((reply["text"], len(reply["output_ids"])), ("", 4))
            experts = base64.b64decode(reply["meta_info"]["routed_experts"])
            counts.update(struct.unpack(f"<{len(experts) // 4}i", experts))
        self.assertEqual(sorted(counts), list(range(8)))
        for count in counts.values():  # an even share is an eighth
            self.assertGreater(count, sum(counts.values()) / 8 / 3)
            self.assertLess(count, sum(counts.values()) / 8 * 3)
        status, text = server.ask("/v1/completions", {"prompt": "To be"})
        self.assertEqual(status, 400, text)
        self.assertIn("tokenizer.json does not exist", text)

    def test_a_borrowed_tokenizer_makes_it_take_text(self):
        a, _ = self.make("--like", "tiny")
        shutil.copy(f"{MODEL_A}/tokenizer.json", a)
        done = run("generate", "--model", a, "--prompt", "ROMEO:", "--max-tokens", 4, "--json")
        self.check_done(done)
        self.assertIn("text", json.loads(done.out))

    def test_it_says_what_it_wrote(self):
        done = run("make-checkpoint", self.scratch / "a", "--like", "tiny")
        self.check_done(done)
        self.assertEqual(done.out, "")
        for word in ("79 tensors", "3.2 MB", "1 shard;", "GB/s"):
            self.assertIn(word, done.err)
        done = run("make-checkpoint", self.scratch / "b", "--like", "tiny", "-q")
        self.check_done(done)
        self.assertEqual(done.err, "")

    def test_wrong_usage_is_refused_and_changes_nothing(self):
        directory = self.scratch / "a"
        for flags, words in ((["--like", "gpt-5"], ["gpt-5", "gpt-oss-120b"]),
                             (["--scale", "huge"], ["huge", "tiny"]),
                             (["--seed", "-1"], ["seed"]), (["--seed", "x"], ["seed"]),
                             (["--seed", "18446744073709551616"], ["seed", "18446744073709551615"]),
                             (["--scale", "full"], ["--scale", "tiny"]),
                             (["--next", ""], ["next", "empty"]),
                             (["--threads", "9999"], ["9999"])):
            with self.subTest(flags=flags):
                like = [] if "--like" in flags else ["--like", "tiny"]
                self.check_fails(run("make-checkpoint", directory, *like, *flags), 2, *words)
        self.check_fails(run("make-checkpoint", "--like", "tiny"), 2, "directory")
        self.check_fails(run("make-checkpoint", directory), 2, "--like")
        self.check_fails(run("make-checkpoint", "--like", "tiny", ""), 2, "empty")
        self.check_fails(run("make-checkpoint", "--like", "tiny", self.scratch / "no/such"), 1,
                         "no/such")
        self.check_fails(run("make-checkpoint", directory, "--like", "tiny", "--next", directory),
                         1, "are one")
        self.assertFalse(directory.exists())
        before = sorted(path.name for path in self.copy_model().iterdir())
        self.check_fails(run("make-checkpoint", "--like", "tiny", self.scratch / "model"), 1,
                         "not empty")
        self.assertEqual(before, sorted(p.name for p in (self.scratch / "model").iterdir()))

    def test_a_disk_quota_ends_it_with_one_line_and_leaves_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        process = subprocess.run([PROGRAM, "make-checkpoint", "--like", "tiny",
                                  str(self.scratch / "a")], capture_output=True, check=False,
                                 timeout=harness.TIMEOUT_S, preexec_fn=limit)
        self.check_fails(harness.Done(process), 1, "model.safetensors", "File too large")
        self.assertEqual(list(self.scratch.iterdir()), [])


if __name__ == "__main__":
    harness.main()
