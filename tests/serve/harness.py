"""Starts `holdfast serve` on a tiny model and talks HTTP to it. Standard library only."""

import http.client
import json
import os
import pathlib
import re
import subprocess
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("HOLDFAST_PROGRAM", str(ROOT / "build/dev/cli/holdfast"))
MODEL_A = str(ROOT / "models/gptoss-tiny-A")
MODEL_B = str(ROOT / "models/gptoss-tiny-B")
MODEL_NAME = "gptoss-tiny-A"
START_S = 120
TIMEOUT_S = 120


class Reply:
    """Status, headers (lower case) and body of an answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.text = response.read().decode("utf-8")

    def json(self):
        return json.loads(self.text)


class Server:
    """A running server; a context manager that ends it by its process."""

    def __init__(self, *flags, model=MODEL_A):
        self.command = [PROGRAM, "serve", model, "--port", "0", "--control-port", "0", *flags]
        self.lines = []
        self.process = None
        self.ports = {}

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        if not ready.wait(START_S) or not self.ports:
            self.__exit__()
            raise RuntimeError("not ready: " + "\n".join(self.lines))
        return self

    def _read(self, ready):
        for raw in self.process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            self.lines.append(line)
            found = re.findall(r"http://127\.0\.0\.1:(\d+)", line)
            if found and "ready" in line and not self.ports:
                self.ports = {"public": int(found[0]), "control": int(found[-1])}
                ready.set()
        ready.set()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
        self.process.stdout.close()

    def connect(self, listener="public"):
        return http.client.HTTPConnection("127.0.0.1", self.ports[listener], timeout=TIMEOUT_S)

    def request(self, method, path, body=None, headers=None, listener="public"):
        """`body`: an object that is sent as JSON, or bytes."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection = self.connect(listener)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json",
                                                    **(headers or {})})
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def metric(self, name):
        """The sum of a metric's samples."""
        text = self.get("/metrics").text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if re.match(re.escape(name) + r"[{ ]", line))

    def events(self, path, body):
        """The objects of a stream, which must end with [DONE]."""
        reply = self.post(path, body)
        if reply.status != 200 or not reply.headers["content-type"].startswith("text/event-stream"):
            raise AssertionError(f"no stream: {reply.status} {reply.text[:500]}")
        events = reply.text.split("\n\n")
        if events[-2:] != ["data: [DONE]", ""]:
            raise AssertionError(f"no end: {events[-2:]}")
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def generate(lines, model=MODEL_A, flags=()):
    """What `holdfast generate` makes of JSON lines: an independent way to the same engine."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([PROGRAM, "generate", "--model", model, "--input", "-", *flags],
                          input=text.encode(), capture_output=True, timeout=TIMEOUT_S, check=True)
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def wait_until(condition, what):
    """Polls, since a server says nothing of its own accord; `what` is what did not come true."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {TIMEOUT_S} s: {what}")
        time.sleep(0.02)


class TestCase(unittest.TestCase):
    """A test with one server for all methods of a class; `flags` are its own."""

    flags = ()
    model = MODEL_A
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.flags, model=cls.model)
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def ok(self, path, body, **more):
        reply = self.server.post(path, body, **more)
        self.assertEqual(reply.status, 200, reply.text)
        return reply.json()

    def refused(self, path, body, param, status=400):
        """One error in OpenAI's form that names `param`."""
        reply = self.server.post(path, body)
        self.assertEqual(reply.status, status, f"{body}: {reply.text}")
        error = reply.json()["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["code"], status)
        self.assertEqual(error["param"], param, f"{body}: {error}")
        self.assertTrue(error["message"])
        return error


def main():
    unittest.main(verbosity=2)
