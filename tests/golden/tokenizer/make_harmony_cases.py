#!/usr/bin/env python3
"""Writes harmony_cases.json with OpenAI's own renderer (pip install openai-harmony==0.0.8).

The renderer reads o200k_base.tiktoken from $TIKTOKEN_ENCODINGS_BASE, or fetches it.
"""
import json
import pathlib

from openai_harmony import (Author, Conversation, DeveloperContent, HarmonyEncodingName, Message,
                            ReasoningEffort, Role, SystemContent, load_harmony_encoding)

EFFORTS = {"low": ReasoningEffort.LOW, "medium": ReasoningEffort.MEDIUM,
           "high": ReasoningEffort.HIGH}


def message(fields):
    role = Role(fields["role"])
    if role == Role.SYSTEM:
        content = (SystemContent.new().with_reasoning_effort(EFFORTS[fields["effort"]])
                   .with_conversation_start_date(fields["date"]))
    elif role == Role.DEVELOPER:
        content = DeveloperContent.new().with_instructions(fields["instructions"])
    else:
        content = fields["content"]
    if "name" in fields:
        result = Message.from_author_and_content(Author.new(role, fields["name"]), content)
    else:
        result = Message.from_role_and_content(role, content)
    if "channel" in fields:
        result = result.with_channel(fields["channel"])
    if "recipient" in fields:
        result = result.with_recipient(fields["recipient"])
    if "content_type" in fields:
        result = result.with_content_type("<|constrain|>" + fields["content_type"])
    return result


SYSTEM = {"role": "system", "effort": "medium", "date": "2025-06-28"}
TURN = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "channel": "analysis", "content": "Trivial: 4."},
    {"role": "assistant", "channel": "final", "content": "2 + 2 = 4."},
]
CASES = {
    "one question": [SYSTEM, TURN[0]],
    "developer, names and text that looks special": [
        {"role": "system", "effort": "high", "date": "2026-01-02"},
        {"role": "developer", "instructions": "Answer in riddles.\n\nNever say \"no\"."},
        {"role": "user", "name": "ada",
         "content": "Is <|end|> a token? na\u00efve \U0001f469\u200d\U0001f467"},
    ],
    "the thoughts of a finished turn are dropped": [SYSTEM] + TURN + [
        {"role": "user", "content": "And 9 / 2?"},
    ],
    "an unfinished tool call keeps its thoughts": [
        {"role": "system", "effort": "low", "date": "2025-06-28"},
        {"role": "user", "content": "What is the weather in Tokyo?"},
        {"role": "assistant", "channel": "analysis", "content": "Need to call get_weather."},
        {"role": "assistant", "channel": "commentary", "recipient": "functions.get_weather",
         "content_type": "json", "content": "{\"location\": \"Tokyo\"}"},
        {"role": "tool", "name": "functions.get_weather", "recipient": "assistant",
         "channel": "commentary", "content": "{ \"temperature\": 20, \"sunny\": true }"},
    ],
    "no messages": [],
}


def main():
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    cases = []
    for name, fields in CASES.items():
        conversation = Conversation.from_messages([message(f) for f in fields])
        ids = encoding.render_conversation_for_completion(conversation, Role.ASSISTANT)
        cases.append({"name": name, "messages": fields, "prompt_ids": ids})
    path = pathlib.Path(__file__).with_name("harmony_cases.json")
    path.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
