"""A small `./dev soak`: what a server holds does not grow with the requests that it has served."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import harness

# A sanitizer keeps what was freed, so that memory says nothing there.
SANITIZED = os.environ.get("HOLDFAST_SANITIZE", "") not in ("", "OFF")


class Soak(unittest.TestCase):

    def test_two_thousand_requests_leave_memory_files_and_threads_as_they_were(self):
        with tempfile.TemporaryDirectory() as directory:
            out = pathlib.Path(directory, "soak.json")
            done = subprocess.run(
                [sys.executable, harness.ROOT / "tools/soak", "--requests", "2000", "--rounds",
                 "8", "--program", harness.PROGRAM, "--out", out],
                capture_output=True, text=True, timeout=500, check=False)
            result = json.loads(out.read_text())
        self.assertEqual(result["failures"], [], done.stdout)
        self.assertEqual(result["samples"][-1]["requests"], 2000)
        self.assertGreater(result["facts"]["vllm:prefix_cache_hits_total"], 0)
        for row in result["medians"]:
            if not (SANITIZED and row["what"] == "resident_bytes"):
                self.assertTrue(row["flat"], f"{row}\n{done.stdout}")


if __name__ == "__main__":
    harness.main()
