"""What a scraper and a browser see: /metrics, /status.json, /census, and the status page.

The page is opened in headless Chromium where there is one; the rest needs the standard library.
"""

import re
import shutil
import subprocess
import tempfile
import unittest

import harness

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^{}]*\})? (\S+)$')


def families(text):
    """Name to type; every sample belongs to the family whose TYPE stands before it."""
    types, series, current = {}, set(), None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            current, kind = line.split(" ")[2:4]
            assert current not in types, f"TYPE twice: {line}"
            types[current] = kind
        elif not line.startswith("# HELP "):
            name, labels, value = SAMPLE.match(line).groups()
            float(value)
            stem = re.sub("_(bucket|sum|count)$", "", name)
            assert current in (name, stem), f"{line} under {current}"
            assert (name, labels) not in series, f"twice: {line}"
            series.add((name, labels))
    return types


class StatusTest(harness.TestCase):
    def reload(self, directory, version):
        self.ok("/update_weights", {"weight_dir": directory, "weight_version": version},
                listener="control")

    def status(self):
        return self.server.get("/status.json", listener="control").json()

    def test_metrics_are_of_this_server(self):
        before = self.server.metric("vllm:generation_tokens_total")
        self.ok("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 7, "ignore_eos": True})
        self.assertEqual(self.server.metric("vllm:generation_tokens_total"), before + 7)
        reply = self.server.get("/metrics")
        self.assertIn("version=0.0.4", reply.headers["content-type"])
        types = families(reply.text)
        self.assertEqual(types["vllm:iteration_tokens_total"], "histogram")
        self.assertEqual(types["vllm:num_requests_waiting"], "gauge")
        self.assertGreater(self.server.metric("vllm:time_to_first_token_seconds_count"), 0)
        self.assertGreater(self.server.metric("holdfast_step_seconds_count"), 0)

    def test_a_reload_shows_with_its_phases(self):
        commits = self.server.metric("holdfast_commits_total")
        epoch = self.status()["epoch"]
        self.reload(harness.MODEL_B, "status-b")
        status = self.status()
        self.assertEqual(status["state"], "serving")
        self.assertEqual(status["version"], "status-b")
        self.assertEqual(status["epoch"], epoch + 1)
        last = status["reloads"][-1]
        self.assertEqual((last["state"], last["slots_moved"]), ("committed", 0))
        self.assertGreater(last["pause_us"], 0)
        self.assertEqual(self.server.metric("holdfast_commits_total"), commits + 1)
        self.assertIn('version="status-b"', self.server.get("/metrics").text)

    def test_the_census_counts_every_slot(self):
        census = self.server.get("/census", listener="control").json()
        summary = self.server.get("/census?summary=true", listener="control").json()
        self.assertEqual(sum(one["slots"] for one in summary["classes"]), len(census["slots"]))
        self.assertEqual((summary["homeless"], summary["rehomed"]), ([], []))
        self.assertGreater(summary["captured_addresses"], 0)

    def test_the_public_listener_shows_metrics_and_no_more(self):
        for path in ("/", "/status.json", "/census"):
            self.assertEqual(self.server.get(path).status, 404, path)

    @unittest.skipUnless(CHROMIUM, "no Chromium here")
    def test_a_browser_shows_the_page(self):
        self.reload(harness.MODEL_A, "<i>in the browser</i>")
        with tempfile.TemporaryDirectory() as profile:
            page = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu",
                 f"--user-data-dir={profile}", "--virtual-time-budget=4000", "--dump-dom",
                 f"http://127.0.0.1:{self.server.ports['control']}/"],
                capture_output=True, timeout=harness.TIMEOUT_S, check=True).stdout.decode()
        self.assertRegex(page, r'id="state">serving<')
        self.assertIn("gptoss-tiny-A", page)
        self.assertIn("&lt;i&gt;in the browser&lt;/i&gt;", page)
        self.assertIn("committed", page)


if __name__ == "__main__":
    harness.main()
