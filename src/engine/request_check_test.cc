#include "engine/request_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace holdfast::engine {
namespace {

constexpr std::int64_t kVocab = 10;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What is said of a request that is good but for what `spoil` does.
std::string refusal(const std::function<void(Request&)>& spoil) {
  Request request;
  request.prompt_ids = {1, 2};
  spoil(request);
  Settings settings;
  settings.max_context = 16;
  const Status status = check_request(request, settings, {.size = kVocab, .eos_token_ids = {9}});
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  return status.error().message();
}

std::string sampling_refusal(const std::function<void(Sampling&)>& spoil) {
  return refusal([&spoil](Request& request) { spoil(request.sampling); });
}

void expect_holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "\"" << text << "\" lacks \"" << part << "\"";
}

TEST(RequestCheck, ARealOutOfRangeIsNamedWithItsValueAndItsRange) {
  struct Case {
    float Sampling::* field;
    const char* name;
    std::vector<float> wrong, right;
  };
  const std::vector<Case> cases = {
      {&Sampling::temperature, "temperature", {-0.1f, 100.5f, kNan}, {0.0f, 100.0f}},
      {&Sampling::top_p, "top_p", {0.0f, 1.1f, kNan}, {1e-6f, 1.0f}},
      {&Sampling::min_p, "min_p", {-0.1f, 1.5f, kNan}, {0.0f, 1.0f}},
      {&Sampling::repetition_penalty, "repetition_penalty", {0.0f, -1.0f, 10.5f, kNan}, {10.0f}},
      {&Sampling::frequency_penalty, "frequency_penalty", {-2.5f, 2.5f, kNan}, {-2.0f, 2.0f}},
      {&Sampling::presence_penalty, "presence_penalty", {-2.5f, 2.5f, kNan}, {-2.0f, 2.0f}}};
  for (const Case& c : cases) {
    for (const float value : c.wrong) {
      const auto text = sampling_refusal([&](Sampling& s) { s.*c.field = value; });
      expect_holds(text, std::string("sampling field ") + c.name + " is ");
      expect_holds(text, "expected");
    }
    for (const float value : c.right) {
      EXPECT_EQ(sampling_refusal([&](Sampling& s) { s.*c.field = value; }), "") << c.name;
    }
  }
  expect_holds(sampling_refusal([](Sampling& s) { s.repetition_penalty = 12; }),
               "repetition_penalty is 12, expected above 0, up to 10");
  expect_holds(sampling_refusal([](Sampling& s) { s.top_k = -1; }), "top_k is -1");
}

TEST(RequestCheck, ABiasIsForATokenOfTheVocabularyAndWithinAHundred) {
  expect_holds(sampling_refusal([](Sampling& s) { s.logit_bias = {{1, 0.0f}, {10, 1.0f}}; }),
               "logit_bias[1] is for token 10, expected a token id from 0 to 9");
  expect_holds(sampling_refusal([](Sampling& s) { s.logit_bias = {{-1, 1.0f}}; }),
               "logit_bias[0] is for token -1");
  expect_holds(sampling_refusal([](Sampling& s) { s.logit_bias = {{3, 100.5f}}; }),
               "logit_bias[0] is 100.5 for token 3, expected -100 to 100");
  expect_holds(sampling_refusal([](Sampling& s) { s.logit_bias = {{3, kNan}}; }), "is nan");
  expect_holds(sampling_refusal([](Sampling& s) { s.logit_bias.assign(11, {1, 0.0f}); }),
               "11 biases");
  EXPECT_EQ(sampling_refusal([](Sampling& s) { s.logit_bias = {{0, -100.0f}, {9, 100.0f}}; }), "");
}

TEST(RequestCheck, AllowedTokensAreOfTheVocabulary) {
  expect_holds(sampling_refusal([](Sampling& s) { s.allowed_token_ids = {0, 10}; }),
               "allowed_token_ids[1] is 10");
  expect_holds(sampling_refusal([](Sampling& s) { s.allowed_token_ids.assign(11, 1); }),
               "11 ids");
  EXPECT_EQ(sampling_refusal([](Sampling& s) { s.allowed_token_ids = {0, 9}; }), "");
}

TEST(RequestCheck, TopLogprobsAreNoMoreThanTheVocabulary) {
  for (const std::int32_t count : {-2, 11}) {
    expect_holds(refusal([=](Request& r) { r.top_logprobs = count; }), "field top_logprobs is ");
    expect_holds(refusal([=](Request& r) { r.prompt_top_logprobs = count; }),
                 "field prompt_top_logprobs is ");
  }
  for (const std::int32_t count : {-1, 0, 10}) {
    EXPECT_EQ(refusal([=](Request& r) { r.top_logprobs = r.prompt_top_logprobs = count; }), "");
  }
}

TEST(RequestCheck, MinTokensAreAtMostMaxTokensAndLeaveSomethingToCome) {
  expect_holds(refusal([](Request& r) { r.min_tokens = -1; }), "min_tokens is -1");
  expect_holds(refusal([](Request& r) { r.max_tokens = 3, r.min_tokens = 4; }),
               "min_tokens is 4, expected 0 to 3 (max_tokens)");
  const auto only_the_end = [](Request& r) {
    r.min_tokens = 1;
    r.sampling.allowed_token_ids = {9, 4};
    r.stop_token_ids = {4};
  };
  expect_holds(refusal(only_the_end), "every token that may come would end the request");
  EXPECT_EQ(refusal([&](Request& r) { only_the_end(r), r.ignore_eos = true; }), "");
  EXPECT_EQ(refusal([&](Request& r) { only_the_end(r), r.min_tokens = 0; }), "");
  EXPECT_EQ(refusal([&](Request& r) { only_the_end(r), r.stop_token_ids = {}; }), "");
}

}  // namespace
}  // namespace holdfast::engine
