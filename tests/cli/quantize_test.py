"""`quantize`: checkpoints that open and generate, and flags and sources that are wrong."""

import json
import pathlib
import resource
import subprocess
import unittest

import harness
from harness import MODEL_A, MODEL_A_BF16, PROGRAM, ROOT, run

QWEN = ROOT / "tests/golden/qwen3moe-tiny-bf16"
SCHEMES = ("mxfp4", "mxfp8", "nvfp4", "fp8-block", "fp8-channel", "fp8-tensor", "int4")


def tensors_of(directory):
    """Name to (dtype, shape, bytes) of all tensors of a checkpoint."""
    found = {}
    for path in pathlib.Path(directory).glob("*.safetensors"):
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:end]).items():
            if name != "__metadata__":
                begin, stop = entry["data_offsets"]
                found[name] = (entry["dtype"], entry["shape"], data[end + begin:end + stop])
    return found


def widen(source, to):
    """Writes all bf16 tensors of a checkpoint as f32, in one file."""
    to.mkdir()
    for name in ("config.json", "tokenizer.json"):
        if (source / name).exists():
            (to / name).write_bytes((source / name).read_bytes())
    header, body = {}, bytearray()
    for name, (dtype, shape, data) in tensors_of(source).items():
        if dtype == "BF16":
            wide = bytearray(2 * len(data))
            wide[2::4], wide[3::4] = data[0::2], data[1::2]
            dtype, data = "F32", bytes(wide)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (to / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)


class Quantize(harness.TestCase):

    def test_gpt_oss_in_bf16_becomes_the_published_mxfp4_and_says_the_same(self):
        out = self.scratch / "out"
        done = run("quantize", "--to", "mxfp4", MODEL_A_BF16, out)
        self.check_done(done)
        self.assertEqual(done.out, "")
        for word in ("experts mxfp4", "GB/s", "buffers of"):
            self.assertIn(word, done.err)
        self.assertEqual(tensors_of(out), tensors_of(MODEL_A))
        flags = ["--prompt", "ROMEO:", "--max-tokens", 16, "--json"]
        first, second = (run("generate", "--model", model, *flags) for model in (out, MODEL_A))
        self.check_done(first)
        self.assertEqual(json.loads(first.out)["ids"], json.loads(second.out)["ids"])

    # The experts' biases, too, are f32 there.
    def test_a_gpt_oss_in_f32_is_quantised_or_served_quantised_alike(self):
        wide, out = self.scratch / "wide", self.scratch / "out"
        widen(pathlib.Path(MODEL_A_BF16), wide)
        self.check_done(run("quantize", "-q", "--to", "mxfp4", wide, out))
        self.assertEqual(tensors_of(out)["model.layers.0.mlp.experts.down_proj_bias"][0], "F32")
        flags = ["--prompt", "ROMEO:", "--max-tokens", 16, "--json"]
        cold = run("generate", "--model", out, *flags)
        arrived = run("generate", "--model", wide, "--quantize-experts", "mxfp4", *flags)
        published = run("generate", "--model", MODEL_A, *flags)
        for done in (cold, arrived):
            self.check_done(done)
            self.assertEqual(json.loads(done.out)["ids"], json.loads(published.out)["ids"])

    def test_every_scheme_makes_a_checkpoint_that_opens(self):
        for scheme in SCHEMES:
            with self.subTest(scheme=scheme):
                out = self.scratch / scheme
                group = ["--group", 64] if scheme == "int4" else []
                self.check_done(run("quantize", "-q", "--to", scheme, *group, QWEN, out))
                done = run("inspect", out)
                self.check_done(done)
                self.assertIn(scheme, done.out)
                config = json.loads((out / "config.json").read_text(encoding="utf-8"))
                self.assertIn("quantization_config", config)
                source = json.loads((QWEN / "config.json").read_text(encoding="utf-8"))
                del config["quantization_config"]
                self.assertEqual(config, source)

    def test_zero_points_are_there_when_asked_for(self):
        plain, zeros = self.scratch / "plain", self.scratch / "zeros"
        self.check_done(run("quantize", "--to", "int4", QWEN, plain))
        self.check_done(run("quantize", "--to", "int4", "--zero-points", QWEN, zeros))
        name = "model.layers.0.mlp.experts.0.up_proj.weight_zero_point"
        self.assertNotIn(name, tensors_of(plain))
        self.assertEqual(tensors_of(zeros)[name][:2], ("I32", [16, 2]))

    def test_wrong_usage_is_refused_and_changes_nothing(self):
        out = self.scratch / "out"
        for flags, words in ((["--to", "int3"], ["int3", "fp8-block"]),
                             (["--to", "int4", "--group", "0"], ["group", "0"]),
                             (["--to", "int4", "--group", "-1"], ["group"]),
                             (["--to", "mxfp4", "--group", "64"], ["--group", "int4", "mxfp4"]),
                             (["--to", "mxfp8", "--zero-points"], ["--zero-points", "int4"]),
                             (["--to", "mxfp4", "--threads", "9999"], ["9999"])):
            with self.subTest(flags=flags):
                self.check_fails(run("quantize", *flags, QWEN, out), 2, *words)
        self.check_fails(run("quantize", QWEN, out), 2, "--to")
        self.check_fails(run("quantize", "--to", "mxfp8", QWEN), 2, "directory")
        self.check_fails(run("quantize", "--to", "mxfp8", self.scratch / "no", out), 1, "no")
        self.check_fails(run("quantize", "--to", "mxfp4", MODEL_A, out), 1, "mxfp4", "already")
        self.check_fails(run("quantize", "--to", "nvfp4", MODEL_A_BF16, out), 1, "gpt_oss", "nvfp4")
        self.check_fails(run("quantize", "--to", "int4", "--group", 96, QWEN, out), 1, "96")
        self.check_fails(run("quantize", "--to", "int4", "--group", 4, QWEN, out), 1,
                         "multiple of 8")
        self.assertFalse(out.exists())
        model = self.copy_model(QWEN)
        before = sorted(path.name for path in model.iterdir())
        self.check_fails(run("quantize", "--to", "mxfp8", QWEN, model), 1, "not empty")
        self.check_fails(run("quantize", "--to", "mxfp8", model, model), 1, "are one")
        self.assertEqual(before, sorted(path.name for path in model.iterdir()))

    def test_a_disk_quota_ends_it_with_one_line_and_leaves_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        process = subprocess.run([PROGRAM, "quantize", "--to", "mxfp8", str(QWEN),
                                  str(self.scratch / "out")], capture_output=True, check=False,
                                 timeout=harness.TIMEOUT_S, preexec_fn=limit)
        self.check_fails(harness.Done(process), 1, "model.safetensors", "File too large")
        self.assertEqual(list(self.scratch.iterdir()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
