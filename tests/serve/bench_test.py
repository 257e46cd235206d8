"""`holdfast bench serve` against `holdfast serve`: reloads in the middle of many streams."""

import json
import pathlib
import subprocess
import tempfile

import harness


class BenchTest(harness.TestCase):
    def bench(self, *flags):
        with tempfile.TemporaryDirectory() as directory:
            result = pathlib.Path(directory, "result.json")
            report = pathlib.Path(directory, "report.html")
            done = subprocess.run(
                [harness.PROGRAM, "bench", "serve", "--quiet", "--ignore-eos", "--check",
                 "--base-url", f"http://127.0.0.1:{self.server.ports['public']}",
                 "--control-url", f"http://127.0.0.1:{self.server.ports['control']}",
                 "--random-prefix-len", "48", "--random-input-len", "8",
                 "--save-result", result, "--report", report, *flags],
                capture_output=True, timeout=harness.TIMEOUT_S, check=False)
            text = done.stdout.decode() + done.stderr.decode()
            self.assertTrue(result.exists(), text)
            self.assertIn("<svg", report.read_text())
            return done.returncode, json.loads(result.read_text()), text

    def test_every_token_under_reloads_is_of_the_weights_that_it_names(self):
        for policy in ("continue", "recompute"):
            code, result, text = self.bench(
                "--num-prompts", "64", "--random-output-len", "48", "--reloads", "4",
                "--reload-dir", harness.MODEL_A, "--reload-dir", harness.MODEL_B,
                "--in-flight", policy, "--max-concurrency", "16", "--verify-spans", "64")
            self.assertEqual(code, 0, text)
            self.assertEqual((result["completed"], result["failed"]), (64, 0))
            self.assertEqual(result["total_output_tokens"], 64 * 48)
            reloads = result["holdfast"]["reloads"]
            self.assertEqual([one["error"] for one in reloads], [""] * 4)
            self.assertTrue(any(one.get("streams", 0) > 0 for one in reloads), text)
            self.assertGreater(result["holdfast"]["cached_tokens"], 0)

    def test_a_reload_that_fails_fails_the_run_and_no_stream(self):
        code, result, text = self.bench(
            "--num-prompts", "8", "--random-output-len", "32", "--reloads", "1",
            "--reload-dir", harness.MODEL_A, "--reload-dir", harness.MODEL_A + "-missing")
        self.assertEqual(code, 1, text)
        self.assertEqual((result["completed"], result["failed"]), (8, 0))
        self.assertTrue(result["holdfast"]["reloads"][0]["error"])


if __name__ == "__main__":
    harness.main()
