"""A model whose experts are published one tensor each: pushes of one expert, by its number and by
its tensors' names, and of all of the model, end in the same weights."""

import unittest

import control_test
import harness
from control_test import all_tensors, pack

MODEL = str(harness.ROOT / "tests/golden/qwen3moe-tiny-bf16")
LAYER, EXPERT = 1, 2
PREFIX = f"model.layers.{LAYER}.mlp.experts.{EXPERT}."


def negated(tensor):
    """The same bf16 values with the other sign."""
    dtype, shape, data = tensor
    flipped = bytearray(data)
    for i in range(1, len(flipped), 2):
        flipped[i] ^= 0x80
    return dtype, shape, bytes(flipped)


class Experts(harness.TestCase):
    model = MODEL

    def setUp(self):
        self.assertEqual(self.post("/update_weights", {"weight_dir": MODEL}).status, 200)
        self.before = self.answer()
        tensors = all_tensors(MODEL)
        self.changed = {name: negated(tensors[name]) for name in tensors
                        if name.startswith(PREFIX)}
        self.assertEqual(len(self.changed), 3)
        self.whole = {**tensors, **self.changed}

    def post(self, path, body=None):
        return self.server.request("POST", path, body, listener="control")

    def upload(self, tensors):
        return self.server.request("POST", "/update_weights", pack(tensors),
                                   {"Content-Type": "application/octet-stream"},
                                   listener="control")

    def answer(self):
        reply = self.server.post("/inference/v1/generate", {
            "token_ids": control_test.PROMPT, "sampling_params": {
                "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 1}})
        self.assertEqual(reply.status, 200, reply.text[:500])
        choice = reply.json()["choices"][0]
        return choice["token_ids"], choice["logprobs"]

    def push(self, scope, uploads):
        reply = self.post("/start_weight_update", scope)
        self.assertEqual(reply.status, 200, reply.text)
        for tensors in uploads:
            reply = self.upload(tensors)
            self.assertEqual(reply.status, 200, reply.text)
        return self.post("/finish_weight_update")

    def test_one_expert_pushed_is_that_expert_in_a_whole_update(self):
        self.assertEqual(self.push({}, [self.whole]).status, 200)
        expected = self.answer()
        self.assertNotEqual(expected, self.before)
        for scope in ({"experts": [[LAYER, EXPERT]]}, {"names": list(self.changed)}):
            with self.subTest(scope=scope):
                self.post("/update_weights", {"weight_dir": MODEL})
                self.assertEqual(self.answer(), self.before)
                ends = self.push(scope, [{name: tensor} for name, tensor in self.changed.items()])
                self.assertEqual(ends.status, 200, ends.text)
                self.assertEqual(self.answer(), expected)

    def test_a_tensor_that_does_not_come_is_named_as_it_is_published(self):
        missing = PREFIX + "down_proj.weight"
        rest = {name: t for name, t in self.changed.items() if name != missing}
        ends = self.push({"experts": [[LAYER, EXPERT]]}, [rest])
        self.assertEqual(ends.status, 409, ends.text)
        self.assertIn(missing, ends.text)
        self.assertEqual(self.answer(), self.before)

    def test_another_experts_tensor_is_refused(self):
        self.post("/start_weight_update", {"experts": [[LAYER, EXPERT]]})
        other = PREFIX.replace(f".{EXPERT}.", ".3.") + "down_proj.weight"
        reply = self.upload({other: self.whole[other]})
        self.assertEqual(reply.status, 409, reply.text)
        self.post("/finish_weight_update")
        self.assertEqual(self.answer(), self.before)


if __name__ == "__main__":
    unittest.main()
