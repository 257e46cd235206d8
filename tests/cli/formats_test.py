"""Every published format of the experts, from the program: what is refused, and by which words.
Drills of all of them are in matrix_test.py, but under a sanitizer, where one backend must do. The
checkpoints are written at build time (tests/fixtures/README.md); without numpy there are none, and
all of this is skipped."""

import json
import os
import pathlib
import shutil
import struct
import unittest

import harness
from harness import run

FIXTURES = pathlib.Path(harness.PROGRAM).resolve().parents[1] / "fixtures"
NEXT = FIXTURES.parent / "fixtures_b"
# Attention that is quantised together with the experts; the other formats of it are reloaded by
# tests/fixtures/attention_test.cc.
ATTENTION = [name + "-attention" for name in (
    "qwen3moe-fp8-block", "mixtral-gptq-act-order", "qwen3moe-awq", "qwen3moe-modelopt-nvfp4")]
QKV = "layers.0.attention.qkv.weight"


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
            if name.endswith("-attention"):
                continue
            with self.subTest(name=name):
                self.check_green(name)
            ran += 1
        self.assertGreater(ran, 20)

    @unittest.skipIf(harness.SANITIZE, "tests/fixtures/attention_test.cc reloads them")
    def test_quantised_attention_is_green_and_red_when_it_is_stale(self):
        for name in ATTENTION:
            with self.subTest(name=name):
                self.check_green(name)
                done, report = self.drill(name, "--inject", "stale-derived")
                self.assertEqual((done.code, report["verdict"]), (1, "RED"))
                self.assertIn(QKV, "\n".join(report["reasons"]))

    def test_a_backend_without_kernels_for_a_format_is_refused_by_name(self):
        for backend in ("unquantised", "machete-like"):
            done, report = self.drill("qwen3moe-fp8-block", "--experts", backend)
            self.assertEqual((done.code, report), (1, None))
            self.assertRegex(done.err, f"experts backend {backend}: ")

    def test_inspect_says_what_becomes_of_attention_that_is_quantised(self):
        done = run("inspect", FIXTURES / "qwen3moe-fp8-block-attention")
        self.assertEqual(done.code, 0, done.err)
        self.assertRegex(done.out, "quantised besides .*self_attn.q_proj, self_attn.v_proj of "
                         "layers 0-1: stored as fp8-block, served as bf16, activations as they are "
                         r"\(their publisher quantises them: fp8-token-group\)")
        self.assertNotIn("quantised besides", run("inspect", FIXTURES / "qwen3moe-awq").out)

    def test_scales_of_a_quantised_cache_are_kept_and_not_used(self):
        for name, scales in (("qwen3moe-modelopt-nvfp4-attention", "of projections, f32 []"),
                             ("qwen3moe-fp8-channel-attention", "of attention, bf16 [1]")):
            done = run("inspect", FIXTURES / name)
            self.check_done(done)
            self.assertIn(f"{scales}: kept and not used", done.out)

    def test_inspect_says_that_what_is_f16_is_rounded(self):
        done = run("inspect", FIXTURES / "mixtral-gptq-act-order-attention")
        self.check_done(done)
        self.assertRegex(done.out, "all else +f16, rounded once to bf16")

    def check_defect(self, name, change, *words):
        """`change` is given each file's name and bytes."""
        model = self.copy_model(FIXTURES / name)
        for path in model.iterdir():
            if path.is_file():
                path.write_bytes(change(path.name, path.read_bytes()))
        self.check_fails(run("generate", "--model", model, "--prompt", "ROMEO:"), 1, *words)

    def test_attention_without_its_scale_is_refused_by_its_tensor(self):
        scale = "model.layers.0.self_attn.q_proj.scales"
        self.check_defect("mixtral-gptq-act-order-attention",
                          lambda _, data: data.replace(scale.encode(), scale[:-1].encode() + b"z"),
                          scale)

    def test_attention_of_other_groups_is_refused_by_both_shapes(self):
        def groups(name, data):
            return data.replace(b'"group_size": 64', b'"group_size": 32') \
                if name == "config.json" else data
        self.check_defect("qwen3moe-awq-attention", groups, "[4, ", "[8, ")

    def test_a_source_whose_attention_is_quantised_is_not_quantised_again(self):
        done = run("quantize", "--to", "mxfp8", FIXTURES / ATTENTION[0], self.scratch / "out")
        self.check_fails(done, 1, "already")

    def test_activations_that_would_leave_input_scales_over_are_refused_by_the_option(self):
        for name in ("mixtral-fp8-static", "qwen3moe-nvfp4"):
            done = run("generate", "--model", FIXTURES / name, "--expert-activations", "none",
                       "--prompt", "ROMEO:")
            self.assertEqual(done.code, 1, name)
            self.assertRegex(done.err, "expert_activations none: .*input_scale", name)

    def test_a_scale_that_is_negative_or_not_finite_is_refused_whatever_holds_it(self):
        for name, scale in (("qwen3moe-awq", "up_proj.scales"),
                            ("mixtral-w4a16", "w1.weight_scale"),
                            ("qwen3moe-fp8-block", "up_proj.weight_scale_inv"),
                            ("qwen3moe-modelopt-nvfp4", "up_proj.weight_scale"),
                            ("qwen3moe-nvfp4", "up_proj.weight_global_scale"),
                            ("mixtral-fp8-static", "w1.input_scale")):
            model = self.scratch / name
            shutil.copytree(FIXTURES / name, model)
            path = next(model.glob("*.safetensors"))
            path.chmod(0o644)
            data = bytearray(path.read_bytes())
            size = struct.unpack_from("<Q", data)[0]
            header = json.loads(data[8:8 + size])
            tensor = next(key for key in sorted(header) if key.endswith(scale))
            width = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}[header[tensor]["dtype"]]
            last = 8 + size + header[tensor]["data_offsets"][0] + width - 1
            for change in (lambda byte: byte | 0x80, lambda byte: 0x7F):  # the sign; then a NaN
                whole = data[:]
                whole[last] = change(whole[last])
                whole[last - 1] |= 0x80 if width > 1 else 0
                path.write_bytes(whole)
                for backend in ("holdfast", "reference"):
                    done = run("generate", "--model", model, "--prompt", "a", "--max-tokens", 1,
                               "--experts", backend)
                    self.check_fails(done, 1, f"tensor {tensor} ", "element 0 is ",
                                     "; a scale is finite and not negative")

    def test_a_group_index_that_cannot_be_is_refused_naming_the_expert(self):
        model = self.copy_model(FIXTURES / "mixtral-gptq-act-order")
        path = next(model.glob("*.safetensors"))
        data = bytearray(path.read_bytes())
        size = struct.unpack_from("<Q", data)[0]
        tensor = json.loads(data[8:8 + size])["model.layers.1.block_sparse_moe.experts.2.w2.g_idx"]
        struct.pack_into("<i", data, 8 + size + tensor["data_offsets"][0], 99)
        path.write_bytes(data)
        for backend in ("holdfast", "marlin-like", "reference"):
            done = run("generate", "--model", model, "--prompt", "a", "--experts", backend)
            self.check_fails(done, 1, "layers.1.experts.down", "expert 2", "is of group 99")

    def test_two_conventions_of_one_scheme_are_both_named(self):
        done = run("plan", "--model", FIXTURES / "qwen3moe-inc-mxfp4",
                   "--to", FIXTURES / "qwen3moe-quark-mxfp4")
        self.check_fails(done, 1, "expert format is mxfp4", "(weight_packed, as INC",
                         "(weight, as Quark)")

    def test_the_matrix_has_every_format_that_flags_can_make(self):
        table = run("inspect", "--matrix").out
        for scheme in ("bf16", "f16", "f32", "mxfp4", "mxfp8", "nvfp4", "fp8-block", "fp8-channel",
                       "fp8-tensor", "int4"):
            for activations in ("none", "mxfp8", "fp8-token", "fp8-token-group"):
                self.assertIn(f"\n| {scheme} x {activations} |", table)

    def test_a_config_that_describes_far_more_than_the_files_hold_is_refused_at_once(self):
        model = self.copy_model(FIXTURES / "qwen3moe-bf16")
        config = json.loads((model / "config.json").read_text())
        config.update(num_hidden_layers=1024, num_experts=4096)
        (model / "config.json").write_text(json.dumps(config))
        self.check_fails(run("inspect", model), 1, "describes 12582912 tensors of experts",
                         "1024 layers", "4096 experts")


if __name__ == "__main__":
    unittest.main()
