"""The drill matrix: every published format (tests/fixtures/README.md) on every experts backend of
the CPU is GREEN, or refused as `inspect --matrix` says; each of the field's is drilled on all that
it runs; and the faults of docs/field-cases.md are RED by the slots that its table names. Without
numpy there are no fixtures, and all of this is skipped."""

import array
import json
import os
import pathlib
import re
import shutil
import struct
import unittest

import harness
from harness import MODEL_A, MODEL_A_BF16, MODEL_B, run

FIXTURES = pathlib.Path(harness.PROGRAM).resolve().parents[1] / "fixtures"
NEXT = FIXTURES.parent / "fixtures_b"
PLAIN = "mixtral-bf16"
# What has kernels of our own runs every scheme with every activations: each published format is
# drilled on it. The others are drilled on all that they run.
OWN = ("reference", "holdfast")
# Under a sanitizer, where a drill takes long, one format each.
SANITIZED = {"cutlass": "qwen3moe-fp8-block", "trtllm-like": "qwen3moe-modelopt-nvfp4",
             "marlin-like": "mixtral-gptq-act-order", "machete-like": "mixtral-gptq",
             "unquantised": "mixtral-bf16", "reference": "mixtral-bf16"}
# Formats that no fixture has: made of bf16 experts as they arrive.
MADE = {"mxfp4 x mxfp8": ("--quantize-experts", "mxfp4", "--expert-activations", "mxfp8"),
        "mxfp8 x none": ("--quantize-experts", "mxfp8", "--expert-activations", "none"),
        "fp8-tensor x none": ("--quantize-experts", "fp8-tensor", "--expert-activations", "none"),
        "fp8-channel x none": ("--quantize-experts", "fp8-channel",
                               "--expert-activations", "none"),
        "fp8-block x none": ("--quantize-experts", "fp8-block", "--expert-activations", "none"),
        "nvfp4 x none": ("--quantize-experts", "nvfp4")}
# Those of the table of faults.
TABLE = {"gptq": "mixtral-gptq", "gptq act-order": "mixtral-gptq-act-order",
         "nvfp4 x nvfp4": "qwen3moe-modelopt-nvfp4", "fp8 tensor x static": "mixtral-fp8-static",
         "int4 compressed": "mixtral-w4a16", "bf16": PLAIN, "mxfp4": "qwen3moe-inc-mxfp4",
         "mxfp4 x mxfp8": MODEL_A, "nvfp4": PLAIN}
FLAGS = {"nvfp4": MADE["nvfp4 x none"], "mxfp4 x mxfp8": ("--expert-activations", "mxfp8")}
# The two backends that keep MXFP4 bytes in slots named as gpt-oss publishes them.
GPT_OSS = ("holdfast", "reference")


def names():
    found = sorted(os.listdir(FIXTURES)) if FIXTURES.is_dir() else []
    return [name for name in found if not name.endswith("-attention")]


def table_rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
            if line.startswith("| ")]


def matrix():
    """(format, backend) to what `inspect --matrix` says of the CPU."""
    header, _, *rows = table_rows(run("inspect", "--matrix").out)
    backends = [column.removesuffix(", cpu") for column in header[1:]]
    return {(row[0], backend): cell for row in rows
            for backend, cell in zip(backends, row[1:]) if not backend.endswith("cuda")}


def faults():
    text = (harness.ROOT / "docs/field-cases.md").read_text(encoding="utf-8")
    table = text[text.index("| scheme | backend | fault | outcome |"):]
    return table_rows(table[:table.index("\n\n")])[2:]


def format_of(model):
    report = json.loads(run("inspect", model, "--json").out)
    activations = re.search(r"activations ([\w-]+)", report["config"]["expert format"]).group(1)
    return f"{report['scheme']} x {activations}"


def of_dtype(source, target, dtype):
    """A copy of a checkpoint whose bf16 experts are f16 or f32."""
    shutil.copytree(source, target)
    for path in target.glob("*.safetensors"):
        data = path.read_bytes()
        size = struct.unpack_from("<Q", data)[0]
        header, body, end = json.loads(data[8:8 + size]), [], 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, stop = entry["data_offsets"]
            values = data[8 + size + begin:8 + size + stop]
            if ".experts." in name:
                floats = array.array("I", (bits << 16 for bits in array.array("H", values)))
                values = floats.tobytes()
                if dtype == "F16":
                    count = len(floats)
                    values = struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", values))
                entry["dtype"] = dtype
            entry["data_offsets"] = [end, end + len(values)]
            body.append(values)
            end += len(values)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.chmod(0o644)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body))


def of_other_layers(source, target):
    """A copy of a checkpoint in which layers of one shard have each other's experts."""
    shutil.copytree(source, target)
    for path in target.glob("*.safetensors"):
        data = path.read_bytes()
        size = struct.unpack_from("<Q", data)[0]
        header = json.loads(data[8:8 + size])
        for name in list(header):
            other = header.get(name.replace("layers.0.", "layers.1."))
            if other is None or "layers.0." not in name or ".experts." not in name:
                continue
            one = header[name]
            one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]
        text = json.dumps(header, separators=(",", ":")).encode()
        path.chmod(0o644)
        path.write_bytes(struct.pack("<Q", size) + text.ljust(size) + data[8 + size:])


@unittest.skipUnless(names(), "no quantised fixtures: numpy was missing when this was built")
class Matrix(harness.TestCase):

    def drill(self, source, target, *flags):
        done = run("drill", "--from", source, "--to", target, "--max-tokens", 12, "--json", "-",
                   *flags)
        self.assertIn(done.code, (0, 1, 2), done.err)
        return done, (json.loads(done.out) if done.out else None)

    def check_green(self, source, target, *flags):
        with self.subTest(model=pathlib.Path(source).name, flags=flags):
            done, report = self.drill(source, target, *flags)
            self.assertIsNotNone(report, done.err)
            self.assertEqual((done.code, report["reasons"]), (0, []))
            self.assertEqual(report["slots"]["stable"], report["slots"]["total"])
            self.assertTrue(report["tokens_match_post_pressure"])

    def check_refused(self, models, backend, cell):
        with self.subTest(model=models[0], backend=backend):
            done = run("drill", "--from", models[0], "--to", models[1], "--experts", backend)
            self.check_fails(done, 1, f"experts backend {backend}: ", cell.split(": ", 1)[1])

    def all_models(self):
        """What is loaded and what replaces it, of every published format."""
        yield MODEL_A, MODEL_B
        of_other_layers(MODEL_A_BF16, self.scratch / "bf16")
        yield MODEL_A_BF16, self.scratch / "bf16"
        for name in names():
            yield FIXTURES / name, NEXT / name
        for dtype in ("F16", "F32"):
            models = self.scratch / f"{dtype}-a", self.scratch / f"{dtype}-b"
            of_dtype(FIXTURES / PLAIN, models[0], dtype)
            of_dtype(NEXT / PLAIN, models[1], dtype)
            self.assertEqual(format_of(models[0]), f"{dtype.lower()} x none")
            yield models

    @unittest.skipIf(harness.SANITIZE, "minutes under a sanitizer: one format each, below")
    def test_every_format_on_every_backend_is_green_or_refused_as_the_matrix_says(self):
        cells, drilled = matrix(), set()
        for models in self.all_models():
            kind = format_of(models[0])
            for backend in sorted({backend for _, backend in cells}):
                cell = cells[kind, backend]
                if cell.startswith("refused"):
                    self.check_refused(models, backend, cell)
                    continue
                self.check_green(*models, "--experts", backend)
                drilled.add((kind, backend))
        for kind, flags in MADE.items():
            for backend in {backend for _, backend in cells} - set(OWN):
                if cells[kind, backend].startswith("refused"):
                    continue
                self.check_green(FIXTURES / PLAIN, NEXT / PLAIN, "--experts", backend, *flags)
                drilled.add((kind, backend))
        runs = {key for key, cell in cells.items() if not cell.startswith("refused")}
        # Nothing that a backend of the field runs is left out, and all backends were there.
        self.assertEqual({key for key in runs - drilled if key[1] not in OWN}, set())
        self.assertEqual({backend for _, backend in drilled}, {backend for _, backend in cells})

    @unittest.skipUnless(harness.SANITIZE, "the whole matrix, above")
    def test_a_format_of_each_backend_is_green(self):
        for backend, name in SANITIZED.items():
            self.check_green(FIXTURES / name, NEXT / name, "--experts", backend)

    def models_of(self, scheme, backend):
        if scheme.startswith("mxfp4") and (backend in GPT_OSS or TABLE[scheme] == MODEL_A):
            return MODEL_A, MODEL_B
        return FIXTURES / TABLE[scheme], NEXT / TABLE[scheme]

    @unittest.skipIf(harness.SANITIZE, "minutes under a sanitizer; tests/formats has the faults")
    def test_every_fault_of_the_table_is_red_by_its_slots_or_refused(self):
        ran = 0
        for scheme, backend, fault, outcome in faults():
            verdict, _, slots = outcome.partition(": ")
            with self.subTest(scheme=scheme, backend=backend, fault=fault):
                done, report = self.drill(*self.models_of(scheme, backend), "--experts", backend,
                                          "--inject", fault, *FLAGS.get(scheme, ()))
                self.assertIsNotNone(report, done.err)
                said = "\n".join(report["reasons"])
                if verdict == "refused":
                    self.assertEqual((done.code, report["verdict"]), (2, "NOT INJECTED"))
                    self.assertIn(slots, report["not_injected"])
                    self.assertIn("the identity reload failed", said)
                else:
                    self.assertEqual((done.code, report["verdict"]), (1, "RED"))
                    named = set(re.findall(r"(?:layers\.0\.)?experts\.[\w.]+", said))
                    wanted = {slot if slot.startswith("experts.") else f"layers.0.experts.{slot}"
                              for slot in slots.split(", ")}
                    moved = set(report["slots"]["moved_keys"])
                    self.assertLessEqual(wanted, named | moved)
            ran += 1
        self.assertGreater(ran, 20)


if __name__ == "__main__":
    unittest.main()
