"""/inference/v1/generate (vLLM) and /generate (SGLang): token ids in, token ids out."""

import base64
import concurrent.futures
import struct

import harness

IDS = [84, 111, 271, 300, 12]
LAYERS, EXPERTS_PER_TOKEN = 4, 2


def tokens_body(**sampling):
    return {"token_ids": IDS, "sampling_params": {"max_tokens": 8, "temperature": 0, **sampling}}


def sglang_body(more=None, **sampling):
    return {"input_ids": IDS, "sampling_params": {"max_new_tokens": 8, "temperature": 0,
                                                  **sampling}, **(more or {})}


class Dialects(harness.TestCase):
    def completion(self, **more):
        body = {"prompt": IDS, "max_tokens": 8, "temperature": 0, "return_token_ids": True,
                "logprobs": 0, **more}
        return self.ok("/v1/completions", body)["choices"][0]

    def test_wrong_types_in_sglangs_body_are_400s(self):
        for field in ("stream", "return_routed_experts", "return_text_in_logprobs"):
            for wrong in (0, "x", [], {}):
                reply = self.server.post("/generate", {"input_ids": [1], field: wrong})
                self.assertEqual(reply.status, 400, f"{field} {wrong}: {reply.text[:200]}")
        for body in ({"text": [[]]}, {"text": ["a", 1]}, {"input_ids": [[1], 2]}):
            self.assertEqual(self.server.post("/generate", body).status, 400, body)
        self.assertEqual(self.server.get("/health").status, 200)

    def test_all_dialects_give_the_same_tokens_and_logprobs(self):
        plain = self.completion()
        vllm = self.ok("/inference/v1/generate", {**tokens_body(logprobs=0), "request_id": "r1"})
        self.assertEqual(vllm["request_id"], "r1")
        choice = vllm["choices"][0]
        self.assertEqual(choice["token_ids"], plain["token_ids"])
        self.assertEqual([e["logprob"] for e in choice["logprobs"]["content"]],
                         plain["logprobs"]["token_logprobs"])
        self.assertEqual(choice["weight_versions"], plain["weight_versions"])
        sglang = self.ok("/generate", sglang_body({"return_logprob": True, "rid": "s1"}))
        self.assertEqual(sglang["output_ids"], plain["token_ids"])
        self.assertEqual(sglang["text"], plain["text"])
        meta = sglang["meta_info"]
        self.assertEqual(meta["id"], "s1")
        self.assertEqual([t[0] for t in meta["output_token_logprobs"]],
                         plain["logprobs"]["token_logprobs"])
        self.assertEqual(meta["weight_version"], "default")
        self.assertEqual(meta["finish_reason"], {"type": "length", "length": 8})

    def test_streams_add_up(self):
        whole = self.ok("/inference/v1/generate", tokens_body())["choices"][0]
        chunks = self.server.events("/inference/v1/generate", {**tokens_body(), "stream": True})
        ids = [i for chunk in chunks for c in chunk["choices"] for i in c["token_ids"]]
        self.assertEqual(ids, whole["token_ids"])
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        whole = self.ok("/generate", sglang_body())
        chunks = self.server.events("/generate", sglang_body({"stream": True}))
        self.assertEqual(chunks[-1]["output_ids"], whole["output_ids"])
        self.assertEqual(chunks[-1]["text"], whole["text"])
        for before, after in zip(chunks, chunks[1:]):
            self.assertEqual(after["output_ids"][:len(before["output_ids"])],
                             before["output_ids"])

    def test_prompt_logprobs_agree_between_dialects(self):
        scored = self.completion(max_tokens=0, echo=True)["logprobs"]["token_logprobs"]
        vllm = self.ok("/inference/v1/generate", tokens_body(prompt_logprobs=0))
        self.assertIsNone(vllm["prompt_logprobs"][0])
        self.assertEqual([entry[str(i)]["logprob"] for i, entry in
                          zip(IDS[1:], vllm["prompt_logprobs"][1:])], scored[1:])
        sglang = self.ok("/generate", sglang_body({"return_logprob": True,
                                                   "logprob_start_len": 0}))
        triples = sglang["meta_info"]["input_token_logprobs"]
        self.assertEqual([t[1] for t in triples], IDS)
        self.assertEqual([t[0] for t in triples], scored)

    def test_top_logprobs_are_the_likeliest(self):
        vllm = self.ok("/inference/v1/generate", tokens_body(logprobs=3))["choices"][0]
        for entry in vllm["logprobs"]["content"]:
            top = [t["logprob"] for t in entry["top_logprobs"]]
            self.assertEqual(len(top), 3)
            self.assertEqual(top, sorted(top, reverse=True))
            self.assertEqual(entry["rank"], 1)  # greedy
            self.assertEqual(entry["top_logprobs"][0]["token_id"], entry["token_id"])
        meta = self.ok("/generate", sglang_body({"return_logprob": True, "top_logprobs_num": 2,
                                                 "token_ids_logprob": [5, 6]}))["meta_info"]
        self.assertEqual([len(t) for t in meta["output_top_logprobs"]], [2] * 8)
        self.assertEqual([[t[1] for t in at] for at in meta["output_token_ids_logprobs"]],
                         [[5, 6]] * 8)

    def test_routed_experts_come_for_every_position(self):
        body = {**tokens_body(), "return_routed_experts": True}
        npy = base64.b64decode(self.ok("/inference/v1/generate", body)["choices"][0]
                               ["routed_experts"])
        rows = len(IDS) + 8 - 1
        self.assertEqual(npy[:8], b"\x93NUMPY\x01\x00")
        self.assertIn(f"({rows}, {LAYERS}, {EXPERTS_PER_TOKEN})".encode(), npy[:128])
        count = rows * LAYERS * EXPERTS_PER_TOKEN
        narrow = struct.unpack(f"<{count}h", npy[128:])
        self.assertTrue(all(0 <= expert < 8 for expert in narrow))
        meta = self.ok("/generate", sglang_body({"return_routed_experts": True}))["meta_info"]
        wide = struct.unpack(f"<{count}i", base64.b64decode(meta["routed_experts"]))
        self.assertEqual(wide, narrow)

    def test_lists_of_prompts_come_back_in_order(self):
        got = self.ok("/generate", {"input_ids": [IDS, IDS[:2]], "rid": ["a", "b"],
                                    "sampling_params": [{"max_new_tokens": 2, "temperature": 0},
                                                        {"max_new_tokens": 3, "temperature": 0}]})
        self.assertEqual([g["meta_info"]["id"] for g in got], ["a", "b"])
        self.assertEqual([len(g["output_ids"]) for g in got], [2, 3])
        alone = self.ok("/generate", sglang_body(max_new_tokens=2))
        self.assertEqual(got[0]["output_ids"], alone["output_ids"])
        many = self.ok("/generate", sglang_body(n=3, temperature=1, sampling_seed=4))
        self.assertEqual(len(many), 3)

    def test_an_abort_by_name_gives_the_tokens_so_far_and_ends_nobody_else(self):
        long = {"max_tokens": 900, "ignore_eos": True, "temperature": 0}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            vllm = pool.submit(self.ok, "/inference/v1/generate", {
                "token_ids": IDS, "request_id": "first", "sampling_params": long})
            sglang = pool.submit(self.ok, "/generate", {
                "input_ids": IDS, "rid": "second-7", "sampling_params": {
                    "max_new_tokens": 900, "ignore_eos": True, "temperature": 0}})
            plain = pool.submit(self.ok, "/v1/completions", {
                "prompt": IDS, "request_id": "third", **long, "return_token_ids": True})

            def abort(path, body):
                return self.server.post(path, body, listener="control").json()
            harness.wait_until(lambda: abort("/abort_requests", {"request_ids": ["first"]})
                               ["aborted"] == 1, "the first is there to be aborted")
            first = vllm.result()["choices"][0]
            abort("/abort_request", {"rid": "second"})  # a prefix, as SGLang has it
            second = sglang.result()
            third = plain.result()["choices"][0]
        self.assertEqual(first["finish_reason"], "abort")
        self.assertEqual(third["finish_reason"], "length")
        self.assertEqual(first["token_ids"], third["token_ids"][:len(first["token_ids"])])
        self.assertEqual(second["output_ids"], third["token_ids"][:len(second["output_ids"])])

    def test_wrong_bodies_are_one_400_that_names_the_field(self):
        for body, param in [({}, "input_ids"), ({"text": "a", "input_ids": [1]}, "input_ids"),
                            ({"text": ""}, "text"), ({"input_ids": [99999]}, "input_ids[0]"),
                            ({"input_ids": [1], "lora_path": "x"}, "lora_path"),
                            ({"input_ids": [1], "sampling_params": {"top_p": 2}},
                             "sampling_params.top_p"),
                            ({"input_ids": [1], "rids": "x"}, "rids")]:
            self.refused("/generate", body, param)
        for body, param in [({}, "token_ids"), ({"token_ids": []}, "token_ids"),
                            ({"token_ids": [1], "features": {"a": 1}}, "features"),
                            ({"token_ids": [1], "sampling_params": {"max_tokens": 5000}},
                             "max_tokens")]:
            self.refused("/inference/v1/generate", body, param)

    def test_many_streams_at_once_equal_one_by_one(self):
        bodies = [{"token_ids": [i + 1, i + 2], "stream": True,
                   "sampling_params": {"max_tokens": 6, "seed": i}} for i in range(32)]

        def ids(body):
            chunks = self.server.events("/inference/v1/generate", body)
            return [i for chunk in chunks for c in chunk["choices"] for i in c["token_ids"]]
        alone = [ids(body) for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            self.assertEqual(list(pool.map(ids, bodies)), alone)


if __name__ == "__main__":
    harness.main()
