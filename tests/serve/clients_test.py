"""Clients that nobody here wrote, on the command line and from PyPI: curl and prometheus_client's
parser. Each is skipped where it is not installed; `./dev clients` installs them."""

import json
import shutil
import subprocess
import unittest

import harness
from harness import MODEL_B, MODEL_NAME

try:
    from prometheus_client import parser
except ImportError:
    parser = None

CURL = shutil.which("curl")


@unittest.skipUnless(CURL, "curl is not installed")
class Curl(harness.TestCase):

    def curl(self, listener, path, *more):
        url = f"http://127.0.0.1:{self.server.ports[listener]}{path}"
        done = subprocess.run([CURL, "-sS", "--max-time", "60", *more, url], capture_output=True,
                              check=True, timeout=90)
        return done.stdout.decode()

    def test_a_completion_and_a_stream(self):
        body = json.dumps({"model": MODEL_NAME, "prompt": "To be", "max_tokens": 8,
                           "temperature": 0})
        whole = json.loads(self.curl("public", "/v1/completions", "-d", body))
        self.assertEqual(whole["usage"]["completion_tokens"], 8)
        stream = self.curl("public", "/v1/completions", "-N", "-d",
                           body.replace("{", '{"stream": true, ', 1))
        parts = [json.loads(line[6:]) for line in stream.split("\n\n")
                 if line.startswith("data: {")]
        self.assertEqual("".join(c["text"] for p in parts for c in p["choices"]),
                         whole["choices"][0]["text"])
        self.assertTrue(stream.rstrip().endswith("data: [DONE]"))

    def test_uploads_chunked_with_100_continue_and_by_length(self):
        self.curl("control", "/start_weight_update", "-X", "POST")
        shards = [f"{MODEL_B}/model-0000{i}-of-00002.safetensors" for i in (1, 2)]
        kind = ("-H", "Content-Type: application/octet-stream", "-X", "POST")
        chunked = self.curl("control", "/update_weights", *kind, "-T", shards[0])
        self.assertEqual(json.loads(chunked), {"message": "Weights updated"})
        whole = self.curl("control", "/update_weights", *kind, "-H", "Expect: 100-continue",
                          "--data-binary", "@" + shards[1])
        self.assertEqual(json.loads(whole), {"message": "Weights updated"})
        done = self.curl("control", "/finish_weight_update", "-d", '{"weight_version": "c"}')
        self.assertEqual(json.loads(done), {"message": "Weight update finished"})
        self.assertEqual(json.loads(self.curl("control", "/weight_info")), {"weight_version": "c"})

    def test_an_error_is_openais(self):
        reply = json.loads(self.curl("public", "/v1/completions", "-d", '{"prompt": 7}'))
        self.assertEqual(reply["error"]["code"], 400)


@unittest.skipIf(parser is None, "prometheus_client is not installed")
class Prometheus(harness.TestCase):

    def test_the_metrics_are_read_and_count(self):
        self.ok("/v1/completions", {"model": MODEL_NAME, "prompt": [1, 2, 3], "max_tokens": 5})
        text = self.server.get("/metrics").text
        families = {f.name: f for f in parser.text_string_to_metric_families(text)}
        tokens = families["vllm:generation_tokens"].samples[0]
        self.assertGreaterEqual(tokens.value, 5)
        self.assertEqual(families["vllm:time_to_first_token_seconds"].type, "histogram")
        self.assertTrue(any(name.startswith("holdfast_") for name in families))


if __name__ == "__main__":
    unittest.main(verbosity=2)
