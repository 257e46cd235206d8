// What replies of each dialect hold, built from outputs that are written down.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "holdfast/chat.h"
#include "serve/chat_reply.h"
#include "serve/completion_reply.h"
#include "serve/generate_reply.h"
#include "serve/scripted_test.h"

namespace holdfast::serve {
namespace {

ReplyContext context() {
  return {.tokenizer = tiny_tokenizer(),
          .id = "id-1",
          .model = "tiny",
          .created_s = 12,
          .eos_token_ids = {1016},
          .routing = {.layers = 2, .experts_per_token = 1}};
}

std::vector<std::int32_t> ids_of(const std::string& text) {
  return tiny_tokenizer().encode(text).value();
}

// A choice whose tokens come one by one, each with its text, and what a format makes of them.
struct Told {
  Json whole;
  std::vector<Json> chunks;
};
Told tell(ReplyFormat& whole, ReplyFormat& streamed, const std::vector<Event>& events,
          const std::string& version = "v7") {
  Choice choice;
  choice.prompt_ids = ids_of("To be");
  std::string bytes;
  std::size_t tokens = 0, text = 0;
  bool first = true;
  for (const Event& event : events) {
    choice.take({.event = event, .version = version});
    bytes += streamed.chunk(choice, {.first_token = tokens,
                                     .text = std::string_view(choice.text).substr(text),
                                     .first = first});
    tokens = choice.tokens.size();
    text = choice.text.size();
    first = false;
  }
  bytes += streamed.last(std::span(&choice, 1));
  return {Json::parse(whole.body(std::span(&choice, 1))), sse_objects(bytes)};
}

std::vector<Event> three_tokens() {
  Event first = token_event(3, "a");
  auto detail = std::make_shared<PromptDetail>();
  detail->cached_tokens = 1;
  const std::size_t before = ids_of("To be").size() - 1;
  detail->ranks.assign(before, 4);
  detail->top.assign(before, {{.id = 8, .logprob = -0.125f}});
  detail->routed_experts.assign(before * 2, 5);
  first.prompt = detail;
  first.prompt_logprobs.assign(before, -1.5f);
  first.routed_experts = {6, 7};
  Event second = token_event(4, "");  // half of a character
  second.token->logprob = -std::numeric_limits<float>::infinity();
  second.routed_experts = {8, 9};
  Event third = ending(token_event(5, "é"), FinishReason::kLength);
  third.routed_experts = {1, 2};
  return {first, second, third};
}

TEST(CompletionReply, HoldsWhatOpenAIsClientsRead) {
  CompletionRequest request;
  request.logprobs = 2;
  request.return_token_ids = request.include_usage = request.asked_prompt_logprobs = true;
  request.engine.routed_experts = true;
  const auto whole = completion_reply(request, context());
  const auto streamed = completion_reply(request, context());
  const auto [reply, chunks] = tell(*whole, *streamed, three_tokens());
  EXPECT_EQ(reply["object"], "text_completion");
  EXPECT_EQ(reply["id"], "id-1");
  EXPECT_EQ(reply["created"], 12);
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], "aé");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_EQ(choice["token_ids"], Json({3, 4, 5}));
  EXPECT_EQ(choice["prompt_token_ids"], Json(ids_of("To be")));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({-0.5, -9999.0, -0.5}));
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(choice["logprobs"]["text_offset"][0], 0);
  EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
  const std::string second_id = std::to_string(ids_of("To be")[1]);
  EXPECT_EQ(choice["prompt_logprobs"][1][second_id]["logprob"], -1.5);
  EXPECT_EQ(choice["prompt_logprobs"][1][second_id]["rank"], 4);
  EXPECT_EQ(choice["prompt_logprobs"][1]["8"]["rank"], 1);
  EXPECT_EQ(choice["weight_versions"],
            Json::parse(R"([{"version":"v7","epoch":1,"start":0,"end":3}])"));
  EXPECT_EQ(reply["logprobs_mode"], "raw");
  const auto prompt = static_cast<int>(ids_of("To be").size());
  EXPECT_EQ(reply["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(reply["usage"]["total_tokens"], prompt + 3);
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 1);

  ASSERT_EQ(chunks.size(), 4u);
  std::string text;
  Json tokens = Json::array(), offsets = Json::array();
  for (const Json& chunk : chunks) {
    if (chunk["choices"].empty()) continue;
    text += chunk["choices"][0]["text"];
    for (const Json& id : chunk["choices"][0]["token_ids"]) tokens.push_back(id);
    for (const Json& at : chunk["choices"][0]["logprobs"]["text_offset"]) offsets.push_back(at);
  }
  EXPECT_EQ(text, choice["text"]);
  EXPECT_EQ(tokens, choice["token_ids"]);
  EXPECT_EQ(offsets, choice["logprobs"]["text_offset"]);
  EXPECT_TRUE(chunks[0]["choices"][0].contains("prompt_token_ids"));
  EXPECT_FALSE(chunks[1]["choices"][0].contains("prompt_token_ids"));
  EXPECT_FALSE(chunks[1]["choices"][0].contains("weight_versions"));
  EXPECT_TRUE(chunks[2]["choices"][0].contains("weight_versions"));
  EXPECT_EQ(chunks[3]["usage"], reply["usage"]);
}

TEST(CompletionReply, EchoPutsThePromptBeforeTextAndLogprobs) {
  CompletionRequest request;
  request.echo = true;
  request.logprobs = 0;
  request.prompts = {{.text = "To be", .ids = ids_of("To be"), .is_text = true}};
  const auto whole = completion_reply(request, context());
  const auto streamed = completion_reply(request, context());
  const auto [reply, chunks] = tell(*whole, *streamed, three_tokens());
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], "To beaé");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), ids_of("To be").size() + 3);
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -1.5);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "To bea");
  EXPECT_EQ(chunks[1]["choices"][0]["text"], "");
}

TEST(CompletionReply, TokensAreNamedByIdWhereAsked) {
  CompletionRequest request;
  request.logprobs = 1;
  request.tokens_as_ids = true;
  const auto whole = completion_reply(request, context());
  const auto streamed = completion_reply(request, context());
  const auto [reply, chunks] = tell(*whole, *streamed, three_tokens());
  EXPECT_EQ(reply["choices"][0]["logprobs"]["tokens"][0], "token_id:3");
  EXPECT_EQ(reply["choices"][0]["logprobs"]["top_logprobs"][0],
            Json::parse(R"({"token_id:3":-0.5,"token_id:9":-0.25})"));
}

TEST(CompletionReply, TokensOfOneNameDoNotMakeAKeyTwice) {
  const std::vector<std::int32_t> halves = ids_of("é");  // two bytes, neither a character
  ASSERT_EQ(halves.size(), 2u);
  CompletionRequest request;
  request.logprobs = 2;
  Event event = ending(token_event(halves[0], ""), FinishReason::kLength);
  event.top_logprobs = {{.id = halves[1], .logprob = -0.25f}};
  const auto format = completion_reply(request, context());
  Choice choice;
  choice.take({.event = event, .version = ""});
  const std::string body = format->body(std::span(&choice, 1));
  EXPECT_THAT(body, ::testing::HasSubstr("\"top_logprobs\":[{\"\xEF\xBF\xBD\":-0.5}]"));
}

TEST(CompletionReply, WhatEndedItIsSaid) {
  const auto reason = [](const Event& last) {
    const auto whole = completion_reply({}, context());
    const auto streamed = completion_reply({}, context());
    const Json reply = tell(*whole, *streamed, {last}).whole;
    return Json({reply["choices"][0]["finish_reason"], reply["choices"][0]["stop_reason"]});
  };
  Event by_text = ending(token_event(3, "x"), FinishReason::kStop);
  by_text.stop_string = "END";
  EXPECT_EQ(reason(by_text), Json({"stop", "END"}));
  Event by_id = ending(token_event(3, "x"), FinishReason::kStop);
  by_id.stop_token = 3;
  EXPECT_EQ(reason(by_id), Json({"stop", 3}));
  Event by_model = ending(token_event(1016, ""), FinishReason::kStop);
  by_model.stop_token = 1016;
  EXPECT_EQ(reason(by_model), Json({"stop", nullptr}));
  EXPECT_EQ(reason(ending({}, FinishReason::kAbort)), Json({"abort", nullptr}));
}

TEST(CompletionReply, RoutedExpertsAreANumPyFile) {
  CompletionRequest request;
  request.engine.routed_experts = true;
  const auto whole = completion_reply(request, context());
  const auto streamed = completion_reply(request, context());
  const Json reply = tell(*whole, *streamed, three_tokens()).whole;
  const std::size_t rows = ids_of("To be").size() - 1 + 3;
  Choice choice;
  for (const Event& event : three_tokens()) choice.take({.event = event, .version = ""});
  const std::string npy = reply["choices"][0]["routed_experts"];
  EXPECT_EQ(npy, routed_experts_npy(choice, {.layers = 2, .experts_per_token = 1}));
  EXPECT_TRUE(npy.starts_with(base64(std::string("\x93NUMPY\x01\x00\x76\x00{", 11)).substr(0, 13)));
  EXPECT_EQ(npy.size(), ((128 + rows * 4) + 2) / 3 * 4);
}

TEST(StopTailTest, KeepsBackWhatAStopStringMayBeginIn) {
  StopTail tail({"END", "E!"});
  EXPECT_EQ(tail.push("abE"), "ab");
  EXPECT_EQ(tail.push("N"), "");
  EXPECT_EQ(tail.push("x"), "ENx");
  EXPECT_EQ(tail.push("yEN"), "y");
  EXPECT_EQ(tail.finish("D and more", "END", false), "");
  EXPECT_EQ(tail.push("yEN"), "y");
  EXPECT_EQ(tail.finish("D and more", "END", true), "END");
  EXPECT_EQ(tail.push("zEN"), "z");
  EXPECT_EQ(tail.finish("", "", false), "EN");
}

class ChatReplyTest : public ::testing::Test {
 protected:
  // The events of a reply that a model writes as `text`, in the format's own syntax.
  static std::vector<Event> written(const std::string& text, FinishReason reason) {
    std::vector<Event> events;
    for (const std::int32_t id : ids_of(text)) events.push_back(token_event(id, ""));
    events.back().finish_reason = reason;
    return events;
  }
  Told tell_chat(const std::vector<Event>& events) {
    const auto whole = chat_reply(request_, *format_, context());
    const auto streamed = chat_reply(request_, *format_, context());
    return tell(*whole, *streamed, events);
  }
  ChatRequest request_;
  std::unique_ptr<ChatFormat> format_ = ChatFormat::open(tiny_tokenizer(), "harmony").value();
};

// One field of all deltas, joined.
std::string joined(const std::vector<Json>& chunks, const char* field) {
  std::string all;
  for (const Json& chunk : chunks) {
    if (chunk["choices"].empty()) continue;
    const Json& delta = chunk["choices"][0]["delta"];
    if (delta.contains(field)) all += delta[field];
  }
  return all;
}

constexpr const char* kAnswer =
    "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant<|channel|>final"
    "<|message|>It is END of it.<|return|>";

TEST_F(ChatReplyTest, ContentAndReasoningAreParted) {
  request_.include_usage = request_.logprobs = request_.return_token_ids = true;
  const auto [reply, chunks] = tell_chat(written(kAnswer, FinishReason::kStop));
  EXPECT_EQ(reply["object"], "chat.completion");
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "It is END of it.");
  EXPECT_EQ(choice["message"]["reasoning"], "Let me think.");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["logprobs"]["content"].size(), ids_of(kAnswer).size());
  EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(choice["token_ids"], Json(ids_of(kAnswer)));
  EXPECT_EQ(reply["prompt_token_ids"], Json(ids_of("To be")));
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(joined(chunks, "content"), "It is END of it.");
  EXPECT_EQ(joined(chunks, "reasoning"), "Let me think.");
  EXPECT_EQ(chunks.back()["usage"], reply["usage"]);
  EXPECT_EQ(chunks[chunks.size() - 2]["choices"][0]["finish_reason"], "stop");
}

TEST_F(ChatReplyTest, AStopStringCutsTheContentInStreamsToo) {
  request_.engine.stop = {"END"};
  std::vector<Event> events = written(kAnswer, FinishReason::kStop);
  std::string text;
  std::size_t last = 0;
  while (text.find("END") == std::string::npos) {
    text += tiny_tokenizer().decode(std::span(&events[last++].token->id, 1)).value();
  }
  events.resize(last);
  events.back().finish_reason = FinishReason::kStop;
  events.back().stop_string = "END";
  const auto [reply, chunks] = tell_chat(events);
  EXPECT_EQ(reply["choices"][0]["message"]["content"], "It is ");
  EXPECT_EQ(joined(chunks, "content"), "It is ");
  EXPECT_EQ(reply["choices"][0]["stop_reason"], "END");
  request_.engine.include_stop = true;
  EXPECT_EQ(tell_chat(events).whole["choices"][0]["message"]["content"], "It is END");
}

TEST_F(ChatReplyTest, CallsAreToolCalls) {
  const auto [reply, chunks] = tell_chat(written(
      "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
      "{\"city\":\"Rome\"}<|call|>",
      FinishReason::kStop));
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const Json& call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "get_weather");
  EXPECT_EQ(call["function"]["arguments"], "{\"city\":\"Rome\"}");
  EXPECT_EQ(call["type"], "function");
  std::string name, arguments, id;
  for (const Json& chunk : chunks) {
    const Json& delta = chunk["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    for (const Json& piece : delta["tool_calls"]) {
      EXPECT_EQ(piece["index"], 0);
      id += piece.value("id", "");
      name += piece["function"].value("name", "");
      arguments += piece["function"].value("arguments", "");
    }
  }
  EXPECT_EQ(id, call["id"]);
  EXPECT_EQ(name, "get_weather");
  EXPECT_EQ(arguments, "{\"city\":\"Rome\"}");
}

TEST_F(ChatReplyTest, ReasoningIsLeftOutWhereAsked) {
  request_.include_reasoning = false;
  const auto [reply, chunks] = tell_chat(written(kAnswer, FinishReason::kStop));
  EXPECT_TRUE(reply["choices"][0]["message"]["reasoning"].is_null());
  EXPECT_EQ(joined(chunks, "reasoning"), "");
}

TEST(TokensReply, HoldsIdsAndLogprobsOfBothSpellings) {
  TokensRequest request;
  request.logprobs = request.include_usage = true;
  request.engine.prompt_logprobs = true;
  const auto whole = tokens_reply(request, context());
  const auto streamed = tokens_reply(request, context());
  const auto [reply, chunks] = tell(*whole, *streamed, three_tokens());
  EXPECT_EQ(reply["request_id"], "id-1");
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["token_ids"], Json({3, 4, 5}));
  EXPECT_EQ(choice["finish_reason"], "length");
  const Json& entry = choice["logprobs"]["content"][0];
  EXPECT_EQ(entry["token"], "token_id:3");
  EXPECT_EQ(entry["token_id"], 3);
  EXPECT_EQ(entry["rank"], 2);
  EXPECT_EQ(entry["top_logprobs"][0]["token_id"], 9);
  EXPECT_TRUE(reply["prompt_logprobs"][0].is_null());
  EXPECT_EQ(choice["weight_versions"][0]["version"], "v7");
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[1]["choices"][0]["token_ids"], Json({4}));
  EXPECT_EQ(chunks[3]["usage"], reply["usage"]);
}

TEST(SglangReply, HoldsMetaInfo) {
  SglangRequest request;
  request.routed_experts = request.text_in_logprobs = true;
  request.prompts.resize(1);
  SglangPrompt& prompt = request.prompts[0];
  prompt.return_logprob = true;
  prompt.logprob_start = 0;
  prompt.top_logprobs = 1;
  prompt.logprob_ids = {9};
  const auto whole = sglang_reply(request, {"rid"}, context());
  const auto streamed = sglang_reply(request, {"rid"}, context());
  const auto [reply, chunks] = tell(*whole, *streamed, three_tokens(), "");
  EXPECT_EQ(reply["text"], "aé");
  EXPECT_EQ(reply["output_ids"], Json({3, 4, 5}));
  const Json& meta = reply["meta_info"];
  EXPECT_EQ(meta["id"], "rid");
  EXPECT_EQ(meta["finish_reason"], Json::parse(R"({"type":"length","length":3})"));
  EXPECT_EQ(meta["completion_tokens"], 3);
  EXPECT_EQ(meta["cached_tokens"], 1);
  EXPECT_EQ(meta["weight_version"], "default");
  EXPECT_EQ(meta["weight_versions"][0]["end"], 3);
  EXPECT_EQ(meta["output_token_logprobs"].size(), 3u);
  EXPECT_EQ(meta["output_token_logprobs"][1][0], -9999.0);
  EXPECT_EQ(meta["output_token_logprobs"][1][1], 4);
  EXPECT_EQ(meta["output_top_logprobs"][0][0][1], 9);
  EXPECT_EQ(meta["output_token_ids_logprobs"][0][0][0], -0.25);
  EXPECT_EQ(meta["input_token_logprobs"].size(), ids_of("To be").size());
  EXPECT_TRUE(meta["input_token_logprobs"][0][0].is_null());
  EXPECT_EQ(meta["input_token_logprobs"][1][0], -1.5);
  EXPECT_TRUE(meta["input_top_logprobs"][0].is_null());
  EXPECT_EQ(meta["input_top_logprobs"][1][0][1], 8);
  const std::size_t values = (ids_of("To be").size() - 1 + 3) * 2;
  EXPECT_EQ(meta["routed_experts"].get<std::string>().size(), (values * 4 + 2) / 3 * 4);
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[1]["output_ids"], Json({3, 4}));  // everything so far
  EXPECT_TRUE(chunks[1]["meta_info"]["finish_reason"].is_null());
  EXPECT_EQ(chunks[2]["text"], reply["text"]);
  EXPECT_EQ(chunks[2]["meta_info"], meta);
}

TEST(SglangReply, SeveralChoicesAreAListAndAbortsKeepTheirTokens) {
  SglangRequest request;
  request.prompts.resize(1);
  const auto format = sglang_reply(request, {"rid"}, context());
  std::vector<Choice> choices(2);
  choices[1].index = 1;
  choices[0].take({.event = token_event(3, "a"), .version = ""});
  for (Choice& choice : choices) {
    choice.take({.event = ending({}, FinishReason::kAbort), .version = ""});
  }
  const Json reply = Json::parse(format->body(choices));
  ASSERT_TRUE(reply.is_array());
  EXPECT_EQ(reply[0]["output_ids"], Json({3}));
  EXPECT_EQ(reply[0]["meta_info"]["finish_reason"]["type"], "abort");
}

TEST(RoutingShapeTest, ComesFromTheModelsConfig) {
  const RoutingShape shape = routing_shape(HF_SOURCE_DIR "/models/gptoss-tiny-A");
  EXPECT_EQ(shape.layers, 4);
  EXPECT_EQ(shape.experts_per_token, 2);
  EXPECT_EQ(routing_shape("/nowhere").layers, 0);
}

}  // namespace
}  // namespace holdfast::serve
