// What bodies become: requests of the engine, or one error that names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "holdfast/tokenizer.h"
#include "serve/chat_request.h"
#include "serve/completion_request.h"
#include "serve/generate_request.h"

namespace holdfast::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

RequestLimits limits() {
  return {.vocab_size = 1024,
          .max_context = 64,
          .max_prompt_tokens = 64,
          .max_choices = 8,
          .max_logprobs = 1024,
          .routed_experts = true};
}

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> it =
      Tokenizer::open(HF_SOURCE_DIR "/models/gptoss-tiny-A").value();
  return *it;
}

struct Planned {
  GenerationPlan plan = {};
  std::string error = {};  // "param|message"
};

std::string text_of(const RequestErrors& errors) {
  return errors.any() ? errors.first()->param + "|" + errors.first()->message : "";
}

Planned complete(const std::string& body, const RequestLimits& at = limits()) {
  JsonDocument document;
  if (const auto error = JsonDocument::parse(body, document)) return {.error = error->message};
  RequestErrors errors;
  CompletionRequest request = parse_completion(document.root(), at, errors);
  Planned planned;
  planned.plan = make_plan(request, {.tokenizer = tokenizer(), .limits = at, .random = 77}, errors);
  planned.error = text_of(errors);
  return planned;
}

Planned sglang(const std::string& body) {
  JsonDocument document;
  if (const auto error = JsonDocument::parse(body, document)) return {.error = error->message};
  const RequestLimits at = limits();
  RequestErrors errors;
  SglangRequest request = parse_sglang(document.root(), at, errors);
  Planned planned;
  planned.plan = plan_sglang(
      request, {.tokenizer = tokenizer(), .limits = at, .random = 7, .param = "text"}, errors);
  planned.error = text_of(errors);
  return planned;
}

std::string tokens_error(const std::string& body) {
  JsonDocument document;
  if (const auto error = JsonDocument::parse(body, document)) return error->message;
  const RequestLimits at = limits();
  RequestErrors errors;
  TokensRequest request = parse_tokens(document.root(), at, errors);
  make_plan(request, {.tokenizer = tokenizer(), .limits = at, .param = "token_ids"}, errors);
  return text_of(errors);
}

std::string chat_error(const std::string& body, ChatRequest* into = nullptr) {
  JsonDocument document;
  if (const auto error = JsonDocument::parse(body, document)) return error->message;
  RequestErrors errors;
  ChatRequest request = parse_chat(document.root(), limits(), errors);
  if (into != nullptr) *into = std::move(request);
  return text_of(errors);
}

TEST(Completions, DefaultsAreOpenAis) {
  const Planned got = complete(R"({"prompt":"To be"})");
  ASSERT_EQ(got.error, "");
  ASSERT_EQ(got.plan.requests.size(), 1u);
  const Request& request = got.plan.requests[0];
  EXPECT_EQ(request.prompt_ids, tokenizer().encode("To be").value());
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.seed, 77u);
  EXPECT_TRUE(request.want_text);
  EXPECT_FALSE(request.top_logprobs);
  EXPECT_FALSE(got.plan.stream);
}

TEST(Completions, EveryFieldReachesTheEngine) {
  const Planned got = complete(R"({"prompt":[5,6],"max_tokens":9,"temperature":0.5,"top_p":0.25,
      "top_k":7,"min_p":0.125,"repetition_penalty":1.5,"frequency_penalty":-1,
      "presence_penalty":2,"seed":-1,"logit_bias":{"8":-100,"3":1.5},"allowed_token_ids":[3,8],
      "stop":["x","y"],"stop_token_ids":[4],"include_stop_str_in_output":true,"ignore_eos":true,
      "min_tokens":2,"skip_special_tokens":false,"logprobs":3,"prompt_logprobs":-1,"priority":-4,
      "cache_salt":"v7","logprobs_mode":"processed_logprobs","return_routed_experts":true,
      "user":"u","model":"m","request_id":"r"})");
  ASSERT_EQ(got.error, "");
  const Request& r = got.plan.requests.at(0);
  EXPECT_THAT(r.prompt_ids, ElementsAre(5, 6));
  EXPECT_EQ(r.max_tokens, 9);
  EXPECT_EQ(r.sampling.temperature, 0.5f);
  EXPECT_EQ(r.sampling.top_p, 0.25f);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_EQ(r.sampling.min_p, 0.125f);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(r.sampling.frequency_penalty, -1.0f);
  EXPECT_EQ(r.sampling.presence_penalty, 2.0f);
  EXPECT_EQ(r.sampling.seed, ~std::uint64_t{0});
  EXPECT_THAT(r.sampling.logit_bias, ElementsAre(Pair(3, 1.5f), Pair(8, -100.0f)));
  EXPECT_THAT(r.sampling.allowed_token_ids, ElementsAre(3, 8));
  EXPECT_THAT(r.stop, ElementsAre("x", "y"));
  EXPECT_THAT(r.stop_token_ids, ElementsAre(4));
  EXPECT_TRUE(r.include_stop && r.ignore_eos && !r.skip_special && r.routed_experts);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_EQ(r.top_logprobs, 3);
  EXPECT_TRUE(r.prompt_logprobs);
  EXPECT_EQ(r.prompt_top_logprobs, -1);
  EXPECT_EQ(r.priority, -4);
  EXPECT_EQ(r.cache_salt, "v7");
  EXPECT_EQ(r.logprobs_mode, LogprobsMode::kProcessed);
}

TEST(Completions, PromptsTimesNAreChoicesWithSeedsOfTheirOwn) {
  const Planned got = complete(R"({"prompt":[[1],[2,3]],"n":3,"seed":40})");
  ASSERT_EQ(got.error, "");
  ASSERT_EQ(got.plan.requests.size(), 6u);
  EXPECT_EQ(got.plan.per_prompt, 3u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got.plan.requests[i].sampling.seed, 40 + i % 3);
    EXPECT_EQ(got.plan.requests[i].prompt_ids.size(), i < 3 ? 1u : 2u);
  }
  const Planned unseeded = complete(R"({"prompt":["a","a"],"n":2})");
  EXPECT_EQ(unseeded.plan.requests.at(3).sampling.seed, 80u);
}

TEST(Completions, ThePromptAndItsTokensMustFitTheContext) {
  EXPECT_EQ(complete(R"({"prompt":[1,2],"max_tokens":62})").error, "");
  EXPECT_THAT(complete(R"({"prompt":[1,2],"max_tokens":63})").error,
              HasSubstr("max_tokens|max_tokens is 63 and prompt has 2 tokens; together at most"));
  std::string ids = "1";
  for (int i = 0; i < 60; ++i) ids += ",1";
  // Nobody asked for 16: what is left is made.
  EXPECT_EQ(complete("{\"prompt\":[" + ids + "]}").plan.requests.at(0).max_tokens, 3);
  for (int i = 0; i < 4; ++i) ids += ",1";
  EXPECT_THAT(complete("{\"prompt\":[" + ids + "]}").error,
              HasSubstr("prompt|prompt has 65 tokens; expected 1 to 64"));
  const Planned cut = complete("{\"prompt\":[" + ids + ",9],\"truncate_prompt_tokens\":2}");
  EXPECT_THAT(cut.plan.requests.at(0).prompt_ids, ElementsAre(1, 9));
  EXPECT_EQ(complete("{\"prompt\":[" + ids + "],\"truncate_prompt_tokens\":-1}").error, "");
}

TEST(Completions, EchoWithLogprobsScoresThePrompt) {
  const Planned got = complete(R"({"prompt":"a b","echo":true,"logprobs":2,"max_tokens":0})");
  ASSERT_EQ(got.error, "");
  EXPECT_TRUE(got.plan.requests.at(0).prompt_logprobs);
  EXPECT_EQ(got.plan.requests.at(0).prompt_top_logprobs, 2);
  EXPECT_EQ(got.plan.requests.at(0).max_tokens, 0);
}

// A body, and how the error begins: "param|message".
const std::vector<std::pair<std::string, std::string>> kWrongCompletions = {
    {R"({})", "prompt|prompt is missing"},
    {R"([])", "|the body is an array"},
    {R"({"prompt":null})", "prompt|prompt is missing"},
    {R"({"prompt":5})", "prompt|prompt is 5; expected a string"},
    {R"({"prompt":[]})", "prompt|prompt is an array of 0"},
    {R"({"prompt":""})", "prompt|prompt has 0 tokens"},
    {R"({"prompt":[[]]})", "prompt|prompt has 0 tokens"},
    {R"({"prompt":[[1],[]]})", "prompt[1]|prompt[1] has 0 tokens"},
    {R"({"prompt":["a",1]})", "prompt[1]|prompt[1] is 1"},
    {R"({"prompt":[1,"a"]})", "prompt[1]|prompt[1] is \"a\"; expected a token id, 0 to 1023"},
    {R"({"prompt":[1,1024]})", "prompt[1]|prompt[1] is 1024"},
    {R"({"prompt":[1,-1]})", "prompt[1]|prompt[1] is -1"},
    {R"({"prompt":[1,1.5]})", "prompt[1]|prompt[1] is 1.5"},
    {R"({"prompt":[[1],[2,-3]]})", "prompt[1][1]|"},
    {R"({"prompt":[true]})", "prompt[0]|prompt[0] is true"},
    {R"({"prompt":["a","b","c","d","e","f","g","h","i"]})", "prompt|prompt holds 9 prompts"},
    {R"({"prompt":["a","b","c"],"n":3})", "prompt|3 prompts of 3 choices each are 9; at most 8"},
    {R"({"prompt":"a","n":9})", "n|n is 9; expected an integer, 1 to 8"},
    {R"({"prompt":"a","n":0})", "n|"},
    {R"({"prompt":"a","max_tokens":-1})", "max_tokens|"},
    {R"({"prompt":"a","max_tokens":"5"})", "max_tokens|max_tokens is \"5\""},
    {R"({"prompt":"a","temperature":-0.1})", "temperature|"},
    {R"({"prompt":"a","temperature":"hot"})", "temperature|"},
    {R"({"prompt":"a","temperature":101})", "temperature|"},
    {R"({"prompt":"a","top_p":0})", "top_p|"},
    {R"({"prompt":"a","top_p":1.1})", "top_p|"},
    {R"({"prompt":"a","top_k":-2})", "top_k|"},
    {R"({"prompt":"a","min_p":2})", "min_p|"},
    {R"({"prompt":"a","repetition_penalty":0})", "repetition_penalty|"},
    {R"({"prompt":"a","frequency_penalty":3})", "frequency_penalty|"},
    {R"({"prompt":"a","presence_penalty":-3})", "presence_penalty|"},
    {R"({"prompt":"a","seed":1.5})", "seed|"},
    {R"({"prompt":"a","seed":"x"})", "seed|"},
    {R"({"prompt":"a","logit_bias":[1]})", "logit_bias|"},
    {R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias|logit_bias: \"x\" is 1"},
    {R"({"prompt":"a","logit_bias":{"1024":1}})", "logit_bias|"},
    {R"({"prompt":"a","logit_bias":{"5":101}})", "logit_bias|"},
    {R"({"prompt":"a","logit_bias":{"5":1,"05":2}})", "logit_bias|logit_bias: token id 5 comes"},
    {R"({"prompt":"a","allowed_token_ids":[]})", "allowed_token_ids|"},
    {R"({"prompt":"a","allowed_token_ids":[5000]})", "allowed_token_ids[0]|"},
    {R"({"prompt":"a","stop":5})", "stop|"},
    {R"({"prompt":"a","stop":[""]})", "stop[0]|"},
    {R"({"prompt":"a","stop":[1]})", "stop[0]|"},
    {R"({"prompt":"a","stop_token_ids":[-1]})", "stop_token_ids[0]|"},
    {R"({"prompt":"a","min_tokens":5,"max_tokens":4})", "min_tokens|"},
    {R"({"prompt":"a","min_tokens":-1})", "min_tokens|"},
    {R"({"prompt":"a","logprobs":1025})", "logprobs|"},
    {R"({"prompt":"a","logprobs":true})", "logprobs|"},
    {R"({"prompt":"a","logprobs":-2})", "logprobs|"},
    {R"({"prompt":"a","prompt_logprobs":1,"stream":true})", "prompt_logprobs|"},
    {R"({"prompt":"a","stream":1})", "stream|"},
    {R"({"prompt":"a","stream_options":true})", "stream_options|"},
    {R"({"prompt":"a","stream_options":{"include":1}})", "stream_options.include|"},
    {R"({"prompt":"a","echo":"yes"})", "echo|"},
    {R"({"prompt":"a","cache_salt":""})", "cache_salt|"},
    {R"({"prompt":"a","cache_salt":1})", "cache_salt|"},
    {R"({"prompt":"a","priority":0.5})", "priority|"},
    {R"({"prompt":"a","truncate_prompt_tokens":0})", "truncate_prompt_tokens|"},
    {R"({"prompt":"a","logprobs_mode":"raw_logits"})", "logprobs_mode|"},
    {R"({"prompt":"a","best_of":2})", "best_of|"},
    {R"({"prompt":"a","suffix":"x"})", "suffix|"},
    {R"({"prompt":"a","use_beam_search":true})", "use_beam_search|"},
    {R"({"prompt":"a","bad_words":["x"]})", "bad_words|"},
    {R"({"prompt":"a","structured_outputs":{"regex":"x"}})", "structured_outputs|"},
    {R"({"prompt":"a","guided_json":{"a":1}})", "guided_json|"},
    {R"({"prompt":"a","response_format":{"type":"json_object"}})", "response_format.type|"},
    {R"({"prompt":"a","prompt":"b"})", "prompt|prompt comes twice"},
    {R"({"prompt":"a","max_token":5})", "max_token|max_token is not a field"},
};

TEST(Completions, WhatIsWrongIsOneErrorThatNamesTheField) {
  for (const auto& [body, expected] : kWrongCompletions) {
    EXPECT_THAT(complete(body).error, HasSubstr(expected)) << body;
    EXPECT_EQ(complete(body).error.find(expected), 0u) << body;
    EXPECT_THAT(complete(body).plan.requests, IsEmpty()) << body;
  }
}

TEST(Completions, AskingForNothingIsNoError) {
  EXPECT_EQ(complete(R"({"prompt":"a","suffix":null,"best_of":1,"bad_words":[],"stop":"",
      "use_beam_search":false,"length_penalty":1.0,"structured_outputs":null,"n":null,
      "response_format":{"type":"text"},"stop_token_ids":[],"thinking_token_budget":-1,
      "some_new_field":null,"top_k":-1,"kv_transfer_params":{}})").error,
            "");
}

TEST(Completions, AServerWithFewerLogprobsSaysSo) {
  RequestLimits few = limits();
  few.max_logprobs = 5;
  EXPECT_EQ(complete(R"({"prompt":"a","logprobs":5})", few).error, "");
  EXPECT_THAT(complete(R"({"prompt":"a","logprobs":-1})", few).error, HasSubstr("0 to 5"));
}

TEST(ChatRequests, MessagesToolsAndOptionsAreRead) {
  ChatRequest got;
  ASSERT_EQ(chat_error(R"({"model":"m","messages":[
      {"role":"system","content":"Be brief."},
      {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"reasoning":"hm","tool_calls":[{"id":"c1",
        "type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
      {"role":"tool","tool_call_id":"c1","content":"7"}],
      "tools":[{"type":"function","function":{"name":"f","description":"d",
        "parameters":{"type":"object","properties":{}}}}],
      "tool_choice":"auto","reasoning_effort":"high","max_completion_tokens":5,"max_tokens":9,
      "logprobs":true,"top_logprobs":2,"stop":"END","parallel_tool_calls":true,
      "stream":true,"stream_options":{"include_usage":true}})", &got), "");
  ASSERT_EQ(got.conversation.messages.size(), 4u);
  EXPECT_EQ(got.conversation.messages[1].content, "a\nb");
  EXPECT_EQ(got.conversation.messages[2].reasoning, "hm");
  EXPECT_EQ(got.conversation.messages[2].tool_calls.at(0).arguments, "{\"x\":1}");
  EXPECT_EQ(got.conversation.messages[3].tool_call_id, "c1");
  EXPECT_EQ(got.conversation.options.tools.at(0).parameters,
            R"({"type":"object","properties":{}})");
  EXPECT_EQ(got.conversation.options.effort, "high");
  EXPECT_EQ(got.max_tokens, 5);
  EXPECT_EQ(got.engine.top_logprobs, 2);
  EXPECT_TRUE(got.stream && got.include_usage);
  ASSERT_EQ(chat_error(R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"none",
      "tools":[{"type":"function","function":{"name":"f"}}]})", &got), "");
  EXPECT_THAT(got.conversation.options.tools, IsEmpty());
}

TEST(ChatRequests, WhatIsWrongIsOneErrorThatNamesTheField) {
  const std::string user = R"("messages":[{"role":"user","content":"a"}])";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "messages|messages is missing"},
      {R"({"messages":[]})", "messages|messages is an array of 0"},
      {R"({"messages":"hi"})", "messages|"},
      {R"({"messages":["hi"]})", "messages[0]|messages[0] is \"hi\"; expected an object"},
      {R"({"messages":[{"content":"a"}]})", "messages[0].role|messages[0].role is missing"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content|"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type|"},
      {R"({"messages":[{"role":"user","content":[{"text":"a"}]}]})",
       "messages[0].content[0].type|"},
      {R"({"messages":[{"role":"user","contents":"a"}]})", "messages[0].contents|"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"id":"x"}]}]})",
       "messages[0].tool_calls[0].function|"},
      {R"({"messages":[{"role":"assistant","tool_calls":{}}]})", "messages[0].tool_calls|"},
      {"{" + user + R"(,"tool_choice":"required"})", "tool_choice|"},
      {"{" + user + R"(,"tool_choice":{"type":"function","function":{"name":"f"}}})",
       "tool_choice|"},
      {"{" + user + R"(,"tools":{}})", "tools|"},
      {"{" + user + R"(,"tools":[{"type":"retrieval"}]})", "tools[0].type|"},
      {"{" + user + R"(,"tools":[{"type":"function","function":{}}]})", "tools[0].function.name|"},
      {"{" + user + R"(,"reasoning_effort":"extreme"})", "reasoning_effort|"},
      {"{" + user + R"(,"top_logprobs":2})", "top_logprobs|"},
      {"{" + user + R"(,"logprobs":2})", "logprobs|"},
      {"{" + user + R"(,"max_completion_tokens":-2})", "max_completion_tokens|"},
      {"{" + user + R"(,"chat_template":"x"})", "chat_template|"},
      {"{" + user + R"(,"chat_template_kwargs":{"x":1}})", "chat_template_kwargs.x|"},
      {"{" + user + R"(,"functions":[{"name":"f"}]})", "functions|"},
      {"{" + user + R"(,"modalities":["audio"]})", "modalities|"},
      {"{" + user + R"(,"continue_final_message":true,"add_generation_prompt":true})",
       "continue_final_message|"},
      {"{" + user + R"(,"prompt":"a"})", "prompt|"},
      {"{" + user + R"(,"response_format":{"type":"json_schema"}})", "response_format.type|"},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_EQ(chat_error(body).find(expected), 0u) << body << " gave " << chat_error(body);
  }
}

TEST(TokensRequests, IdsAndSamplingParamsAreReadOrRefused) {
  EXPECT_EQ(tokens_error(R"({"token_ids":[1,2],"request_id":"r","cache_salt":"s","priority":1,
      "sampling_params":{"max_tokens":4,"temperature":0,"logprobs":1,"prompt_logprobs":0,"n":2,
      "detokenize":false,"output_kind":2}})"), "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "token_ids|token_ids is missing"},
      {R"({"token_ids":"a"})", "token_ids|"},
      {R"({"token_ids":[]})", "token_ids|"},
      {R"({"token_ids":[1,5000]})", "token_ids[1]|"},
      {R"({"token_ids":[1],"sampling_params":[]})", "sampling_params|"},
      {R"({"token_ids":[1],"sampling_params":{"temperature":-1}})", "sampling_params.temperature|"},
      {R"({"token_ids":[1],"sampling_params":{"temp":1}})", "sampling_params.temp|"},
      {R"({"token_ids":[1],"features":{"x":1}})", "features|"},
      {R"({"token_ids":[1],"output_mode":"audio"})", "output_mode|"},
      {R"({"token_ids":[1],"max_tokens":5})", "max_tokens|"},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_EQ(tokens_error(body).find(expected), 0u) << body << " gave " << tokens_error(body);
  }
}

TEST(SglangRequests, FieldsOfOnePromptAndOfLists) {
  const Planned one = sglang(R"({"text":"To be","sampling_params":{"max_new_tokens":5,
      "temperature":0,"top_k":-1,"sampling_seed":3,"min_new_tokens":1,"no_stop_trim":true,
      "stop":"x"},"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,"rid":"r1",
      "priority":5,"extra_key":"k"})");
  ASSERT_EQ(one.error, "");
  const Request& r = one.plan.requests.at(0);
  EXPECT_EQ(r.max_tokens, 5);
  EXPECT_EQ(r.sampling.seed, 3u);
  EXPECT_EQ(r.priority, -5);
  EXPECT_TRUE(r.include_stop && r.prompt_logprobs);
  EXPECT_EQ(r.top_logprobs, 2);
  EXPECT_EQ(r.prompt_top_logprobs, 2);
  EXPECT_EQ(sglang(R"({"input_ids":[1]})").plan.requests.at(0).max_tokens, 63);  // of 128
  const Planned list = sglang(R"({"input_ids":[[1],[2]],"rid":["a","b"],"sampling_params":
      [{"max_new_tokens":1,"n":2},{"max_new_tokens":2,"n":2}],"return_logprob":[true,false],
      "token_ids_logprob":[[7,3],[]]})");
  ASSERT_EQ(list.error, "");
  ASSERT_EQ(list.plan.requests.size(), 4u);
  EXPECT_EQ(list.plan.requests[0].max_tokens, 1);
  EXPECT_EQ(list.plan.requests[3].max_tokens, 2);
  EXPECT_EQ(list.plan.requests[0].top_logprobs, -1);
  EXPECT_FALSE(list.plan.requests[3].top_logprobs);
  EXPECT_THAT(list.plan.filters.at(0).ids, ElementsAre(3, 7));
}

TEST(SglangRequests, WhatIsWrongIsOneErrorThatNamesTheField) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{}", "input_ids|text or input_ids is missing"},
      {R"({"text":"a","input_ids":[1]})", "input_ids|"},
      {R"({"text":[1]})", "text|"},
      {R"({"input_ids":"a"})", "input_ids|"},
      {R"({"input_ids":[1],"sampling_params":{"max_tokens":5}})", "sampling_params.max_tokens|"},
      {R"({"input_ids":[1],"sampling_params":{"max_new_tokens":-5}})",
       "sampling_params.max_new_tokens|"},
      {R"({"input_ids":[[1],[2]],"sampling_params":[{}]})", "sampling_params|"},
      {R"({"input_ids":[[1],[2]],"sampling_params":[{},{"top_p":2}]})",
       "sampling_params[1].top_p|"},
      {R"({"input_ids":[[1],[2]],"sampling_params":[{"n":1},{"n":2}]})", "sampling_params|"},
      {R"({"input_ids":[[1],[2]],"rid":["a"]})", "rid|"},
      {R"({"input_ids":[1],"rid":5})", "rid|"},
      {R"({"input_ids":[1],"return_logprob":"yes"})", "return_logprob|"},
      {R"({"input_ids":[1],"logprob_start_len":-2})", "logprob_start_len|"},
      {R"({"input_ids":[1],"top_logprobs_num":-1})", "top_logprobs_num|"},
      {R"({"input_ids":[1],"token_ids_logprob":[5000]})", "token_ids_logprob|"},
      {R"({"input_ids":[1],"lora_path":"x"})", "lora_path|"},
      {R"({"input_ids":[1],"sampling_params":{"regex":"x"}})", "sampling_params.regex|"},
      {R"({"input_ids":[1],"frobnicate":1})", "frobnicate|"},
  };
  for (const auto& [body, expected] : cases) {
    EXPECT_EQ(sglang(body).error.find(expected), 0u) << body << " gave " << sglang(body).error;
  }
}

}  // namespace
}  // namespace holdfast::serve
