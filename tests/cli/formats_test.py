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
BACKENDS = ("holdfast", "reference", "cutlass", "trtllm-like", "marlin-like", "machete-like",
            "unquantised")
# Attention that is quantised together with the experts is refused, naming the modules.
REFUSED = "-attention"
ACT_ORDER = "mixtral-gptq-act-order"
SCALES = "qwen3moe-modelopt-nvfp4"


def names():
    return sorted(os.listdir(FIXTURES)) if FIXTURES.is_dir() else []


@unittest.skipUnless(names(), "no quantised fixtures: numpy was missing when this was built")
class Formats(harness.TestCase):

    def drill(self, name, *flags):
        done = run("drill", "--from", FIXTURES / name, "--to", NEXT / name, "--max-tokens", 12,
                   "--json", "-", *flags)
        self.assertIn(done.code, (0, 1), done.err)
        return done, (json.loads(done.out) if done.out else None)

    def is_green(self, name, backend):
        """Whether the backend runs it: then GREEN; else refused, in its name."""
        done, report = self.drill(name, "--experts", backend)
        if report is None:
            self.assertRegex(done.err, f"experts backend {backend}: ")
            return False
        self.assertEqual((done.code, report["reasons"]), (0, []))
        self.assertEqual(report["slots"]["stable"], report["slots"]["total"])
        self.assertTrue(report["tokens_match_post_pressure"])
        return True

    def check_red(self, name, backend, fault, word):
        done, report = self.drill(name, "--experts", backend, "--inject", fault)
        self.assertIsNotNone(report, done.err)
        self.assertEqual((done.code, report["verdict"]), (1, "RED"), (fault, backend))
        self.assertIn(word, "\n".join(report["reasons"]), (fault, backend))

    def test_every_format_is_green_on_every_backend_that_runs_it(self):
        ran = {backend: 0 for backend in BACKENDS}
        for name in names():
            if name.endswith(REFUSED):
                continue
            for backend in BACKENDS:
                with self.subTest(name=name, backend=backend):
                    ran[backend] += self.is_green(name, backend)
        self.assertTrue(all(ran.values()), ran)
        self.assertEqual(ran["holdfast"], ran["reference"])
        self.assertGreater(ran["holdfast"], 20)

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

    def test_stale_indices_and_permutations_are_red(self):
        self.check_red(ACT_ORDER, "marlin-like", "stale-sort-index", "layers.0.experts")
        self.check_red(ACT_ORDER, "machete-like", "stale-permutation", "layers.0.experts")

    def test_stale_alphas_and_scales_bound_anew_are_red(self):
        self.check_red(SCALES, "trtllm-like", "stale-alpha", "alpha")
        self.check_red(SCALES, "trtllm-like", "reregistered-scale", "scale")


if __name__ == "__main__":
    unittest.main()
