"""Each named fault: its own reason in the drill, a clean refusal or a poisoned engine that
recovers, and what it looks like in a census."""

import json

import harness
from harness import MODEL_A, MODEL_B, run

SHORT = ("--max-tokens", 12, "--prompt", "T")
# Fault, commit strategy, words of the reason. All are refused, and the old weights serve on.
REFUSED = [
    ("allocation-fails", "remap", ["allocation-fails"]),
    ("allocation-fails", "copy", ["allocation-fails"]),
    ("copy-fails", "copy", ["copy-fails"]),
    ("exchange-fails", "remap", ["exchange-fails", "arena"]),
    ("protect-fails", "remap", ["protect-fails"]),
    ("protect-fails", "stream", ["protect-fails"]),
    ("launch-fails", "remap", ["launch-fails", "derivation"]),
    ("short-read", "remap", ["short-read", "bytes of model.layers."]),
    ("source-dies", "copy", ["source-dies", "tensor model.layers."]),
    ("nan", "remap", ["corrupt", "element 0 is NaN; a weight is finite"]),
    ("bad-scale", "remap", ["corrupt", "e8m0 NaN 0xFF", "_scales"]),
    ("truncated", "remap", ["safetensors", "cut while it was open"]),
    ("replaced", "remap", ["safetensors", "replaced or changed since it was opened"]),
    ("cancelled", "remap", ["cancelled while staging"]),
    ("deadline", "remap", ["deadline_exceeded", "past its deadline"]),
]
# Nothing is left to put back.
POISONED = [
    ("device-lost", "remap", ["device-lost"]),
    ("device-lost", "copy", ["device-lost"]),
    ("source-dies", "stream", ["source-dies", "could not be put back"]),
]


class Inject(harness.TestCase):

    def test_a_fault_that_never_acted_is_neither_green_nor_red(self):
        for fault, commit, words in [("copy-fails", "remap", "makes no such call"),
                                     ("stale-alpha", "remap", "no slot that it would act on")]:
            with self.subTest(fault=fault):
                done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--inject", fault,
                           "--commit", commit, "--json", "-", *SHORT)
                report = json.loads(done.out)
                self.assertEqual((done.code, report["verdict"]), (2, "NOT INJECTED"))
                self.assertFalse(report["green"])
                self.assertIn("fault " + fault, report["not_injected"])
                self.assertIn(words, report["not_injected"])
                self.assertIsNone(report["tokens_match_pre_pressure"])
                self.assertIsNone(report["logprobs_match"])

    def drill(self, fault, commit):
        done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--inject", fault,
                   "--commit", commit, "--json", "-", *SHORT)
        self.assertEqual(done.code, 1, done.err)
        self.assertEqual(done.err, "")
        report = json.loads(done.out)
        self.assertEqual((report["verdict"], report["inject"]), ("RED", fault))
        self.assertEqual(report["moved"], 0)
        self.assertEqual(report["slots"]["moved"], 0)
        return report

    def check_only_reason(self, report, start, words):
        self.assertEqual(len(report["reasons"]), 1, report["reasons"])
        self.assertTrue(report["reasons"][0].startswith(start), report["reasons"])
        for word in words:
            self.assertIn(word, report["reasons"][0])
        self.assertTrue(report["recovered"])
        self.assertEqual(report["live_tokens_after"], 0)
        self.assertTrue(report["tokens_match_pre_pressure"])

    def test_refused_faults_leave_the_old_weights_serving(self):
        for fault, commit, words in REFUSED:
            with self.subTest(fault=fault, commit=commit):
                report = self.drill(fault, commit)
                self.check_only_reason(report, "the live reload was refused: ", words)
                self.assertTrue(report["refused_cleanly"])
                self.assertFalse(report["poisoned"])
                self.assertTrue(report["logprobs_match"])

    def test_poisoned_engine_emits_nothing_and_recovers(self):
        for fault, commit, words in POISONED:
            with self.subTest(fault=fault, commit=commit):
                report = self.drill(fault, commit)
                self.check_only_reason(report, "the live reload poisoned the engine: ", words)
                self.assertTrue(report["poisoned"])
                self.assertTrue(report["emits_nothing"])
                self.assertIsNone(report["refused_cleanly"])

    def test_garbage_is_committed_and_found_by_comparison(self):
        report = self.drill("garbage", "remap")
        self.assertIn("slots differ from a cold engine's (1)", "\n".join(report["reasons"]))
        self.assertIsNone(report["refusal"])

    def test_streamed_and_chosen_commits_are_green(self):
        for commit, strategy in (("stream", "stream"), ("auto", "remap")):
            with self.subTest(commit=commit):
                done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--commit", commit,
                           "--json", "-", *SHORT)
                self.check_done(done)
                report = json.loads(done.out)
                self.assertEqual((report["commit"], report["strategy"]), (commit, strategy))

    def test_text_says_that_the_refusal_was_clean(self):
        done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--inject", "nan", *SHORT)
        self.assertEqual(done.code, 1)
        self.assertIn("refused cleanly", done.out)
        self.assertIn("\nRED\n", done.out)

    def test_census_says_what_became_of_the_reload(self):
        for fault, words in (("nan", ["rolled_back", "NaN", "epoch 1"]),
                             ("device-lost", ["poisoned", "POISONED"]),
                             ("deadline", ["rolled_back", "deadline_exceeded"])):
            with self.subTest(fault=fault):
                done = run("census", "--model", MODEL_A, "--to", MODEL_B, "--inject", fault)
                self.assertEqual((done.code, done.err), (1, ""))
                for word in words:
                    self.assertIn(word, done.out)

    def test_census_shows_constants_that_lost_their_slots(self):
        done = run("census", "--model", MODEL_A, "--inject", "rebind-constants", "--json")
        self.assertEqual(done.code, 1)
        self.assertIn("committed", done.err)
        self.assertEqual(json.loads(done.out)["epoch"], 2)

    def test_stale_weights_look_sound_in_a_census(self):
        done = run("census", "--model", MODEL_A, "--to", MODEL_B, "--inject", "drop-sink")
        self.check_done(done)
        self.assertIn("with drop-sink: committed", done.out)

    def test_unknown_fault_and_to_alone_are_wrong_usage(self):
        self.check_fails(run("census", "--model", MODEL_A, "--inject", "gremlin"), 2, "gremlin")
        self.check_fails(run("census", "--model", MODEL_A, "--to", MODEL_B), 2, "--inject")

    def test_every_fault_of_the_help_is_tried(self):
        tried = {fault for fault, _, _ in REFUSED + POISONED} | {"garbage"}
        shown = run("drill", "--help").out
        for fault in tried:
            self.assertIn(fault, shown)
        done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--inject", "none")
        names = set(done.err.split("none of ")[1].split(" (")[0].split(", "))
        defects = {"rebind-constants", "stale-derived", "skip-layer", "drop-sink",
                   "rebuilt-workspace", "reregistered-scale", "stale-alpha", "stale-sort-index",
                   "stale-permutation", "shuffle-twice", "no-shuffle"}
        self.assertEqual(names - defects, tried)
        for defect in defects:
            self.assertIn(defect, shown)


if __name__ == "__main__":
    harness.main()
