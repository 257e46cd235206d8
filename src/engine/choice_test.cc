// Tokens that the device takes (ops::choose): the same, bit by bit, as the host takes from logits,
// whatever a request asks for; and what then leaves the device.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "engine/read_device.h"
#include "engine/test_support.h"
#include "ops/choose_math.h"

namespace holdfast::engine {
namespace {

std::vector<Sampling> all_samplings() {
  return {{},
          {.temperature = 1.0f, .seed = 3},
          {.temperature = 0.4f, .seed = 4},
          {.temperature = 1.0f, .top_p = 0.8f, .seed = 5},
          {.temperature = 1.0f, .top_k = 3, .seed = 6},
          {.temperature = 0.9f, .min_p = 0.1f, .seed = 7},
          {.temperature = 0.0f, .repetition_penalty = 1.3f},
          {.temperature = 0.0f, .top_p = 0.5f}};
}

TEST(Choice, WhatTheDeviceCanTakeIsWhatTheHostTakesWithMoreAsked) {
  base::Rng rng(8);
  std::vector<float> logits(4200);
  for (float& logit : logits) logit = static_cast<float>(12.0 * rng.next_unit());
  Sampler sampler(std::ssize(logits));
  int taken = 0;
  for (const Sampling& sampling : all_samplings()) {
    for (std::uint64_t index = 0; index < 20; ++index) {
      const SampleInput plain{.sampling = sampling, .output_index = index};
      SampleInput more = plain;  // on the host in any case
      more.top_logprobs = 2;
      EXPECT_FALSE(Sampler::choosable(more));
      more.mode = LogprobsMode::kProcessed;
      EXPECT_FALSE(Sampler::choosable(more));
      more.mode = LogprobsMode::kRaw;
      const auto row = Sampler::choosable(plain);
      if (!row) continue;
      ++taken;
      const Sampled chosen = *Sampler::chosen(
          ops::choose_row({logits.data(), std::ssize(logits), row->temperature, row->draw}));
      const Sampled asked = *sampler.sample(logits, more);
      EXPECT_EQ(chosen.id, asked.id);
      EXPECT_EQ(chosen.logprob, asked.logprob);
    }
  }
  EXPECT_EQ(taken, 4 * 20) << "greedy with and without top_p, and two draws over all";
}

TEST(Choice, BrokenLogitsAreTheSameErrorByEitherWay) {
  std::vector<float> logits(100, 1.0f);
  logits[40] = std::numeric_limits<float>::quiet_NaN();
  const Sampling greedy;
  const SampleInput input{.sampling = greedy, .top_logprobs = 1};
  Sampler sampler(100);
  const auto host = sampler.sample(logits, input);
  const auto device = Sampler::chosen(ops::choose_row({logits.data(), 100}));
  ASSERT_FALSE(host.ok());
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.error().to_string(), host.error().to_string());
}

std::vector<Request> requests_of(const std::vector<Sampling>& samplings) {
  std::vector<Request> requests;
  for (const Sampling& sampling : samplings) {
    Request request;
    request.prompt_ids = {5, 17, static_cast<std::int32_t>(requests.size()) + 3};
    request.max_tokens = 12;
    request.ignore_eos = true;
    request.sampling = sampling;
    requests.push_back(request);
  }
  requests.front().prompt_logprobs = true;
  requests.back().top_logprobs = 3;
  requests[1].min_tokens = 4;
  requests[1].stop_token_ids = {9};
  return requests;
}

TEST(Choice, AnEngineWhoseDeviceTakesTokensSaysWhatOneThatReadsLogitsSays) {
  const auto requests = requests_of(all_samplings());
  const auto near = open_core(test_options(model_a()));
  const auto far =
      EngineCore::open(test_options(model_a()), std::make_unique<ReadDevice>()).value();
  EXPECT_FALSE(near->runtime().chooses());
  ASSERT_TRUE(far->runtime().chooses());
  const auto expected = run_one_by_one(*near, requests);
  const auto together = run_together(*far, requests);
  const auto alone = run_one_by_one(*far, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_GE(expected[i].ids.size(), 4u);
    EXPECT_TRUE(together[i].same_tokens(expected[i])) << "request " << i;
    EXPECT_TRUE(alone[i].same_tokens(expected[i])) << "request " << i;
    EXPECT_EQ(together[i].prompt_logprobs, expected[i].prompt_logprobs);
  }
}

TEST(Choice, LogitsLeaveTheDeviceForRowsThatNeedThemOnly) {
  auto owned = std::make_unique<ReadDevice>();
  ReadDevice& device = *owned;
  const auto core = EngineCore::open(test_options(model_a()), std::move(owned)).value();
  const auto bytes_of = [&](const std::vector<Sampling>& samplings) {
    auto requests = requests_of(samplings);
    for (Request& request : requests) {
      request.prompt_logprobs = false;
      request.stop_token_ids.clear();
      request.top_logprobs = {};
      request.min_tokens = 0;
    }
    device.bytes_read = 0;
    run_together(*core, std::move(requests));
    return device.bytes_read;
  };
  const auto row_bytes = static_cast<std::size_t>(core->runtime().config().vocab_size) * 4;
  constexpr std::size_t kTokens = 12;
  const Sampling drawn{.temperature = 1.0f, .seed = 1};
  const Sampling filtered{.temperature = 1.0f, .top_k = 2, .seed = 1};
  EXPECT_EQ(bytes_of({{}, drawn}), 2 * kTokens * sizeof(ops::Choice));
  EXPECT_EQ(bytes_of({filtered, filtered}), 2 * kTokens * row_bytes);
  EXPECT_EQ(bytes_of({{}, filtered}),
            kTokens * (2 * sizeof(ops::Choice) + row_bytes));
}

}  // namespace
}  // namespace holdfast::engine
