"""The `openai` package from PyPI, as its users call it. Skipped where it is not installed."""

import asyncio
import unittest

import harness
from harness import MODEL_NAME

try:
    import openai
except ImportError:
    openai = None


@unittest.skipIf(openai is None, "the openai package is not installed")
class OpenAiPackage(harness.TestCase):
    MESSAGES = [{"role": "user", "content": "Who is there?"}]

    def setUp(self):
        url = f"http://127.0.0.1:{self.server.ports['public']}/v1"
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        self.asynchronous = lambda: openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_models_are_listed(self):
        self.assertEqual([m.id for m in self.client.models.list()], [MODEL_NAME])

    def test_completions_whole_and_streamed(self):
        ask = {"model": MODEL_NAME, "prompt": "To be", "max_tokens": 12, "temperature": 0}
        whole = self.client.completions.create(**ask, logprobs=2, n=2)
        self.assertEqual(len(whole.choices), 2)
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(len(whole.choices[0].logprobs.token_logprobs), 12)
        self.assertEqual(whole.usage.completion_tokens, 24)
        stream = self.client.completions.create(**ask, stream=True,
                                                stream_options={"include_usage": True})
        chunks = list(stream)
        self.assertEqual("".join(c.text for k in chunks for c in k.choices),
                         whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, 12)

    def test_chats_whole_and_streamed(self):
        ask = {"model": MODEL_NAME, "messages": self.MESSAGES, "max_completion_tokens": 16,
               "temperature": 0}
        whole = self.client.chat.completions.create(**ask, logprobs=True)
        message = whole.choices[0].message
        self.assertEqual(message.role, "assistant")
        self.assertEqual(len(whole.choices[0].logprobs.content), 16)
        text = ""
        for chunk in self.client.chat.completions.create(**ask, stream=True):
            text += chunk.choices[0].delta.content or ""
        self.assertEqual(text, message.content)

    def test_own_fields_reach_the_caller(self):
        got = self.client.completions.create(
            model=MODEL_NAME, prompt=[1, 2, 3], max_tokens=4,
            extra_body={"return_token_ids": True, "top_k": 5, "cache_salt": "v1"})
        choice = got.choices[0].model_dump()
        self.assertEqual(choice["prompt_token_ids"], [1, 2, 3])
        self.assertEqual(len(choice["token_ids"]), 4)
        self.assertEqual(choice["weight_versions"][0]["version"], "default")

    def test_errors_are_of_its_classes(self):
        create = self.client.completions.create
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model=MODEL_NAME, prompt="a", temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertIn("temperature is -1", str(caught.exception))
        with self.assertRaises(openai.NotFoundError):
            create(model="gpt-4", prompt="a")
        with self.assertRaises(openai.BadRequestError):
            self.client.chat.completions.create(
                model=MODEL_NAME, messages=self.MESSAGES, tool_choice="required",
                tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])

    def test_many_asynchronous_streams(self):
        async def one(client, i):
            stream = await client.completions.create(model=MODEL_NAME, prompt=f"Act {i}",
                                                     max_tokens=8, temperature=0, stream=True)
            return "".join([c.text async for chunk in stream for c in chunk.choices])

        async def run(together):
            async with self.asynchronous() as client:
                if together:
                    return await asyncio.gather(*[one(client, i) for i in range(24)])
                return [await one(client, i) for i in range(24)]
        self.assertEqual(asyncio.run(run(True)), asyncio.run(run(False)))

    def test_a_client_that_leaves_a_stream_harms_nobody(self):
        for _ in range(4):
            stream = self.client.completions.create(model=MODEL_NAME, prompt="a", max_tokens=500,
                                                    stream=True)
            next(iter(stream))
            stream.close()
        self.assertEqual(self.client.completions.create(model=MODEL_NAME, prompt="a",
                                                        max_tokens=3).usage.completion_tokens, 3)


if __name__ == "__main__":
    harness.main()
