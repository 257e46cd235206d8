"""The drill: GREEN on the tiny models, RED under each injected defect, with the slots named."""

import json
import subprocess
import unittest

import harness
from harness import MODEL_A, MODEL_B, run

FIELDS = ["label", "total", "stable", "moved", "values_preserved", "values_intact_post_pressure",
          "registered_at_first_load", "registered_after_reload", "tokens_match_pre_pressure",
          "tokens_match_post_pressure", "replay_error", "moved_keys", "slots", "load_ms",
          "capture_ms", "stage_ms", "pause_us", "total_ms", "weights_bytes", "peak_bytes"]
SLOT_FIELDS = ["total", "stable", "moved", "values_preserved", "values_intact_post_pressure",
               "registered_at_first_load", "registered_after_reload", "moved_keys"]
CONSTANT_COUNT = 3 * 4  # alpha, beta and limit of 4 layers


class Drill(harness.TestCase):

    def drill(self, *flags, to=MODEL_B):
        done = run("drill", "--from", MODEL_A, "--to", to, "--json", "-", *flags)
        self.assertIn(done.code, (0, 1, 2), done.err)
        self.assertEqual(done.err, "")
        return done.code, json.loads(done.out)

    def check_green(self, code, report):
        self.assertEqual(report["reasons"], [])
        self.assertEqual((code, report["verdict"]), (0, "GREEN"))
        for field in FIELDS:
            self.assertIn(field, report)
        for field in SLOT_FIELDS:
            self.assertIn(field, report["slots"])
        for counts in (report, report["slots"]):
            self.assertEqual(counts["stable"], counts["total"])
            self.assertEqual((counts["moved"], counts["moved_keys"]), (0, []))
            self.assertTrue(counts["values_preserved"])
            self.assertTrue(counts["values_intact_post_pressure"])
            self.assertEqual(counts["registered_at_first_load"],
                             counts["registered_after_reload"])
        self.assertEqual(report["total"], CONSTANT_COUNT)
        self.assertEqual(report["registered_at_first_load"], CONSTANT_COUNT)
        self.assertGreater(report["slots"]["total"], CONSTANT_COUNT)
        for field in ("tokens_match_identity", "tokens_match_pre_pressure",
                      "tokens_match_post_pressure", "logprobs_match", "versions_match"):
            self.assertTrue(report[field], field)
        self.assertIsNone(report["replay_error"])
        self.assertGreater(report["live_tokens_before"], 0)
        self.assertGreater(report["live_tokens_after"], 0)
        self.assertGreaterEqual(report["peak_bytes"], report["weights_bytes"])

    def check_red(self, code, report, *words):
        self.assertEqual((code, report["verdict"]), (1, "RED"))
        self.assertTrue(report["reasons"])
        reasons = "\n".join(report["reasons"])
        for word in words:
            self.assertIn(word, reasons)

    def test_drill_is_green_under_remap(self):
        self.check_green(*self.drill("--label", "remap"))

    def test_drill_is_green_under_copy(self):
        self.check_green(*self.drill("--commit", "copy"))

    def test_drill_is_green_with_reference_kernels_and_own_prompts(self):
        self.check_green(*self.drill("--kernels", "reference", "--experts", "reference",
                                     "--max-tokens", 12, "--prompt", "ROMEO:\n"))

    def test_label_and_options_are_in_the_report(self):
        _, report = self.drill("--label", "first light", "--max-tokens", 12)
        self.assertEqual(report["label"], "first light")
        self.assertEqual((report["from"], report["to"]), (MODEL_A, MODEL_B))

    @unittest.skipIf("address" in harness.SANITIZE, "reads freed memory, see the next test")
    def test_constants_in_fresh_storage_are_red(self):
        code, report = self.drill("--inject", "rebind-constants")
        self.check_red(code, report, "swiglu_alpha")
        self.assertEqual(report["moved"], CONSTANT_COUNT)
        self.assertEqual(len(report["moved_keys"]), CONSTANT_COUNT)
        for kind in ("alpha", "beta", "limit"):
            self.assertTrue(any(kind in key for key in report["moved_keys"]))
        self.assertFalse(report["values_preserved"])
        self.assertEqual(report["registered_at_first_load"], CONSTANT_COUNT)
        self.assertEqual(report["registered_after_reload"], 0)
        self.assertFalse(report["tokens_match_identity"])

    @unittest.skipUnless("address" in harness.SANITIZE, "needs AddressSanitizer")
    def test_constants_in_fresh_storage_fault_under_the_sanitizer(self):
        done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--inject", "rebind-constants")
        self.assertNotEqual(done.code, 0)
        self.assertIn("use-after-poison", done.err)

    def test_stale_derived_weights_are_red(self):
        code, report = self.drill("--inject", "stale-derived")
        self.check_red(code, report, "slots differ from a cold engine's", "layers.")
        self.assertEqual(report["moved"], 0)

    def test_skipped_layer_is_red(self):
        code, report = self.drill("--inject", "skip-layer")
        self.check_red(code, report, "slots differ from a cold engine's", "layers.")
        self.assertFalse(report["tokens_match_pre_pressure"])

    def test_dropped_sinks_are_red(self):
        code, report = self.drill("--inject", "drop-sink")
        self.check_red(code, report, "slots differ from a cold engine's", "sinks")

    def test_a_fault_that_the_backend_has_no_slot_for_is_refused_by_name(self):
        code, report = self.drill("--experts", "cutlass", "--inject", "rebuilt-workspace")
        self.assertEqual((code, report["verdict"]), (2, "NOT INJECTED"))
        self.assertIn("no arena experts.sync", " ".join(report["reasons"]))

    def test_text_says_the_verdict_and_json_goes_to_its_file(self):
        path = self.scratch / "report.json"
        done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--max-tokens", 12, "--json", path)
        self.check_done(done)
        self.assertIn("\nGREEN\n", done.out)
        self.assertIn("weights, peak, extra of a reload", done.out)
        self.assertEqual(json.loads(path.read_text())["verdict"], "GREEN")
        self.assertEqual([p.name for p in self.scratch.iterdir()], ["report.json"])

    def test_incomplete_target_is_an_error_and_no_verdict(self):
        model = self.copy_model(MODEL_B)
        shard = next(model.glob("*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:-1])
        self.check_fails(run("drill", "--from", MODEL_A, "--to", model), 1, shard.name)

    def test_too_few_tokens_for_a_live_reload_are_an_error(self):
        done = run("drill", "--from", MODEL_A, "--to", MODEL_B, "--max-tokens", 2)
        self.check_fails(done, 1, "max_tokens is 2")


class Chat(harness.TestCase):

    def test_piped_messages_get_a_reply_each(self):
        done = run("chat", "--model", MODEL_A, "--json", "--max-tokens", 8, "--date", "2025-01-01",
                   stdin="What says the duke?\n\n/reset\nAnd the king?\n/quit\nunheard\n")
        self.check_done(done)
        replies = done.lines()
        self.assertEqual(len(replies), 2)
        for reply in replies:
            self.assertIn(reply["finish_reason"], ("stop", "length"))
            self.assertLessEqual(reply["tokens"], 8)
            self.assertEqual(reply["epoch"], 1)
        self.assertEqual(done.err, "")

    def test_plain_replies_show_their_channel(self):
        done = run("chat", "--model", MODEL_A, "--max-tokens", 8, "--date", "2025-01-01",
                   "--effort", "low", stdin="What says the duke?\n")
        self.check_done(done)
        self.assertTrue(done.out.startswith("["), done.out)
        self.assertNotIn("\x1b", done.out)

    def test_conversation_longer_than_the_context_is_an_error(self):
        done = run("chat", "--model", MODEL_A, stdin="word " * 3000 + "\n")
        self.assertEqual(done.code, 1)
        self.assertIn("the context holds", done.err)

    def test_wrong_date_is_an_error(self):
        self.check_fails(run("chat", "--model", MODEL_A, "--date", "today"), 1, "today",
                         "YYYY-MM-DD")


if __name__ == "__main__":
    harness.main()
