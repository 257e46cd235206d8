"""`plan` and `verify`: what a reload would do or why it is refused, and what weights are."""

import json

import harness
from harness import MODEL_A, MODEL_B, run

DIGEST = "0123456789abcdef" * 2


class Plan(harness.TestCase):

    def plan(self, *flags, to=MODEL_B):
        return run("plan", "--model", MODEL_A, "--to", to, *flags)

    def test_text_states_every_strategy_with_peaks_and_pause(self):
        done = self.plan()
        self.check_done(done)
        for words in ("epoch        1 -> 2 by remap (chosen)", "strategies:", "remap  ", "copy  ",
                      "stream ", "on the device", "on the host", " us"):
            self.assertIn(words, done.out)

    def test_json_names_the_strategy_that_was_asked_for(self):
        for commit in ("remap", "copy", "stream"):
            with self.subTest(commit=commit):
                done = self.plan("--commit", commit, "--json")
                self.check_done(done)
                plan = json.loads(done.out)
                self.assertEqual((plan["strategy"], plan["strategy_was_chosen"]), (commit, False))

    def test_limits_choose_the_strategy(self):
        done = self.plan("--max-extra-bytes", 100000, "--json")
        self.check_done(done)
        plan = json.loads(done.out)
        self.assertEqual((plan["strategy"], plan["strategy_was_chosen"]), ("stream", True))

    def test_limits_that_no_strategy_keeps_are_refused_with_all_costs(self):
        self.check_fails(self.plan("--max-extra-bytes", 5, "--max-pause-us", 1), 1,
                         "remap needs", "copy needs", "stream needs")

    def test_parts_keep_the_rest(self):
        done = self.plan("--layers", "0,2", "--experts", "1/3,1/4", "--json")
        self.check_done(done)
        plan = json.loads(done.out)
        self.assertEqual(plan["scope"], "layers 0, 2; experts 1/3, 1/4")
        self.assertGreater(plan["preserved_bytes"], 0)
        done = self.plan("--parameters", "lm_head.weight", "model.norm.weight")
        self.check_done(done)
        self.assertIn("lm_head.weight", done.out)

    def test_refusals_name_both_sides(self):
        self.check_fails(self.plan("--layers", 77), 1, "layer 77", "4 layers")
        model = self.copy_model(MODEL_B)
        config = json.loads((model / "config.json").read_text())
        config["rope_theta"] = 777.0
        (model / "config.json").write_text(json.dumps(config))
        self.check_fails(self.plan(to=model), 1, "rope", "777")
        self.check_done(self.plan("--apply-constants", to=model))

    def test_declared_casts_are_accepted_and_unknown_dtypes_are_not(self):
        self.check_done(self.plan("--cast", "lm_head.weight:f32:bf16"))
        self.check_fails(self.plan("--cast", "lm_head.weight:f32:f7"), 1, "f7", "bf16")

    def test_malformed_flags_are_wrong_usage(self):
        for flags, word in ((("--experts", "1"), "LAYER/EXPERT"), (("--experts", "a/b"), "a/b"),
                            (("--cast", "x:f32"), "NAME:FROM:TO"), (("--layers", "-1"), "-1"),
                            (("--commit", "hope"), "hope")):
            with self.subTest(flags=flags):
                self.check_fails(self.plan(*flags), 2, word)

    def test_image_without_a_streamed_commit_is_refused(self):
        self.check_fails(self.plan("--commit", "copy", "--undo-image"), 1, "undo_image", "copy")
        done = self.plan("--commit", "stream", "--undo-image", "--json")
        self.check_done(done)
        self.assertTrue(json.loads(done.out)["undo_image"])


class Verify(harness.TestCase):

    def test_loaded_weights_are_as_committed(self):
        done = run("verify", "--model", MODEL_A, "--json")
        self.check_done(done)
        report = json.loads(done.out)
        self.assertTrue(report["verified"])
        self.assertEqual(report["defects"], [])
        self.assertGreater(report["slots"], 0)
        self.assertGreater(report["bytes"], 0)
        self.assertNotIn("source", report)

    def test_written_digests_hold_for_their_checkpoint_and_no_other(self):
        path = self.scratch / "digests.json"
        self.check_done(run("verify", "--model", MODEL_A, "--write-digests", path))
        digests = json.loads(path.read_text())
        inspected = json.loads(run("inspect", MODEL_A, "--json").out)
        self.assertEqual(len(digests), inspected["tensor_count"])
        done = run("verify", "--model", MODEL_A, "--digests", path, "--json")
        self.check_done(done)
        self.assertEqual(json.loads(done.out)["source"],
                         {"tensors": len(digests), "unlisted": 0, "defects": []})
        done = run("verify", "--model", MODEL_B, "--digests", path)
        self.assertEqual((done.code, done.err), (1, ""))
        self.assertIn("lm_head.weight", done.out)
        self.assertIn(digests["lm_head.weight"], done.out)

    def test_one_flipped_bit_of_a_file_is_one_tensor(self):
        path = self.scratch / "digests.json"
        self.check_done(run("verify", "--model", MODEL_A, "--write-digests", path))
        model = self.copy_model()
        shard = sorted(model.glob("*.safetensors"))[-1]
        data = bytearray(shard.read_bytes())
        data[-2] ^= 1  # the low byte of a bf16: a weight still
        shard.write_bytes(data)
        done = run("verify", "--model", model, "--digests", path, "--json")
        self.assertEqual(done.code, 1, done.err)
        report = json.loads(done.out)
        self.assertEqual(len(report["source"]["defects"]), 1)
        self.assertEqual(report["defects"], [])

    def test_missing_and_unlisted_tensors_are_told_apart(self):
        path = self.write("digests.json", json.dumps({"no.such.tensor": DIGEST}))
        done = run("verify", "--model", MODEL_A, "--digests", path, "--json")
        self.assertEqual(done.code, 1, done.err)
        source = json.loads(done.out)["source"]
        self.assertEqual((source["tensors"], len(source["defects"])), (1, 1))
        self.assertGreater(source["unlisted"], 0)
        self.assertIn("no.such.tensor", source["defects"][0])

    def test_malformed_digest_files_are_errors(self):
        for text in ("", "[]", "{}", "{\"a\": 1}", "{\"a\": \"xyz\"}",
                     "{\"a\": [[[\"b\"]]]}", "{\"a\""):
            with self.subTest(text=text):
                path = self.write("digests.json", text)
                self.check_fails(run("verify", "--model", MODEL_A, "--digests", path), 1,
                                 "digests.json")
        self.check_fails(run("verify", "--model", MODEL_A, "--digests", self.scratch / "none"), 1,
                         "none")


if __name__ == "__main__":
    harness.main()
