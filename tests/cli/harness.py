"""Runs the program under test and reads what it writes. Standard library only."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("HOLDFAST_PROGRAM", str(ROOT / "build/dev/cli/holdfast"))
SANITIZE = os.environ.get("HOLDFAST_SANITIZE", "")
MODEL_A = str(ROOT / "models/gptoss-tiny-A")
MODEL_B = str(ROOT / "models/gptoss-tiny-B")
MODEL_A_BF16 = str(ROOT / "tests/golden/gptoss-tiny-A-bf16")
REFERENCE = ROOT / "tests/golden/reference"
TOKENIZER = ROOT / "tests/golden/tokenizer"
TIMEOUT_S = 240


class Done:
    """What a finished command left: exit code, stdout and stderr (bytes and text)."""

    def __init__(self, process):
        self.code = process.returncode
        self.out_bytes = process.stdout
        self.out = process.stdout.decode("utf-8", "replace")
        self.err = process.stderr.decode("utf-8", "replace")

    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments, stdin=b""):
    """Runs `holdfast arguments...` with `stdin` and waits."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    process = subprocess.run([PROGRAM, *map(os.fsencode, map(str, arguments))], input=stdin,
                             capture_output=True, timeout=TIMEOUT_S, check=False)
    return Done(process)


def json_lines(objects):
    return "".join(json.dumps(o) + "\n" for o in objects)


def reference(name):
    with open(REFERENCE / f"{name}.json", encoding="utf-8") as file:
        return json.load(file)["prompts"]


def read_safetensors(path):
    """Name to (shape, tuple of floats) of the float32 tensors of a file, its layout checked."""
    data = pathlib.Path(path).read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + header_bytes])
    tensors, end = {}, 0
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        count = (end - begin) // 4
        values = struct.unpack_from(f"<{count}f", data, 8 + header_bytes + begin)
        tensors[name] = (entry["shape"], values)
    assert (8 + header_bytes) % 8 == 0
    return tensors


class TestCase(unittest.TestCase):
    """A test with a scratch directory, and checks of how commands end."""

    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="holdfast-cli-"))
        self.addCleanup(shutil.rmtree, self.scratch, ignore_errors=True)

    def write(self, name, text):
        path = self.scratch / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def copy_model(self, source=MODEL_A):
        """A copy whose files can be changed."""
        target = self.scratch / "model"
        shutil.copytree(source, target)
        for path in target.iterdir():
            path.chmod(0o644)
        return target

    def check_done(self, done):
        self.assertEqual(done.code, 0, f"stderr: {done.err}\nstdout: {done.out[:2000]}")

    def check_fails(self, done, code, *words):
        """Ended with `code`, one line on stderr that holds all `words`, and nothing on stdout."""
        self.assertEqual(done.code, code, f"stderr: {done.err}\nstdout: {done.out[:2000]}")
        for word in words:
            self.assertIn(word, done.err)
        self.assertEqual(len(done.err.strip().splitlines()), 1, done.err)
        self.assertEqual(done.out, "")


def main():
    unittest.main(verbosity=2)
