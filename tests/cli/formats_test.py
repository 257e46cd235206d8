"""Every published format of the experts, from the program: the drill is GREEN on each backend that
runs it, and the faults of the field's own backends are RED by name. The checkpoints are written at
build time (tests/fixtures/README.md); without numpy there are none, and all of this is skipped."""

import json
import os
import pathlib
import unittest

import harness
from harness import run

FIXTURES = pathlib.Path(harness.PROGRAM).resolve().parents[1] / "fixtures"
NEXT = FIXTURES.parent / "fixtures_b"
# The field's own backends are plain loops, and slow: one format each here, every format on every
# backend in tests/formats, layer by layer.
BACKENDS = {"reference": "qwen3moe-awq", "cutlass": "qwen3moe-fp8-block",
            "trtllm-like": "qwen3moe-modelopt-nvfp4", "marlin-like": "mixtral-gptq-act-order",
            "machete-like": "mixtral-gptq-act-order", "unquantised": "mixtral-bf16"}
# Attention that is quantised together with the experts is refused, naming the modules.
REFUSED = "-attention"
ACT_ORDER = "mixtral-gptq-act-order"
SCALES = "qwen3moe-modelopt-nvfp4"
SLOW = "minutes under a sanitizer; tests/formats has the kernels"


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

    def check_red(self, name, backend, fault, word):
        done, report = self.drill(name, "--experts", backend, "--inject", fault)
        self.assertIsNotNone(report, done.err)
        self.assertEqual((done.code, report["verdict"]), (1, "RED"), (fault, backend))
        self.assertIn(word, "\n".join(report["reasons"]), (fault, backend))

    def test_every_format_is_green(self):
        ran = 0
        for name in names():
            if name.endswith(REFUSED):
                continue
            with self.subTest(name=name):
                self.check_green(name)
            ran += 1
        self.assertGreater(ran, 20)

    @unittest.skipIf(harness.SANITIZE, SLOW)
    def test_every_backend_is_green(self):
        for backend, name in BACKENDS.items():
            with self.subTest(name=name, backend=backend):
                self.check_green(name, "--experts", backend)

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

    @unittest.skipIf(harness.SANITIZE, SLOW)
    def test_stale_indices_and_permutations_are_red(self):
        self.check_red(ACT_ORDER, "marlin-like", "stale-sort-index", "layers.0.experts")
        self.check_red(ACT_ORDER, "machete-like", "stale-permutation", "layers.0.experts")

    @unittest.skipIf(harness.SANITIZE, SLOW)
    def test_stale_alphas_and_scales_bound_anew_are_red(self):
        self.check_red(SCALES, "trtllm-like", "stale-alpha", "alpha")
        self.check_red(SCALES, "trtllm-like", "reregistered-scale", "scale")


if __name__ == "__main__":
    unittest.main()
