"""What a person sees on a terminal: progress, chat's prompt, Ctrl-C."""

import os
import pty
import select
import signal
import subprocess
import time

import harness
from harness import MODEL_A


class Terminal:
    """A program whose stdin, stdout and stderr are one terminal."""

    def __init__(self, *arguments):
        self.fd, child = pty.openpty()
        self.process = subprocess.Popen([harness.PROGRAM, *map(str, arguments)], stdin=child,
                                        stdout=child, stderr=child, start_new_session=True)
        os.close(child)
        self.seen = b""

    def read_until(self, word, since=0):
        """Reads until `word` was seen behind the first `since` bytes, or the program has ended.
        Returns where the word ends in what was seen."""
        deadline = time.monotonic() + harness.TIMEOUT_S
        while word not in self.seen[since:]:
            ready, _, _ = select.select([self.fd], [], [], deadline - time.monotonic())
            if not ready:
                raise AssertionError(f"{word!r} was not shown; shown was {self.seen!r}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the program has closed its end
                data = b""
            if not data:
                break
            self.seen += data
        found = self.seen.find(word, since)
        return len(self.seen) if found < 0 else found + len(word)

    def type(self, text):
        os.write(self.fd, text)

    def end(self):
        self.read_until(b"\0 never shown")
        code = self.process.wait(harness.TIMEOUT_S)
        os.close(self.fd)
        return code


class OnATerminal(harness.TestCase):

    def test_progress_is_shown_and_taken_away(self):
        terminal = Terminal("generate", "--model", MODEL_A, "--prompt", "KING:\n", "--max-tokens",
                            4)
        self.assertEqual(terminal.end(), 0)
        self.assertIn(b"load", terminal.seen)
        self.assertIn(b"\r\x1b[K", terminal.seen)
        self.assertIn(b"4 tokens in", terminal.seen)

    def test_quiet_shows_the_result_alone(self):
        terminal = Terminal("generate", "--model", MODEL_A, "--prompt", "KING:\n", "--max-tokens",
                            4, "-q")
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn(b"\x1b", terminal.seen)
        self.assertNotIn(b"holdfast", terminal.seen)

    def test_chat_prompts_and_quits(self):
        terminal = Terminal("chat", "--model", MODEL_A, "--max-tokens", 12)
        terminal.read_until(b"> ")
        terminal.type(b"Hello\n")
        shown = terminal.read_until(b"[final]")
        terminal.read_until(b"> ", since=shown)
        terminal.type(b"/quit\n")
        self.assertEqual(terminal.end(), 0)

    def test_interrupt_ends_a_reply_and_then_the_chat(self):
        terminal = Terminal("chat", "--model", MODEL_A, "--max-tokens", 100000, "--temperature", 1)
        terminal.read_until(b"> ")
        # A reply may end by itself before the interrupt comes: then it ends the chat at once.
        terminal.type(b"Hello\n")
        terminal.read_until(b"[final]")
        for _ in range(2):
            if terminal.process.poll() is None:
                os.kill(terminal.process.pid, signal.SIGINT)
                shown = len(terminal.seen)
                terminal.read_until(b"> ", since=shown)
        self.assertEqual(terminal.end(), 130)


if __name__ == "__main__":
    harness.main()
