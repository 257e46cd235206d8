"""/v1/completions and /v1/chat/completions against `holdfast generate` and against themselves."""

import concurrent.futures
import itertools
import json
import socket

import harness
from harness import MODEL_NAME, generate

PROMPTS = ["To be, or not to be", "The king", "What say you, my lord?", "é🎉 naïve",
           "Once more unto the breach", "ROMEO:\n", "a", "My lord, the queen would speak with you"]

# Bodies of /v1/completions that are wrong, and the field that the error names.
WRONG = [
    (b"", None), (b"{", None), (b"[]", None), (b"\xff", None), (b'{"prompt":"a"}}', None),
    ({}, "prompt"), ({"prompt": None}, "prompt"), ({"prompt": 7}, "prompt"),
    ({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt[1]"), ({"prompt": [1, 99999]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]"), ({"prompt": [[1], [1.5]]}, "prompt[1][0]"),
    ({"prompt": [5] * 2000}, "prompt"), ({"prompt": "a", "max_tokens": 5000}, "max_tokens"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"), ({"prompt": "a", "n": 0}, "n"),
    ({"prompt": "a", "n": 100000}, "n"), ({"prompt": "a", "temperature": -1}, "temperature"),
    ({"prompt": "a", "temperature": "1"}, "temperature"), ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "top_k": 1.5}, "top_k"), ({"prompt": "a", "min_p": 2}, "min_p"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty"),
    ({"prompt": "a", "frequency_penalty": 5}, "frequency_penalty"),
    ({"prompt": "a", "presence_penalty": -5}, "presence_penalty"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"1": 1000}}, "logit_bias"),
    ({"prompt": "a", "allowed_token_ids": [99999]}, "allowed_token_ids[0]"),
    ({"prompt": "a", "seed": "x"}, "seed"), ({"prompt": "a", "stop": ["a", ""]}, "stop[1]"),
    ({"prompt": "a", "stop": ["x"] * 100}, "stop"), ({"prompt": "a", "stop": 5}, "stop"),
    ({"prompt": "a", "stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ({"prompt": "a", "min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ({"prompt": "a", "logprobs": 99999}, "logprobs"), ({"prompt": "a", "stream": "no"}, "stream"),
    ({"prompt": "a", "stream_options": 1}, "stream_options"),
    ({"prompt": "a", "suffix": "b"}, "suffix"), ({"prompt": "a", "best_of": 5}, "best_of"),
    ({"prompt": "a", "guided_regex": "b"}, "guided_regex"),
    ({"prompt": "a", "structured_outputs": {"json": {}}}, "structured_outputs"),
    ({"prompt": "a", "bad_words": ["b"]}, "bad_words"),
    ({"prompt": "a", "use_beam_search": True}, "use_beam_search"),
    ({"prompt": "a", "cache_salt": ""}, "cache_salt"), ({"prompt": "a", "echo": 1}, "echo"),
    ({"prompt": "a", "priority": "high"}, "priority"),
    ({"prompt": "a", "maxtokens": 5}, "maxtokens"),
    (b'{"prompt":"a","prompt":"b"}', "prompt"),
    (b'{"prompt":' + b"[" * 100 + b"]" * 100 + b"}", None),
]

WRONG_CHATS = [
    ({}, "messages"), ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user"}], "tools": 5}, "tools"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages"),
    ({"messages": [{"content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}, "tool_choice"),
    ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3}, "top_logprobs"),
    ({"messages": [{"role": "user", "content": "a"}], "reasoning_effort": "max"},
     "reasoning_effort"),
    ({"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5000},
     "max_tokens"),
]


def completion(prompt, **more):
    return {"prompt": prompt, "max_tokens": 16, "temperature": 0, "return_token_ids": True, **more}


def joined(chunks, key):
    """What the chunks of each choice add up to under `key`, a string or a list."""
    parts = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            value = choice.get(key)
            parts.setdefault(choice["index"], type(value)())
            parts[choice["index"]] += value
    return parts


class Models(harness.TestCase):
    def test_the_model_is_listed_with_its_context(self):
        data = self.server.get("/v1/models").json()["data"]
        self.assertEqual([m["id"] for m in data], [MODEL_NAME])
        self.assertEqual(data[0]["max_model_len"], 1024)
        self.assertEqual(self.server.get("/v1/models/").status, 200)


class Completions(harness.TestCase):
    def test_greedy_ids_and_logprobs_are_those_of_the_command_line(self):
        lines = [{"prompt": p, "max_tokens": 24, "temperature": 0} for p in PROMPTS]
        expected = generate(lines)
        for prompt, line in zip(PROMPTS, expected):
            got = self.ok("/v1/completions", completion(prompt, max_tokens=24, logprobs=0))
            choice = got["choices"][0]
            self.assertEqual(choice["token_ids"], line["ids"])
            self.assertEqual(choice["text"], line["text"])
            self.assertEqual(choice["finish_reason"], line["finish_reason"])
            self.assertEqual(choice["logprobs"]["token_logprobs"], line["logprobs"])
            self.assertEqual(choice["weight_versions"],
                             [{"version": "default", "epoch": 1, "start": 0,
                               "end": len(line["ids"])}])
            self.assertEqual(got["usage"]["completion_tokens"], len(line["ids"]))

    def test_a_drawn_request_with_a_seed_is_that_of_the_command_line(self):
        line = generate([{"prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0.9, "top_p": 0.8,
                          "seed": 5}])[0]
        got = self.ok("/v1/completions", completion(PROMPTS[0], max_tokens=24, temperature=0.9,
                                                    top_p=0.8, seed=5))
        self.assertEqual(got["choices"][0]["token_ids"], line["ids"])

    def test_a_stream_adds_up_to_the_whole_reply(self):
        for more in ({}, {"logprobs": 2}, {"echo": True, "logprobs": 1}, {"stop": ["\n", "the"]},
                     {"n": 3, "temperature": 1, "seed": 9}):
            body = completion(PROMPTS[:2], **more)
            whole = self.ok("/v1/completions", body)
            chunks = self.server.events("/v1/completions", {
                **body, "stream": True, "stream_options": {"include_usage": True}})
            self.assertEqual(chunks[-1]["choices"], [])
            self.assertEqual(chunks[-1]["usage"]["total_tokens"], whole["usage"]["total_tokens"])
            texts, ids = joined(chunks, "text"), joined(chunks, "token_ids")
            finals = {c["index"]: c for k in chunks for c in k["choices"] if c["finish_reason"]}
            for choice in whole["choices"]:
                self.assertEqual(texts[choice["index"]], choice["text"], more)
                self.assertEqual(ids[choice["index"]], choice["token_ids"], more)
                final = finals[choice["index"]]
                for key in ("finish_reason", "stop_reason", "weight_versions"):
                    self.assertEqual(final[key], choice[key])

    def test_n_choices_have_seeds_of_their_own(self):
        body = completion(PROMPTS[0], n=4, temperature=1, seed=100)
        choices = self.ok("/v1/completions", body)["choices"]
        self.assertEqual([c["index"] for c in choices], [0, 1, 2, 3])
        for i, choice in enumerate(choices):
            alone = self.ok("/v1/completions", completion(PROMPTS[0], temperature=1, seed=100 + i))
            self.assertEqual(alone["choices"][0]["token_ids"], choice["token_ids"])
        self.assertEqual(len({tuple(c["token_ids"]) for c in choices}), 4)
        usage = self.ok("/v1/completions", body)["usage"]
        self.assertEqual(usage["prompt_tokens"], len(choices[0]["prompt_token_ids"]))

    def test_prompts_of_all_four_forms_agree(self):
        text = self.ok("/v1/completions", completion(PROMPTS[0]))["choices"][0]
        ids = text["prompt_token_ids"]
        for prompt in ([PROMPTS[0]], ids, [ids]):
            choice = self.ok("/v1/completions", completion(prompt))["choices"][0]
            self.assertEqual(choice["token_ids"], text["token_ids"])
        both = self.ok("/v1/completions", completion([ids, ids[:2]]))["choices"]
        self.assertEqual(both[0]["token_ids"], text["token_ids"])
        self.assertEqual(both[1]["prompt_token_ids"], ids[:2])

    def test_stop_strings_end_the_text_wherever_tokens_end(self):
        whole = self.ok("/v1/completions", completion(PROMPTS[0], max_tokens=40))
        text = whole["choices"][0]["text"]
        for stop in (text[3:6], text[10:11], text[5:17]):
            cut = self.ok("/v1/completions", completion(PROMPTS[0], max_tokens=40, stop=stop))
            choice = cut["choices"][0]
            self.assertEqual(choice["text"], text[:text.index(stop)])
            self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", stop))
            kept = self.ok("/v1/completions", completion(
                PROMPTS[0], max_tokens=40, stop=[stop, "never"], include_stop_str_in_output=True))
            self.assertEqual(kept["choices"][0]["text"], text[:text.index(stop)] + stop)

    def test_a_stop_token_ends_it_and_is_named(self):
        ids = self.ok("/v1/completions", completion(PROMPTS[0]))["choices"][0]["token_ids"]
        at = ids[4]
        choice = self.ok("/v1/completions", completion(PROMPTS[0], stop_token_ids=[at]))
        choice = choice["choices"][0]
        self.assertEqual(choice["token_ids"], ids[:ids.index(at) + 1])
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", at))

    def test_echo_without_tokens_scores_the_prompt(self):
        got = self.ok("/v1/completions", completion(PROMPTS[0], max_tokens=0, echo=True,
                                                    logprobs=0))["choices"][0]
        self.assertEqual(got["text"], PROMPTS[0])
        self.assertEqual(got["token_ids"], [])
        self.assertEqual("".join(got["logprobs"]["tokens"]), PROMPTS[0])
        logprobs = got["logprobs"]["token_logprobs"]
        self.assertIsNone(logprobs[0])
        # What echo says of a prompt is what it said of the same tokens as output.
        ids = got["prompt_token_ids"]
        half = len(ids) // 2
        forced = [self.ok("/v1/completions", completion(
            ids[:i], max_tokens=1, logprobs=0, logit_bias={str(ids[i]): 100}))
            for i in range(half, len(ids))]
        self.assertEqual([f["choices"][0]["logprobs"]["token_logprobs"][0] for f in forced],
                         logprobs[half:])

    def test_text_of_split_characters_is_whole(self):
        for prompt in ("é🎉 naïve 日本語", "🎉🎉🎉"):
            got = self.ok("/v1/completions", completion(prompt, echo=True, max_tokens=8))
            self.assertTrue(got["choices"][0]["text"].startswith(prompt))
        # Bytes of no character, forced one by one, show as U+FFFD and never break the JSON.
        ids = self.ok("/tokenize", {"prompt": "é🎉"})["tokens"]
        got = self.ok("/v1/completions", completion("a", max_tokens=6, logprobs=1,
                                                    allowed_token_ids=[ids[0], ids[-1]]))
        streamed = self.server.events("/v1/completions", {
            **completion("a", max_tokens=6, allowed_token_ids=[ids[0], ids[-1]]), "stream": True})
        self.assertEqual(joined(streamed, "text")[0], got["choices"][0]["text"])

    def test_tokens_are_named_by_id_where_asked(self):
        got = self.ok("/v1/completions", completion("a", logprobs=1,
                                                    return_tokens_as_token_ids=True))
        choice = got["choices"][0]
        self.assertEqual(choice["logprobs"]["tokens"],
                         [f"token_id:{i}" for i in choice["token_ids"]])

    def test_wrong_bodies_are_one_400_that_names_the_field(self):
        self.assertGreater(len(WRONG), 40)
        for body, param in WRONG:
            self.refused("/v1/completions", body, param)
        self.refused("/v1/completions", {"prompt": "a", "model": "gpt-4"}, "model", status=404)
        self.assertEqual(self.ok("/v1/completions", completion("a"))["model"], MODEL_NAME)

    def test_sixty_four_at_once_equal_one_by_one(self):
        bodies = [completion(f"{PROMPTS[i % 8]} {i}", temperature=i % 2, seed=i, logprobs=0,
                             max_tokens=8 + i % 9) for i in range(64)]
        alone = [self.ok("/v1/completions", body)["choices"] for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = list(pool.map(
                lambda body: self.ok("/v1/completions", body)["choices"], bodies))
        self.assertEqual(together, alone)

    def test_a_client_that_goes_away_frees_its_request(self):
        body = json.dumps(completion("a", max_tokens=900, ignore_eos=True, stream=True)).encode()
        head = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n")
        before = self.server.metric("vllm:generation_tokens_total")
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", self.server.ports["public"]), 30) as client:
                client.sendall(head.encode() + body)
                self.assertIn(b"200 OK", client.recv(4096))
        harness.wait_until(lambda: self.server.metric("vllm:num_requests_running") == 0,
                           "no request runs any more")
        self.assertEqual(self.server.metric("vllm:num_requests_waiting"), 0)
        # They were ended, not finished: eight times 900 tokens is what they had asked for.
        self.assertLess(self.server.metric("vllm:generation_tokens_total") - before, 8 * 900 / 2)


class Chats(harness.TestCase):
    MESSAGES = [{"role": "system", "content": "Speak as Hamlet."},
                {"role": "user", "content": "Who is there?"}]

    def chat(self, **more):
        return {"messages": self.MESSAGES, "max_tokens": 24, "temperature": 0,
                "return_token_ids": True, **more}

    def test_a_chat_is_the_completion_of_its_rendered_prompt(self):
        got = self.ok("/v1/chat/completions", self.chat(logprobs=True, top_logprobs=0))
        choice = got["choices"][0]
        rendered = self.ok("/tokenize", {"messages": self.MESSAGES})["tokens"]
        self.assertEqual(got["prompt_token_ids"], rendered)
        plain = self.ok("/v1/completions", completion(rendered, max_tokens=24, logprobs=0))
        plain = plain["choices"][0]
        self.assertEqual(choice["token_ids"], plain["token_ids"])
        self.assertEqual([c["logprob"] for c in choice["logprobs"]["content"]],
                         plain["logprobs"]["token_logprobs"])
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertEqual(choice["weight_versions"], plain["weight_versions"])

    def test_a_stream_adds_up_to_the_whole_message(self):
        for more in ({}, {"n": 2, "temperature": 1, "seed": 3}, {"logprobs": True},
                     {"stop": ["e", "the"]}, {"stop": "o", "include_stop_str_in_output": True}):
            whole = self.ok("/v1/chat/completions", self.chat(**more))
            chunks = self.server.events("/v1/chat/completions", self.chat(
                **more, stream=True, stream_options={"include_usage": True}))
            self.assertEqual(chunks[-1]["usage"]["total_tokens"], whole["usage"]["total_tokens"])
            for choice in whole["choices"]:
                own = [c for k in chunks for c in k["choices"] if c["index"] == choice["index"]]
                deltas = [c["delta"] for c in own]
                self.assertEqual(deltas[0]["role"], "assistant")
                for key in ("content", "reasoning"):
                    text = "".join(d.get(key) or "" for d in deltas)
                    self.assertEqual(text, choice["message"][key] or "", more)
                ids = itertools.chain.from_iterable(c.get("token_ids", []) for c in own)
                self.assertEqual(list(ids), choice["token_ids"])
                self.assertEqual(own[-1]["finish_reason"], choice["finish_reason"])

    def test_a_stop_string_cuts_the_content(self):
        text = self.ok("/v1/chat/completions", self.chat())["choices"][0]["message"]["content"]
        stop = text[6:9]
        got = self.ok("/v1/chat/completions", self.chat(stop=stop))["choices"][0]
        self.assertEqual(got["message"]["content"], text[:text.index(stop)])
        self.assertEqual(got["stop_reason"], stop)

    def test_wrong_bodies_are_one_400_that_names_the_field(self):
        for body, param in WRONG_CHATS:
            self.refused("/v1/chat/completions", body, param)


class Tokens(harness.TestCase):
    def test_tokenize_and_detokenize_are_inverse(self):
        for text in PROMPTS:
            got = self.ok("/tokenize", {"prompt": text, "return_token_strs": True})
            self.assertEqual(got["count"], len(got["tokens"]))
            self.assertEqual(got["max_model_len"], 1024)
            self.assertEqual(self.ok("/detokenize", {"tokens": got["tokens"]}), {"prompt": text})
        self.refused("/tokenize", {}, "prompt")
        self.refused("/detokenize", {"tokens": [99999]}, "tokens[0]")
        self.refused("/detokenize", {"tokens": "a"}, "tokens")


if __name__ == "__main__":
    harness.main()
