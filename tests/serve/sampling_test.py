"""What sampling fields do to tokens and log probabilities, through HTTP: raw and processed, ranks,
prompts, penalties, biases, ends that are put off, and where positions were routed."""

import base64
import math
import struct

import harness

IDS = [84, 111, 271, 300, 12]
VOCAB, LAYERS, EXPERTS, EXPERTS_PER_TOKEN = 1024, 4, 8, 2
NEVER = -9999.0  # how JSON says minus infinity


def body(**sampling):
    return {"token_ids": IDS, "sampling_params": {"max_tokens": 8, "temperature": 0, **sampling}}


class SamplingFields(harness.TestCase):
    flags = ("--max-logprobs", str(VOCAB))

    def choice(self, **sampling):
        return self.ok("/inference/v1/generate", body(**sampling))["choices"][0]

    def tokens(self, **sampling):
        return self.choice(**sampling)["token_ids"]

    def tops(self, **sampling):
        """For each token: {id: log probability}, in the order of the reply."""
        content = self.choice(**sampling)["logprobs"]["content"]
        return [{top["token_id"]: top["logprob"] for top in entry["top_logprobs"]}
                for entry in content]

    def test_the_likeliest_come_in_order_with_ranks(self):
        for mode in ("raw", "processed"):
            content = self.choice(logprobs=-1, logprobs_mode=mode, temperature=1.5, seed=3,
                                  max_tokens=3)["logprobs"]["content"]
            for entry in content:
                top = [(-t["logprob"], t["token_id"]) for t in entry["top_logprobs"]]
                self.assertEqual(len(top), VOCAB)
                self.assertEqual([logprob for logprob, _ in top],
                                 sorted(logprob for logprob, _ in top))
                place = [token for _, token in top].index(entry["token_id"])
                self.assertEqual(entry["rank"], place + 1)
                self.assertAlmostEqual(sum(math.exp(-logprob) for logprob, _ in top), 1, places=4)

    def test_raw_is_the_models_and_processed_is_what_was_drawn_from(self):
        drawn = {"temperature": 0.5, "top_k": 3, "seed": 1, "logprobs": -1, "max_tokens": 1}
        plain = self.tops(logprobs=-1, max_tokens=1)[0]
        raw = self.tops(**drawn)[0]
        self.assertEqual(raw, plain)
        processed = self.tops(**drawn, logprobs_mode="processed")[0]
        kept = [token for token, logprob in processed.items() if logprob != NEVER]
        self.assertEqual(kept, list(plain)[:3])
        total = sum(math.exp(plain[token] / 0.5) for token in kept)
        for token in kept:
            self.assertAlmostEqual(processed[token], plain[token] / 0.5 - math.log(total),
                                   places=4)

    def test_prompt_tokens_have_log_probability_rank_and_the_likeliest(self):
        reply = self.ok("/inference/v1/generate", body(prompt_logprobs=2, max_tokens=1))
        every = self.ok("/inference/v1/generate", body(prompt_logprobs=-1, max_tokens=1))
        self.assertIsNone(reply["prompt_logprobs"][0])
        for token, entry, whole in zip(IDS[1:], reply["prompt_logprobs"][1:],
                                       every["prompt_logprobs"][1:]):
            own = entry[str(token)]
            self.assertEqual(len(whole), VOCAB)
            higher = sum(e["logprob"] > own["logprob"] for e in whole.values())
            self.assertEqual(own["rank"], higher + 1)
            others = [e for key, e in entry.items() if e["rank"] <= 2]
            self.assertEqual(sorted(e["rank"] for e in others), [1, 2])
            self.assertEqual(own, whole[str(token)])

    def test_a_bias_forces_and_forbids_a_token(self):
        self.assertEqual(self.tokens(logit_bias={"77": 100}), [77] * 8)
        first = self.tokens()[0]
        self.assertNotIn(first, self.tokens(logit_bias={str(first): -100}))

    def test_only_allowed_tokens_come(self):
        allowed = [5, 6, 700]
        got = self.tokens(allowed_token_ids=allowed, temperature=100, max_tokens=64, seed=2)
        self.assertEqual(set(got), set(allowed))

    def test_penalties_change_what_is_said_again(self):
        allowed = list(range(40, 60))
        plain = self.tokens(allowed_token_ids=allowed, max_tokens=40, ignore_eos=True)
        self.assertLess(len(set(plain)), 20)
        for field in ("frequency_penalty", "presence_penalty"):
            got = self.tokens(allowed_token_ids=allowed, max_tokens=40, ignore_eos=True,
                              **{field: 2})
            self.assertGreater(len(set(got)), len(set(plain)), field)
        repeated = self.tokens(allowed_token_ids=allowed, max_tokens=40, ignore_eos=True,
                               repetition_penalty=3)
        self.assertNotEqual(repeated, plain)

    def test_ends_wait_for_min_tokens(self):
        greedy = self.tokens()
        stop = greedy[0]
        self.assertEqual(self.tokens(stop_token_ids=[stop]), [stop])
        later = self.tokens(stop_token_ids=[stop], min_tokens=5)
        self.assertGreaterEqual(len(later), 5)
        self.assertNotIn(stop, later[:5])
        self.assertEqual(
            len(self.tokens(stop_token_ids=[77], logit_bias={"77": 100}, min_tokens=3)), 4)
        self.refused("/inference/v1/generate", body(min_tokens=9), "min_tokens")

    def test_routed_experts_are_the_same_alone_and_after_others(self):
        def routed():
            npy = base64.b64decode(self.ok("/inference/v1/generate", {
                **body(), "return_routed_experts": True})["choices"][0]["routed_experts"])
            rows = len(IDS) + 8 - 1
            count = rows * LAYERS * EXPERTS_PER_TOKEN
            self.assertIn(f"({rows}, {LAYERS}, {EXPERTS_PER_TOKEN})".encode(), npy[:128])
            return struct.unpack(f"<{count}h", npy[128:])
        first = routed()
        for pair in zip(first[::2], first[1::2]):
            self.assertTrue(all(0 <= expert < EXPERTS for expert in pair))
            self.assertNotEqual(*pair)
        self.tokens()  # leaves a prefix that must not be used
        self.assertEqual(routed(), first)


if __name__ == "__main__":
    harness.main()
