"""Every published format of the experts, from the program: what is refused, and by which words.
Drills of all of them are in matrix_test.py, but under a sanitizer, where one backend must do. The
checkpoints are written at build time (tests/fixtures/README.md); without numpy there are none, and
all of this is skipped."""

import json
import os
import pathlib
import unittest

import harness
from harness import run

FIXTURES = pathlib.Path(harness.PROGRAM).resolve().parents[1] / "fixtures"
NEXT = FIXTURES.parent / "fixtures_b"
# Attention that is quantised together with the experts is refused, naming the modules.
REFUSED = "-attention"


def names():
    return sorted(os.listdir(FIXTURES)) if FIXTURES.is_dir() else []


@unittest.skipUnless(names(), "no quantised fixtures: numpy was missing when this was built")
class Formats(harness.TestCase):

    def drill(self, name, *flags):
        done = run("drill", "--from", FIXTURES / name, "--to", NEXT / name, "--max-tokens", 12,
                   "--json", "-", *flags)
        self.assertIn(done.code, (0, 1), done.err)
        return done, (json.loads(done.out) if done.out else None)

    def check_green(self, name, *flags):
        done, report = self.drill(name, *flags)
        self.assertIsNotNone(report, done.err)
        self.assertEqual((done.code, report["reasons"]), (0, []))
        self.assertEqual(report["slots"]["stable"], report["slots"]["total"])
        self.assertTrue(report["tokens_match_post_pressure"])

    @unittest.skipUnless(harness.SANITIZE, "matrix_test has them on every backend")
    def test_every_format_is_green(self):
        ran = 0
        for name in names():
            if name.endswith(REFUSED):
                continue
            with self.subTest(name=name):
                self.check_green(name)
            ran += 1
        self.assertGreater(ran, 20)

    def test_a_backend_without_kernels_for_a_format_is_refused_by_name(self):
        for backend in ("unquantised", "machete-like"):
            done, report = self.drill("qwen3moe-fp8-block", "--experts", backend)
            self.assertEqual((done.code, report), (1, None))
            self.assertRegex(done.err, f"experts backend {backend}: ")

    def test_attention_quantised_with_the_experts_is_refused_by_name(self):
        refused = [name for name in names() if name.endswith(REFUSED)]
        self.assertTrue(refused)
        for name in refused:
            done = run("inspect", FIXTURES / name)
            self.assertNotEqual(done.code, 0, name)
            self.assertRegex(done.err, "quantization_config: .*(self_attn|attention)", name)

    def test_activations_that_would_leave_input_scales_over_are_refused_by_the_option(self):
        for name in ("mixtral-fp8-static", "qwen3moe-nvfp4"):
            done = run("generate", "--model", FIXTURES / name, "--expert-activations", "none",
                       "--prompt", "ROMEO:")
            self.assertEqual(done.code, 1, name)
            self.assertRegex(done.err, "expert_activations none: .*input_scale", name)

    def test_a_config_that_describes_far_more_than_the_files_hold_is_refused_at_once(self):
        model = self.copy_model(FIXTURES / "qwen3moe-bf16")
        config = json.loads((model / "config.json").read_text())
        config.update(num_hidden_layers=1024, num_experts=4096)
        (model / "config.json").write_text(json.dumps(config))
        self.check_fails(run("inspect", model), 1, "describes 12582912 tensors of experts",
                         "1024 layers", "4096 experts")


if __name__ == "__main__":
    unittest.main()
