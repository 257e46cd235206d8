"""`inspect` and `census` on good and on broken model directories."""

import json
import struct

import harness
from harness import MODEL_A, MODEL_B, run


class Inspect(harness.TestCase):

    def edit_json(self, path, edit):
        data = json.loads(path.read_text())
        edit(data)
        path.write_text(json.dumps(data))

    def rename_tensor(self, model, old, new):
        """The same bytes under another name of the same length, in index and header."""
        assert len(old) == len(new)
        index = model / "model.safetensors.index.json"
        file = model / json.loads(index.read_text())["weight_map"][old]
        for path in (index, file):
            path.write_bytes(path.read_bytes().replace(f'"{old}"'.encode(), f'"{new}"'.encode()))

    def test_good_models_are_complete(self):
        for model in (MODEL_A, MODEL_B, harness.MODEL_A_BF16):
            with self.subTest(model=model):
                done = run("inspect", model, "--json", "--tensors")
                self.check_done(done)
                report = json.loads(done.out)
                self.assertTrue(report["complete"])
                self.assertEqual(report["model_type"], "gpt_oss")
                self.assertEqual(report["missing"] + report["unknown"] + report["mismatched"], [])
                self.assertEqual(report["tokenizer"], "1024 tokens")
                self.assertEqual(report["scheme"], "bf16" if "bf16" in model else "mxfp4")
                self.assertEqual(len(report["tensors"]), report["tensor_count"])
                self.assertEqual(sum(t["bytes"] for t in report["tensors"]),
                                 report["total_bytes"])
                self.assertEqual(sum(report["bytes_by_dtype"].values()), report["total_bytes"])

    def test_table_names_the_model_and_every_tensor(self):
        done = run("inspect", MODEL_A, "--tensors")
        self.check_done(done)
        for word in ("gpt_oss", "mxfp4", "lm_head.weight", "complete: this model can be loaded"):
            self.assertIn(word, done.out)

    def test_missing_and_unknown_tensors_are_listed_together(self):
        model = self.copy_model()
        old = "model.layers.2.self_attn.sinks"
        new = "model.layers.2.self_attn.sinkz"
        self.rename_tensor(model, old, new)
        done = run("inspect", model, "--json")
        self.assertEqual(done.code, 1, done.err)
        report = json.loads(done.out)
        self.assertFalse(report["complete"])
        self.assertEqual(len(report["missing"]), 1)
        self.assertIn(old, report["missing"][0])
        self.assertEqual(len(report["unknown"]), 1)
        self.assertIn(new, report["unknown"][0])
        self.assertIn(old, report["unknown"][0])  # the nearest known name
        table = run("inspect", model)
        self.assertEqual(table.code, 1)
        self.assertIn("NOT complete", table.out)
        self.check_fails(run("generate", "--model", model, "--prompt", "x"), 1, "sinks")

    def test_tokenizer_larger_than_the_embedding_is_a_mismatch(self):
        model = self.copy_model()
        def add_token(data):
            data["added_tokens"].append(dict(data["added_tokens"][-1], id=1024, content="<|x|>"))
        self.edit_json(model / "tokenizer.json", add_token)
        done = run("inspect", model, "--json")
        self.assertEqual(done.code, 1, done.err)
        self.assertEqual(len(json.loads(done.out)["mismatched"]), 1)
        self.assertIn("1024", json.loads(done.out)["mismatched"][0])
        self.check_fails(run("generate", "--model", model, "--prompt", "x"), 1, "tokenizer", "1024")

    def test_missing_tokenizer_is_said(self):
        model = self.copy_model()
        (model / "tokenizer.json").unlink()
        done = run("inspect", model)
        self.check_done(done)
        self.assertIn("none, token ids only", done.out)

    def test_without_a_tokenizer_ids_are_served_and_text_is_refused_with_one_message(self):
        line = {"prompt_ids": [5, 6, 7], "max_tokens": 6}
        with_text = run("generate", "--model", MODEL_A, "--input", "-", stdin=json.dumps(line))
        self.check_done(with_text)
        model = self.copy_model()
        (model / "tokenizer.json").unlink()
        done = run("generate", "--model", model, "--input", "-", stdin=json.dumps(line))
        self.check_done(done)
        expected = with_text.lines()[0]
        del expected["text"]
        self.assertEqual(done.lines()[0], expected)
        words = ("tokenizer.json does not exist", "prompt_ids")
        for command in (["generate", "--prompt", "x"], ["chat"],
                        ["generate", "--input", self.write("line", json.dumps(line)), "--stop", "x",
                         "--max-tokens", 1]):
            with self.subTest(command=command):
                done = run(*command, "--model", model)
                self.assertEqual(done.code, 1, done.err)
                for word in words:
                    self.assertIn(word, done.err + done.out)
        self.check_done(run("drill", "--from", model, "--to", model))
        self.check_fails(run("drill", "--from", model, "--to", model, "--prompt", "x"), 1,
                         "tokenizer.json")

    def test_each_broken_directory_gives_one_error(self):
        shard = "model-00001-of-00002.safetensors"
        def set_header_length(path, length):
            data = bytearray(path.read_bytes())
            struct.pack_into("<Q", data, 0, length)
            path.write_bytes(data)
        breaks = {
            "truncated shard": (lambda m: (m / shard).write_bytes((m / shard).read_bytes()[:-1]),
                                [shard]),
            "header of 2^63 bytes": (lambda m: set_header_length(m / shard, 2**63), [shard]),
            "missing shard": (lambda m: (m / shard).unlink(), [shard]),
            "no config": (lambda m: (m / "config.json").unlink(), ["config.json"]),
            "0 layers": (lambda m: self.edit_json(
                m / "config.json", lambda d: d.update(num_hidden_layers=0)), ["num_hidden_layers"]),
            "2^40 experts": (lambda m: self.edit_json(
                m / "config.json", lambda d: d.update(num_local_experts=2**40)),
                             ["num_local_experts", str(2**40)]),
            "unknown model": (lambda m: self.edit_json(
                m / "config.json", lambda d: d.update(model_type="llama")), ["llama", "gpt_oss"]),
        }
        for name, (spoil, words) in breaks.items():
            with self.subTest(name=name):
                model = self.copy_model()
                spoil(model)
                self.check_fails(run("inspect", model), 1, *words)
                self.check_fails(run("generate", "--model", model, "--prompt", "x"), 1, *words)
                harness.shutil.rmtree(model)


class Census(harness.TestCase):

    def test_every_captured_address_has_a_home(self):
        done = run("census", "--model", MODEL_A, "--json")
        self.check_done(done)
        census = json.loads(done.out)
        self.assertEqual(census["epoch"], 1)
        self.assertEqual(census["homeless"], 0)
        names = {slot["name"] for slot in census["slots"]}
        self.assertTrue(census["addresses"])
        for address in census["addresses"]:
            self.assertIn(address["home"], names)
        constants = [n for n in names if "swiglu" in n]
        self.assertEqual(len(constants), 3 * 4)  # alpha, beta, limit of 4 layers

    def test_graphs_show_each_node_its_pointers_and_their_slots(self):
        done = run("census", "--model", MODEL_A, "--graphs", "--json")
        self.check_done(done)
        census = json.loads(done.out)
        figures = census["figures"]
        pointers = [p for node in census["nodes"] for p in node["pointers"]]
        self.assertEqual(figures["nodes"], len(census["nodes"]))
        self.assertEqual(figures["pointers"], len(pointers))
        self.assertEqual((figures["homeless"], figures["unaudited"]), (0, 0))
        self.assertGreater(figures["words"], figures["pointers"])
        # What the graphs hold is what the captures have declared, and lies where the slots lie.
        declared = json.loads(run("census", "--model", MODEL_A, "--json").out)
        roles = {a["role"] for a in declared["addresses"]}
        slots = {s["name"]: s for s in declared["slots"]}
        for pointer in pointers:
            self.assertIn(pointer["role"], roles)
            self.assertLess(pointer["offset"], slots[pointer["slot"]]["bytes"])
        self.assertEqual({a["home"] for a in declared["addresses"]}, {p["slot"] for p in pointers})
        table = run("census", "--model", MODEL_A, "--graphs")
        self.check_done(table)
        for word in ("step of 1 rows", "swiglu_alpha + 0"):
            self.assertIn(word, table.out)
        last = table.out.splitlines()[-1]
        for name in ("graphs", "nodes", "words", "pointers", "unaudited"):
            self.assertIn(f"{name} {figures[name]},", last)

    def test_graphs_of_an_engine_with_rebound_constants_point_into_no_slot(self):
        done = run("census", "--model", MODEL_A, "--graphs", "--inject", "rebind-constants")
        self.assertEqual(done.code, 1, done.err)
        self.assertNotIn("in no slot 0,", done.out.splitlines()[-1])

    def test_table_counts_classes_and_lists_slots(self):
        done = run("census", "--model", MODEL_A, "--verbose")
        self.check_done(done)
        for word in ("weight", "derived", "constant", "state", "swiglu_alpha", "without a home 0"):
            self.assertIn(word, done.out)

    def test_census_of_a_copy_commit_equals_that_of_a_remap(self):
        digests = []
        for commit in ("remap", "copy"):
            done = run("census", "--model", MODEL_A, "--json", "--commit", commit)
            self.check_done(done)
            digests.append({s["name"]: s["digest"] for s in json.loads(done.out)["slots"]})
        self.assertEqual(digests[0], digests[1])


if __name__ == "__main__":
    harness.main()
