#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "api/tool_types.h"
#include "base/rng.h"
#include "holdfast/chat.h"
#include "holdfast/tokenizer.h"
#include "tokenizer/test_support.h"

namespace holdfast {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

const std::string kModelA = HF_SOURCE_DIR "/models/gptoss-tiny-A";

// A tokenizer from the text of a tokenizer.json.
std::unique_ptr<Tokenizer> tokenizer_of(const std::string& json) {
  const auto directory = std::filesystem::temp_directory_path() /
                         ("holdfast-chat-" + std::to_string(::getpid()));
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "tokenizer.json", std::ios::binary) << json;
  auto opened = Tokenizer::open(directory);
  std::filesystem::remove_all(directory);
  EXPECT_TRUE(opened.ok()) << opened.error().message();
  return std::move(*opened);
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

const Tokenizer& tiny() {
  static const std::unique_ptr<Tokenizer> loaded = std::move(*Tokenizer::open(kModelA));
  return *loaded;
}

// The tiny tokenizer with other special tokens.
const Tokenizer& chatml_tokenizer() {
  static const std::unique_ptr<Tokenizer> loaded = [] {
    const std::string json = tokenizer::read_file(kModelA + "/tokenizer.json");
    return tokenizer_of(
        replaced(replaced(json, "<|start|>", "<|im_start|>"), "<|end|>", "<|im_end|>"));
  }();
  return *loaded;
}

// With <s> and </s>, and with the brackets as special tokens, too.
std::unique_ptr<Tokenizer> mistral_tokenizer(bool brackets) {
  std::string json = tokenizer::read_file(kModelA + "/tokenizer.json");
  json = replaced(replaced(json, "<|start|>", "<s>"), "<|end|>", "</s>");
  if (brackets) json = replaced(replaced(json, "<|call|>", "[INST]"), "<|channel|>", "[/INST]");
  return tokenizer_of(json);
}

std::unique_ptr<ChatFormat> format(const Tokenizer& tokenizer, std::string_view name) {
  auto opened = ChatFormat::open(tokenizer, name);
  EXPECT_TRUE(opened.ok()) << opened.error().message();
  return std::move(*opened);
}

std::string error_of(const ChatFormat& chat, std::vector<ChatMessage> messages,
                     ChatOptions options = {}) {
  const auto ids = chat.render(messages, options);
  return ids.ok() ? "rendered" : ids.error().to_string();
}

// Everything that a reply's deltas add up to; a call as "name(arguments)".
struct Said {
  std::string content = {}, reasoning = {};
  std::vector<std::string> calls = {};
  void add(const ChatDelta& delta) {
    content += delta.content;
    reasoning += delta.reasoning;
    for (const ChatDelta::Call& call : delta.calls) {
      if (!call.name.empty()) calls.push_back(call.name + ":");
      EXPECT_EQ(call.index, calls.size() - 1);
      calls.at(call.index) += call.arguments;
    }
  }
};

Said read(ChatFormat::Reply& reply, const Ids& ids) {
  Said said;
  for (const std::int32_t id : ids) {
    const auto delta = reply.push(id);
    EXPECT_TRUE(delta.ok());
    if (delta.ok()) said.add(*delta);
  }
  said.add(reply.finish());
  return said;
}

Said harmony_reply(const std::string& text, bool continued = false) {
  const auto reply = format(tiny(), "harmony")->reply(continued);
  return read(*reply, *tiny().encode(text));
}

// ------------------------------------------------------------------------------ golden values

using Json = nlohmann::ordered_json;

Json golden(const std::string& name) {
  return Json::parse(tokenizer::read_file(HF_SOURCE_DIR "/tests/golden/chat/" + name));
}

ChatMessage read_message(const Json& json) {
  ChatMessage message{.role = json.at("role"),
                      .content = json.at("content"),
                      .reasoning = json.value("reasoning", ""),
                      .tool_call_id = json.value("tool_call_id", "")};
  for (const Json& call : json.value("tool_calls", Json::array())) {
    message.tool_calls.push_back(
        {.id = call.at("id"), .name = call.at("name"), .arguments = call.at("arguments")});
  }
  return message;
}

ChatOptions read_options(const Json& json) {
  ChatOptions options;
  options.effort = json.value("effort", "medium");
  options.date = json.value("date", "2025-06-28");
  options.add_generation_prompt = json.value("add_generation_prompt", true);
  for (const Json& tool : json.value("tools", Json::array())) {
    const Json& schema = tool.at("parameters");
    options.tools.push_back({.name = tool.at("name"),
                             .description = tool.at("description"),
                             .parameters = schema.is_null() ? "" : schema.dump()});
  }
  return options;
}

TEST(HarmonyFormat, RendersConversationsLikeOpenAisRenderer) {
  const std::string json = tokenizer::o200k_json();
  ASSERT_FALSE(json.empty());
  const auto tokenizer = tokenizer_of(json);
  const auto chat = format(*tokenizer, "auto");
  EXPECT_EQ(chat->name(), "harmony");
  EXPECT_THAT(chat->stop_token_ids(), ElementsAre(200002, 200012));
  const Json cases = golden("chat_cases.json");
  for (const Json& one : cases) {
    std::vector<ChatMessage> messages;
    for (const Json& message : one.at("messages")) messages.push_back(read_message(message));
    const auto rendered = chat->render(messages, read_options(one));
    ASSERT_TRUE(rendered.ok()) << rendered.error().message();
    EXPECT_EQ(*rendered, one.at("ids").get<Ids>()) << one.at("name") << "\n"
                                                   << *tokenizer->decode(*rendered);
  }
  EXPECT_EQ(cases.size(), 9u);
}

TEST(ToolTypes, SchemasReadLikeOpenAisRenderer) {
  const Json cases = golden("schema_cases.json");
  for (const Json& one : cases) {
    const std::string schema = one.at("schema").dump();
    const ChatTool tool{.name = "f", .parameters = schema};
    const auto section = api::tools_section({&tool, 1});
    ASSERT_TRUE(section.ok()) << section.error().message();
    EXPECT_EQ(*section, "# Tools\n\n## functions\n\nnamespace functions {\n\ntype f = (_: " +
                            one.at("type").get<std::string>() +
                            ") => any;\n\n} // namespace functions")
        << schema;
  }
  EXPECT_EQ(cases.size(), 400u);
}

// ------------------------------------------------------------------------------ harmony

TEST(HarmonyFormat, AnOpenMessageHasNoEndAndKeepsTheThoughtsOfItsTurn) {
  const auto chat = format(tiny(), "harmony");
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "1"},
      {.role = "assistant", .content = "One", .reasoning = "old"},
      {.role = "user", .content = "2"},
      {.role = "assistant", .content = "Tw", .reasoning = "new"}};
  const auto ids = chat->render(messages, {.continue_final = true});
  ASSERT_TRUE(ids.ok()) << ids.error().message();
  const std::string text = *tiny().decode(*ids);
  EXPECT_THAT(text, testing::EndsWith("<|channel|>analysis<|message|>new<|end|><|start|>assistant"
                                      "<|channel|>final<|message|>Tw"));
  EXPECT_THAT(text, testing::Not(HasSubstr("old")));
  EXPECT_EQ(harmony_reply("o.<|return|>", true).content, "o.");
}

TEST(HarmonyFormat, WhatCannotBeRenderedIsNamed) {
  const auto chat = format(tiny(), "harmony");
  const ChatMessage user{.role = "user", .content = "hi"};
  EXPECT_THAT(error_of(*chat, {}), HasSubstr("messages is empty"));
  EXPECT_THAT(error_of(*chat, {user, {.role = "owner"}}),
              HasSubstr("invalid_argument: messages[1].role is \"owner\""));
  EXPECT_THAT(error_of(*chat, {{.role = "user", .content = "a\xFF"}}),
              HasSubstr("messages[0].content is not UTF-8 at byte 1"));
  EXPECT_THAT(error_of(*chat, {user, {.role = "tool", .content = "x", .tool_call_id = "c9"}}),
              HasSubstr("messages[1].tool_call_id is \"c9\""));
  EXPECT_THAT(error_of(*chat, {{.role = "user", .tool_calls = {{.id = "a", .name = "f"}}}}),
              HasSubstr("messages[0].tool_calls: only an assistant"));
  EXPECT_THAT(error_of(*chat, {{.role = "assistant", .tool_calls = {{.id = "a", .name = "f g"}}}}),
              HasSubstr("messages[0].tool_calls[0].name is \"f g\""));
  EXPECT_THAT(error_of(*chat, {user}, {.continue_final = true}), HasSubstr("messages[0].role"));
  EXPECT_THAT(error_of(*chat, {user}, {.effort = "huge"}), HasSubstr("\"huge\""));
  EXPECT_THAT(error_of(*chat, {user}, {.date = "today"}), HasSubstr("date is today"));
  EXPECT_THAT(error_of(*chat, std::vector<ChatMessage>(4097, user)),
              HasSubstr("resource_exhausted: messages holds 4097"));
}

TEST(ToolTypes, WhatIsNoToolIsNamed) {
  const auto error = [](std::vector<ChatTool> tools) {
    const auto section = api::tools_section(tools);
    return section.ok() ? "shown" : section.error().to_string();
  };
  EXPECT_THAT(error({{.name = ""}}), HasSubstr("tools[0].name"));
  EXPECT_THAT(error({{.name = "f"}, {.name = "f"}}), HasSubstr("tools[1].name is \"f\""));
  EXPECT_THAT(error({{.name = "f", .description = "\xFF"}}), HasSubstr("tools[0].description"));
  EXPECT_THAT(error({{.name = "f", .parameters = "{"}}), HasSubstr("tools[0].parameters (f)"));
  EXPECT_THAT(error({{.name = "f", .parameters = "[]"}}), HasSubstr("not an object"));
  EXPECT_THAT(error(std::vector<ChatTool>(513, {.name = "f"})), HasSubstr("513 tools"));
  EXPECT_THAT(error({{.name = "f", .description = std::string((1 << 20) + 1, 'a')}}),
              HasSubstr("resource_exhausted"));
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += R"({"type":"array","items":)";
  EXPECT_THAT(error({{.name = "f", .parameters = deep + "{}" + std::string(100, '}')}}),
              HasSubstr("at most 32 deep"));
}

TEST(HarmonyReply, ChannelsBecomeContentReasoningAndCalls) {
  const Said said = harmony_reply(
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So."
      "<|end|><|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
      "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
      "<|message|>{\"a\": 1}<|end|><|start|>assistant to=functions.now<|channel|>commentary"
      "<|message|>{}<|call|>");
  EXPECT_EQ(said.reasoning, "Hm.\nSo.");
  EXPECT_EQ(said.content, "Let me look.");
  EXPECT_THAT(said.calls, ElementsAre("get_weather:{\"a\": 1}", "now:{}"));
}

TEST(HarmonyReply, TextArrivesWithTheTokenThatCompletesIt) {
  const auto reply = format(tiny(), "harmony")->reply();
  std::string pieces;
  for (const std::int32_t id : *tiny().encode("<|channel|>final<|message|>caf\xC3\xA9<|return|>")) {
    const ChatDelta delta = *reply->push(id);
    if (!delta.content.empty()) pieces += "[" + delta.content + "]";
  }
  EXPECT_EQ(replaced(pieces, "][", ""), "[caf\xC3\xA9]");
  EXPECT_NE(pieces.find("]["), std::string::npos);
  EXPECT_EQ(reply->finish().content, "");
}

TEST(HarmonyReply, WhatIsMalformedBecomesContent) {
  EXPECT_EQ(harmony_reply("Just text<|return|>").content, "Just text");
  EXPECT_EQ(harmony_reply("<|channel|>final").content, "<|channel|>final");
  EXPECT_EQ(harmony_reply("<|channel|>odd<|message|>x<|return|>").content, "x");
  EXPECT_EQ(harmony_reply("<|message|>x<|return|>ignored").content, "x");
  EXPECT_EQ(harmony_reply("<|channel|>final<|message|>x<|end|>y<|return|>").content, "x\ny");
  EXPECT_THAT(harmony_reply("<|channel|>commentary to=python<|message|>1<|call|>").calls,
              ElementsAre("python:1"));
}

TEST(HarmonyReply, AnyIdsAtAllAreRead) {
  base::Rng rng(5);
  const auto chat = format(tiny(), "harmony");
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (std::uint64_t i = 0; i < 30; ++i) {
      // Half of them special tokens; some that no token has.
      const std::uint64_t id = rng.next_below(2) == 0 ? 1014 + rng.next_below(12)
                                                      : rng.next_below(1100);
      ids.push_back(static_cast<std::int32_t>(id));
    }
    const auto reply = chat->reply(rng.next_below(2) == 0);
    const Said said = read(*reply, ids);
    EXPECT_FALSE(reply->push(-1).value().content.size());
  }
}

// What a model says and its client sends back is what the model would have been shown.
TEST(HarmonyReply, ARepliesPartsRenderBackToItsTokens) {
  const std::string turn =
      "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary<|message|>"
      "One moment.<|end|><|start|>assistant to=functions.f<|channel|>commentary "
      "<|constrain|>json<|message|>{\"a\":1}<|call|>";
  const Said said = harmony_reply(turn);
  ASSERT_EQ(said.calls.size(), 1u);
  const auto chat = format(tiny(), "harmony");
  std::vector<ChatMessage> messages = {{.role = "user", .content = "go"}};
  const std::string prompt = *tiny().decode(*chat->render(messages, {}));
  messages.push_back({.role = "assistant",
                      .content = said.content,
                      .reasoning = said.reasoning,
                      .tool_calls = {{.id = "1", .name = "f", .arguments = "{\"a\":1}"}}});
  const auto again = chat->render(messages, {.add_generation_prompt = false});
  EXPECT_EQ(*tiny().decode(*again), prompt + turn);
}

// ------------------------------------------------------------------------------ the others

TEST(ChatmlFormat, TurnsAreRenderedAndRepliesReadToTheirEnd) {
  const auto chat = format(chatml_tokenizer(), "auto");
  EXPECT_EQ(chat->name(), "chatml");
  const std::vector<ChatMessage> messages = {
      {.role = "developer", .content = "Be <|im_end|>."},
      {.role = "user", .content = "Hi"},
      {.role = "assistant", .content = "Yo", .reasoning = "dropped"}};
  const auto ids = chat->render(messages, {});
  ASSERT_TRUE(ids.ok()) << ids.error().message();
  EXPECT_EQ(*chatml_tokenizer().decode(*ids),
            "<|im_start|>system\nBe <|im_end|>.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nYo<|im_end|>\n<|im_start|>assistant\n");
  ASSERT_EQ(chat->stop_token_ids().size(), 1u);
  const std::int32_t end = chat->stop_token_ids()[0];
  EXPECT_EQ(std::count(ids->begin(), ids->end(), end), 3);  // what is text stays text
  const auto open = chat->render(messages, {.continue_final = true});
  EXPECT_THAT(*chatml_tokenizer().decode(*open), testing::EndsWith("assistant\nYo"));
  const auto reply = chat->reply();
  EXPECT_EQ(read(*reply, *chatml_tokenizer().encode("So \xC3\xA9.<|im_end|>more")).content,
            "So \xC3\xA9.");
}

TEST(MistralFormat, QuestionsStandInBracketsAndTheSystemBeforeThem) {
  const std::vector<ChatMessage> messages = {{.role = "system", .content = "Be </s>."},
                                             {.role = "user", .content = "Hi"},
                                             {.role = "assistant", .content = "Yo"},
                                             {.role = "user", .content = "So?"}};
  const auto text = mistral_tokenizer(false);
  EXPECT_EQ(format(*text, "auto")->name(), "plain") << "<s> and </s> are not Mistral's alone";
  const auto chat = format(*text, "mistral");
  const auto ids = chat->render(messages, {});
  ASSERT_TRUE(ids.ok()) << ids.error().message();
  EXPECT_EQ(*text->decode(*ids),
            "<s>[INST] Be </s>.\n\nHi [/INST] Yo</s>[INST] So? [/INST]");
  ASSERT_EQ(chat->stop_token_ids().size(), 1u);
  const std::int32_t end = chat->stop_token_ids()[0];
  EXPECT_EQ(std::count(ids->begin(), ids->end(), end), 1);  // what is text stays text
  EXPECT_EQ(read(*chat->reply(), *text->encode(" Well.</s>more")).content, " Well.");

  const auto special = mistral_tokenizer(true);
  const auto newer = format(*special, "auto");
  EXPECT_EQ(newer->name(), "mistral");
  EXPECT_EQ(*special->decode(*newer->render(messages, {})),
            "<s>[INST] Be </s>.\n\nHi[/INST] Yo</s>[INST] So?[/INST]");
  const auto open = newer->render(std::span(messages).first(3), {.continue_final = true});
  EXPECT_THAT(*special->decode(*open), testing::EndsWith("[/INST] Yo"));
}

TEST(MistralFormat, TurnsThatItCannotWriteAreRefused) {
  const auto tokenizer = mistral_tokenizer(true);
  const auto chat = format(*tokenizer, "mistral");
  EXPECT_THAT(error_of(*chat, {{.role = "assistant", .content = "x"}}),
              HasSubstr("messages[0].role is assistant, and the mistral format expects user or"));
  EXPECT_THAT(error_of(*chat, {{.role = "user", .content = "x"}, {.role = "user"}}),
              HasSubstr("messages[1].role is user, and the mistral format expects assistant"));
  EXPECT_THAT(error_of(*chat, {{.role = "system", .content = "x"}}),
              HasSubstr("the last message's role is system"));
  EXPECT_EQ(ChatFormat::open(chatml_tokenizer(), "mistral").error().code(),
            ErrorCode::kUnsupported);
}

TEST(PlainFormat, ContentsFollowOneAnother) {
  const auto chat = format(tiny(), "plain");
  const std::vector<ChatMessage> messages = {{.role = "system", .content = "A<|end|>"},
                                             {.role = "user", .content = " b"}};
  const auto ids = chat->render(messages, {});
  ASSERT_TRUE(ids.ok()) << ids.error().message();
  EXPECT_EQ(*ids, *tiny().encode("A<|end|> b", false));
  EXPECT_TRUE(chat->stop_token_ids().empty());
  const auto reply = chat->reply();
  EXPECT_EQ(read(*reply, *tiny().encode("well\xF0\x9F\x98\x80")).content, "well\xF0\x9F\x98\x80");
  EXPECT_THAT(error_of(*chat, {{.role = "user"}}), HasSubstr("no text"));
}

TEST(ChatFormat, WhatATokenizerCannotWriteIsRefusedByName) {
  const auto harmony = ChatFormat::open(chatml_tokenizer(), "harmony");
  ASSERT_FALSE(harmony.ok());
  EXPECT_EQ(harmony.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(harmony.error().message(), HasSubstr("<|start|>, <|end|>"));
  const auto chatml = ChatFormat::open(tiny(), "chatml");
  ASSERT_FALSE(chatml.ok());
  EXPECT_EQ(chatml.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(chatml.error().message(), HasSubstr("<|im_start|>, <|im_end|>"));
  EXPECT_EQ(ChatFormat::open(tiny(), "llama").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error_of(*format(tiny(), "plain"), {{.role = "user", .content = "x"}},
                       {.tools = {{.name = "f"}}}),
              HasSubstr("unsupported: the plain format has no tools"));
}

TEST(ChatFormat, AutoFallsBackToPlain) {
  const std::string json = tokenizer::read_file(kModelA + "/tokenizer.json");
  const auto tokenizer = tokenizer_of(replaced(json, "<|start|>", "<|begin|>"));
  EXPECT_EQ(format(*tokenizer, "auto")->name(), "plain");
}

}  // namespace
}  // namespace holdfast
