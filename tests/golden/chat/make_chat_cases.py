#!/usr/bin/env python3
"""Writes chat_cases.json and schema_cases.json with OpenAI's own renderer.

  pip install openai-harmony==0.0.8; TIKTOKEN_ENCODINGS_BASE=DIR make_chat_cases.py

DIR holds o200k_base.tiktoken (else the renderer fetches it). Messages, tools and options are those
of holdfast/chat.h; `harmony` below says which harmony messages they are meant to be.
"""
import json
import pathlib
import random

from openai_harmony import (Author, Conversation, DeveloperContent, HarmonyEncodingName, Message,
                            ReasoningEffort, RenderConversationConfig, Role, SystemContent,
                            ToolDescription, load_harmony_encoding)

ENCODING = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
EFFORTS = {"low": ReasoningEffort.LOW, "medium": ReasoningEffort.MEDIUM,
           "high": ReasoningEffort.HIGH}
WEATHER = {
    "name": "get_weather", "description": "The weather now.\nOf one place.",
    "parameters": {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "City and country",
                      "examples": ["Oslo, Norway"]},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["place"],
    },
}
CLOCK = {"name": "now", "description": "The time.", "parameters": None}
ASK = {"role": "user", "content": "Weather in Oslo?"}
CALL = {"role": "assistant", "content": "", "reasoning": "I need the weather.",
        "tool_calls": [{"id": "c1", "name": "get_weather", "arguments": "{\"place\": \"Oslo\"}"}]}
ANSWER = {"role": "tool", "content": "{\"celsius\": -3}", "tool_call_id": "c1"}

CASES = [
    {"name": "one question", "messages": [{"role": "user", "content": "What is 2 + 2?"}]},
    {"name": "instructions of two messages", "effort": "high", "messages": [
        {"role": "system", "content": "Answer in riddles."},
        {"role": "developer", "content": "Never say <|end|>."}, ASK]},
    {"name": "a system message in the middle", "messages": [
        ASK, {"role": "system", "content": "Now in French."}, ASK]},
    {"name": "tools without instructions", "tools": [WEATHER, CLOCK], "messages": [ASK]},
    {"name": "tools and instructions, no date", "tools": [CLOCK], "date": "", "effort": "low",
     "messages": [{"role": "system", "content": "Be brief."}, ASK]},
    {"name": "a tool's answer keeps the turn's thoughts", "tools": [WEATHER],
     "messages": [ASK, CALL, ANSWER]},
    {"name": "an answered turn loses its thoughts", "tools": [WEATHER], "messages": [
        ASK, CALL, ANSWER,
        {"role": "assistant", "content": "-3 degrees.", "reasoning": "Cold."},
        {"role": "user", "content": "And now?"}]},
    {"name": "a preamble and two calls", "tools": [WEATHER, CLOCK], "messages": [
        ASK,
        {"role": "assistant", "content": "Let me look.", "tool_calls": [
            {"id": "a", "name": "now", "arguments": "{}"},
            {"id": "b", "name": "get_weather", "arguments": "{\"place\":\"\u00d8sby\"}"}]},
        {"role": "tool", "content": "12:00", "tool_call_id": "a"},
        {"role": "tool", "content": "rain \u2614", "tool_call_id": "b"}]},
    {"name": "no opening of the reply", "add_generation_prompt": False, "messages": [
        ASK, {"role": "assistant", "content": "Cold."}]},
]


def harmony(case):
    """The harmony messages of a case."""
    tools = case.get("tools", [])
    system = SystemContent.new().with_reasoning_effort(EFFORTS[case.get("effort", "medium")])
    if case.get("date", "2025-06-28"):
        system = system.with_conversation_start_date(case.get("date", "2025-06-28"))
    out = [Message.from_role_and_content(Role.SYSTEM, system)]
    messages = list(case["messages"])
    texts = []
    while messages and messages[0]["role"] in ("system", "developer"):
        texts.append(messages.pop(0)["content"])
    developer = DeveloperContent.new()
    if texts:
        developer = developer.with_instructions("\n\n".join(texts))
    if tools:
        developer = developer.with_function_tools(
            [ToolDescription.new(t["name"], t["description"], t["parameters"]) for t in tools])
    if texts or tools:
        out.append(Message.from_role_and_content(Role.DEVELOPER, developer))
    names = {}
    for message in messages:
        out += later(message, names)
    return out


def later(message, names):
    """Of a message behind the instructions; `names`: call ids to tools."""
    role, content = message["role"], message["content"]
    if role == "system":
        return [Message.from_role_and_content(
            Role.DEVELOPER, DeveloperContent.new().with_instructions(content))]
    if role == "user":
        return [Message.from_role_and_content(Role.USER, content)]
    if role == "tool":
        author = Author.new(Role.TOOL, "functions." + names[message["tool_call_id"]])
        return [Message.from_author_and_content(author, content)
                .with_recipient("assistant").with_channel("commentary")]
    out = []
    calls = message.get("tool_calls", [])
    for channel, text in (("analysis", message.get("reasoning")),
                          ("commentary" if calls else "final", content)):
        if text:
            out.append(Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel))
    for call in calls:
        names[call["id"]] = call["name"]
        out.append(Message.from_role_and_content(Role.ASSISTANT, call["arguments"])
                   .with_channel("commentary").with_recipient("functions." + call["name"])
                   .with_content_type("<|constrain|>json"))
    return out


def ids_of(case):
    conversation = Conversation.from_messages(harmony(case))
    if case.get("add_generation_prompt", True):
        return ENCODING.render_conversation_for_completion(conversation, Role.ASSISTANT)
    return ENCODING.render_conversation(conversation,
                                        RenderConversationConfig(auto_drop_analysis=True))


WORDS = ["a place", "b\nc", "", "it's \"q\"", "\u00e9t\u00e9"]
DEFAULTS = ["x", 3, -1.5, True, None, [1, "a"], {"z": 1, "a": [None]}]


def schema(rng, depth):
    """A random schema: what clients send, and what they should not."""
    kind = rng.choice(["object", "object", "array", "string", "string", "number", "integer",
                       "boolean", "null", "odd", "list", "oneOf", "anyOf", "any", "none"])
    if depth == 0 and kind in ("object", "array", "oneOf"):
        kind = "string"
    out = {"type": kind}
    if kind == "object":
        keys = rng.sample(["a", "b_c", "d-e", "F", "g h"], rng.randrange(4))
        out["properties"] = {key: schema(rng, depth - 1) for key in keys}
        if rng.random() < 0.5:
            out["required"] = rng.sample(keys, rng.randrange(len(keys) + 1))
    elif kind == "array" and rng.random() < 0.8:
        out["items"] = schema(rng, depth - 1)
    elif kind == "list":
        out["type"] = rng.sample(["string", "null", "integer", "array", "weird"], rng.randrange(4))
    elif kind == "oneOf":
        out = {"oneOf": [schema(rng, depth - 1) for _ in range(1 + rng.randrange(3))]}
    elif kind == "anyOf":
        out = {"anyOf": [schema(rng, 0)]}
    elif kind == "none":
        out = {}
    if rng.random() < 0.3:
        out["enum"] = rng.sample(["p", "q r", 7], rng.randrange(4))
    for key, values in (("description", WORDS), ("title", WORDS), ("default", DEFAULTS),
                        ("nullable", [True, False]),
                        ("examples", [[], ["one", 2], ["one", "two"]])):
        if rng.random() < 0.3:
            out[key] = rng.choice(values)
    return out


def union(*variants, **fields):
    return dict(fields, oneOf=list(variants))


def one(description, **fields):
    return dict(fields, type="string", description=description)


# What random schemas rarely come to.
CHOSEN = [
    union(one("D"), one("D"), description="D"),
    union(one("S"), one("D"), one("E"), description="D"),
    union({"type": "string"}, one("D"), description="D"),
    union(one("S", default="d"), one("S", enum=["a"], default="a"), default="v"),
    union(one("S", enum=[], default="d"), {"type": "string", "enum": [7], "default": "d"}),
    {"type": "string", "enum": [], "default": "x"},
    {"type": "string", "enum": [7], "default": "x"},
    {"type": "string", "enum": ["nullish"], "nullable": True},
    {"type": ["null", "string"], "nullable": True},
    {"type": "object", "nullable": True, "properties": {"x": {"type": "null", "nullable": True}}},
    {"type": "array", "items": [{"type": "string"}]},
    {"type": "object", "properties": [], "required": "a"},
]


def type_of(value):
    """What the renderer makes of a schema."""
    tool = ToolDescription.new("f", "", value)
    content = DeveloperContent.new().with_function_tools([tool])
    conversation = Conversation.from_messages([Message.from_role_and_content(Role.DEVELOPER,
                                                                             content)])
    text = ENCODING.decode(ENCODING.render_conversation(conversation))
    return text.split("type f = (_: ", 1)[1].rsplit(") => any;", 1)[0]


def write(name, entries):
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    pathlib.Path(__file__).with_name(name).write_text("[\n" + lines + "\n]\n")


def main():
    write("chat_cases.json", [dict(case, ids=ids_of(case)) for case in CASES])
    rng = random.Random(1)
    schemas = CHOSEN + [{"type": "object", "properties": {"p": value}} for value in CHOSEN]
    while len(schemas) < 400:
        value = schema(rng, 4)
        if len(json.dumps(value)) < 800:
            schemas.append(value)
    write("schema_cases.json", [{"schema": value, "type": type_of(value)} for value in schemas])


if __name__ == "__main__":
    main()
