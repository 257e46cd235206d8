#include "tokenizer/harmony.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include "base/rng.h"
#include "tokenizer/harmony_parser.h"
#include "tokenizer/test_support.h"

namespace holdfast::tokenizer {
namespace {

using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

const Harmony& tiny() {
  static const Harmony harmony =
      Harmony::create(Tokenizer::load(golden_path("tiny.tokenizer.json")).value()).value();
  return harmony;
}

Ids tiny_ids(std::string_view text) { return tiny().tokenizer().encode(text).value(); }

std::string field(simdjson::dom::element element, std::string_view key) {
  std::string_view text;
  return element[key].get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

Message read_message(simdjson::dom::element element) {
  const Role role = role_of(field(element, "role")).value();
  if (role == Role::kSystem) {
    SystemPrompt prompt;
    prompt.current_date = field(element, "date");
    prompt.effort = reasoning_effort_of(field(element, "effort")).value();
    return system_message(prompt);
  }
  if (role == Role::kDeveloper) return developer_message(field(element, "instructions"));
  return {.role = role,
          .name = field(element, "name"),
          .recipient = field(element, "recipient"),
          .channel = field(element, "channel"),
          .content_type = field(element, "content_type"),
          .content = field(element, "content")};
}

// All ids through a parser that begins with a message.
std::vector<Message> parse_all(const Ids& ids) {
  HarmonyParser parser(tiny(), HarmonyParser::Begin::kWithMessage);
  for (const std::int32_t id : ids) EXPECT_TRUE(parser.push(id).ok());
  parser.finish();
  EXPECT_EQ(parser.malformed(), "");
  return parser.messages();
}

TEST(Harmony, RendersPromptsLikeOpenAisRenderer) {
  const Harmony harmony = Harmony::create(Tokenizer::parse(o200k_json()).value()).value();
  simdjson::dom::parser json;
  std::size_t count = 0;
  for (const auto element : json.load(golden_path("harmony_cases.json")).get_array()) {
    std::vector<Message> messages;
    for (const auto message : element["messages"].get_array()) {
      messages.push_back(read_message(message));
    }
    Ids ids;
    for (const auto id : element["prompt_ids"].get_array()) {
      ids.push_back(static_cast<std::int32_t>(id.get_int64().value()));
    }
    const Ids rendered = harmony.render_prompt(messages).value();
    EXPECT_EQ(rendered, ids) << field(element, "name") << "\n"
                             << harmony.tokenizer().decode(rendered).value();
    ++count;
  }
  EXPECT_EQ(count, 5u);
  EXPECT_EQ(harmony.stop_tokens(), (std::array<std::int32_t, 2>{200002, 200012}));
}

TEST(Harmony, NamesTheSpecialTokensThatATokenizerLacks) {
  std::string json = read_file(golden_path("tiny.tokenizer.json"));
  json.replace(json.find("<|call|>"), 8, "<|cell|>");
  const auto harmony = Harmony::create(Tokenizer::parse(json).value());
  ASSERT_FALSE(harmony.ok());
  EXPECT_EQ(harmony.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(harmony.error().message(), HasSubstr("lacks special tokens <|call|>"));
}

TEST(Harmony, DropsThoughtsBeforeTheLastFinalMessageAndKeepsThoseAfterIt) {
  const auto say = [](std::string_view channel, std::string_view content) {
    return Message{.role = Role::kAssistant,
                   .channel = std::string(channel),
                   .content = std::string(content)};
  };
  const std::vector<Message> messages = {
      {.role = Role::kUser, .content = "1"}, say("analysis", "a"), say("final", "b"),
      {.role = Role::kUser, .content = "2"}, say("analysis", "c"), say("final", "d"),
      {.role = Role::kUser, .content = "3"}, say("analysis", "e"), say("commentary", "f")};
  std::string kept;
  for (const Message& message : without_past_analysis(messages)) kept += message.content;
  EXPECT_EQ(kept, "1b2d3ef");
}

TEST(Harmony, RefusesHeadersThatWouldReadAsSomethingElse) {
  const auto error_of = [](Message message) {
    const auto ids = tiny().render({&message, 1});
    return ids.ok() ? std::string("rendered") : ids.error().message();
  };
  EXPECT_THAT(error_of({.role = Role::kTool}), HasSubstr("needs the tool's name"));
  EXPECT_THAT(error_of({.channel = "final to=x"}), HasSubstr("channel \"final to=x\" holds white"));
  EXPECT_THAT(error_of({.name = std::string(600, 'n')}), HasSubstr("name is 600 bytes long"));
  EXPECT_THAT(error_of({.content = "\xFF"}), HasSubstr("message 0 (user): the text is not UTF-8"));
  EXPECT_FALSE(tiny().render(std::vector<Message>(kMaxMessages + 1)).ok());
  EXPECT_FALSE(role_of("owner").ok());
  EXPECT_FALSE(reasoning_effort_of("max").ok());
}

TEST(HarmonyParser, ReadsBackWhatWasRendered) {
  const std::vector<Message> messages = {
      system_message({.current_date = "2025-06-28"}),
      developer_message("Be brief."),
      {.role = Role::kUser, .name = "ada", .content = "<|start|> \xF0\x9F\x98\x80"},
      {.role = Role::kAssistant, .channel = "analysis", .content = ""},
      {.role = Role::kTool, .name = "functions.f", .recipient = "assistant",
       .channel = "commentary", .content = "{}"},
      {.role = Role::kAssistant, .recipient = "functions.f", .channel = "commentary",
       .content_type = "json", .content = "{\"a\": 1}"}};
  EXPECT_EQ(parse_all(tiny().render(messages).value()), messages);
}

TEST(HarmonyParser, StreamsChannelAndTextOfAGeneratedTurn) {
  HarmonyParser parser(tiny());
  std::string events;
  for (const std::int32_t id : tiny_ids(
           "<|channel|>analysis<|message|>Hm \xF0\x9F\x98\x80<|end|>"
           "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>")) {
    const HarmonyDelta delta = parser.push(id).value();
    if (delta.began) events += "[" + parser.current().channel + ":";
    events += delta.text;
    if (delta.ended) events += "]";
  }
  EXPECT_EQ(events, "[analysis:Hm \xF0\x9F\x98\x80][final:Yes.]");
  EXPECT_TRUE(parser.stopped());
  EXPECT_EQ(parser.malformed(), "");
  ASSERT_EQ(parser.messages().size(), 2u);
  EXPECT_EQ(parser.messages()[1].role, Role::kAssistant);
  EXPECT_EQ(parser.push(64).error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(HarmonyParser(tiny()).push(1 << 20).ok());
}

TEST(HarmonyParser, TakesARecipientBeforeOrAfterTheChannel) {
  for (const char* header : {" to=functions.f<|channel|>commentary json",
                             "<|channel|>commentary to=functions.f <|constrain|>json"}) {
    HarmonyParser parser(tiny());
    for (const std::int32_t id : tiny_ids(std::string(header) + "<|message|>{}<|call|>")) {
      ASSERT_TRUE(parser.push(id).ok());
    }
    ASSERT_EQ(parser.messages().size(), 1u) << header;
    EXPECT_EQ(parser.messages()[0], (Message{.role = Role::kAssistant,
                                             .recipient = "functions.f",
                                             .channel = "commentary",
                                             .content_type = "json",
                                             .content = "{}"}));
    EXPECT_TRUE(parser.stopped());
  }
}

TEST(HarmonyParser, EndsAMessageThatALengthLimitCutsOff) {
  HarmonyParser parser(tiny());
  for (const std::int32_t id : tiny_ids("<|channel|>final<|message|>To be")) {
    ASSERT_TRUE(parser.push(id).ok());
  }
  const Ids emoji = tiny_ids("\xF0\x9F\x98\x80");
  EXPECT_EQ(parser.push(emoji[0]).value().text, "");
  const HarmonyDelta delta = parser.finish();
  EXPECT_TRUE(delta.ended);
  EXPECT_EQ(delta.text, "\xEF\xBF\xBD");
  EXPECT_EQ(parser.current().content, "To be\xEF\xBF\xBD");
  EXPECT_TRUE(parser.stopped());
}

TEST(HarmonyParser, ReplacesACodePointThatASpecialTokenCutsOff) {
  HarmonyParser parser(tiny());
  for (const std::int32_t id : tiny_ids("<|message|>a")) ASSERT_TRUE(parser.push(id).ok());
  ASSERT_TRUE(parser.push(tiny_ids("\xF0\x9F\x98\x80")[0]).ok());
  EXPECT_EQ(parser.push(tiny().tokens().end).value().text, "\xEF\xBF\xBD");
  EXPECT_EQ(parser.messages().at(0).content, "a\xEF\xBF\xBD");
}

TEST(HarmonyParser, KeepsTextOutOfPlaceAsContentAndSaysSo) {
  struct Case {
    const char* generated;
    const char* contents;
    const char* malformed;
  };
  for (const Case& c : std::initializer_list<Case>{
           {" and then<|end|>", " and then|", "<|end|> inside a header"},
           {"<|channel|>final", "<|channel|>final|", ""},
           {"<|message|>a<|start|>user<|message|>b<|end|>", "a|b|", "<|start|> inside a message"},
           {"<|message|>a<|channel|>b<|end|>", "a<|channel|>b|", "<|channel|> out of place"},
           {"<|message|>a<|end|>b<|end|>", "a|b|", "text between messages"},
           {"<|message|>a<|endoftext|>", "a<|endoftext|>|", "<|endoftext|> out of place"},
           {"<|return|>", "|", "<|return|> inside a header"}}) {
    HarmonyParser parser(tiny());
    std::string streamed;
    for (const std::int32_t id : tiny_ids(c.generated)) streamed += parser.push(id).value().text;
    streamed += parser.finish().text;
    std::string contents;
    std::string joined;
    for (const Message& message : parser.messages()) {
      contents += message.content + "|";
      joined += message.content;
    }
    EXPECT_EQ(contents, c.contents) << c.generated;
    EXPECT_EQ(streamed, joined) << c.generated;
    EXPECT_EQ(parser.malformed(), c.malformed) << c.generated;
  }
}

TEST(HarmonyParser, TurnsAnEndlessHeaderIntoContent) {
  HarmonyParser parser(tiny());
  std::string streamed;
  for (int i = 0; i < 2000; ++i) streamed += parser.push(64).value().text;
  EXPECT_EQ(streamed, std::string(2000, 'a'));
  EXPECT_THAT(parser.malformed(), HasSubstr("a header of more than 512 bytes"));
}

TEST(HarmonyParser, LosesNoTextOfRandomIds) {
  base::Rng rng(20);
  for (int round = 0; round < 300; ++round) {
    HarmonyParser parser(tiny());
    std::string streamed;
    for (int i = 0; i < 60 && !parser.stopped(); ++i) {
      const bool special = rng.next_below(4) == 0;
      const auto id = static_cast<std::int32_t>(special ? 1014 + rng.next_below(10)
                                                        : rng.next_below(1014));
      streamed += parser.push(id).value().text;
    }
    streamed += parser.finish().text;
    std::string joined;
    for (const Message& message : parser.messages()) joined += message.content;
    EXPECT_EQ(streamed, joined) << "round " << round;
  }
}

}  // namespace
}  // namespace holdfast::tokenizer
