// Biases, masks, penalties and log probabilities, each against its formula written out here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "engine/sampler.h"
#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

constexpr std::size_t kVocab = 12;
constexpr double kNever = -std::numeric_limits<double>::infinity();
using Ids = std::vector<std::int32_t>;

std::vector<float> random_logits(std::mt19937& random, std::size_t size = kVocab) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// A request's part of the tests below.
struct Case {
  Sampling sampling = {};
  Ids prompt = {}, output = {}, masked = {};
};

// The logits after steps 1 to 4, token by token, as request.h says it.
std::vector<double> changed_logits(const std::vector<float>& logits, const Case& c) {
  std::vector<double> result;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const auto is_in = [id](const Ids& ids) { return std::count(ids.begin(), ids.end(), id); };
    auto x = static_cast<double>(logits[i]);
    for (const auto& [to, bias] : c.sampling.logit_bias) {
      if (to == id) x += static_cast<double>(bias);
    }
    if (is_in(c.prompt) + is_in(c.output) > 0) {
      const auto penalty = static_cast<double>(c.sampling.repetition_penalty);
      x = x > 0 ? x / penalty : x * penalty;
    }
    if (is_in(c.output) > 0) {
      x -= static_cast<double>(is_in(c.output)) *
               static_cast<double>(c.sampling.frequency_penalty) +
           static_cast<double>(c.sampling.presence_penalty);
    }
    const Ids& allowed = c.sampling.allowed_token_ids;
    const bool is_dropped = (!allowed.empty() && !is_in(allowed)) || is_in(c.masked);
    result.push_back(is_dropped ? kNever : x);
  }
  return result;
}

// log p of what is left after temperature, top-k, top-p and min-p; dropped tokens are kNever.
std::vector<double> processed(const std::vector<double>& logits, const Sampling& sampling) {
  const double t = sampling.temperature == 0.0f ? 1.0 : static_cast<double>(sampling.temperature);
  Ids order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
  std::erase_if(order, [&](std::int32_t id) { return logits[id] == kNever; });
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < order.size()) {
    order.resize(static_cast<std::size_t>(sampling.top_k));
  }
  const auto p = [&](std::int32_t id) { return std::exp((logits[id] - logits[order[0]]) / t); };
  const auto total = [&] {
    double sum = 0;
    for (const std::int32_t id : order) sum += p(id);
    return sum;
  };
  if (sampling.top_p < 1.0f) {
    const double wanted = static_cast<double>(sampling.top_p) * total();
    double reached = 0;
    std::size_t count = 0;
    while (count < order.size() && (count == 0 || reached < wanted)) reached += p(order[count++]);
    order.resize(count);
  }
  const auto least = static_cast<double>(sampling.min_p);
  std::erase_if(order, [&](std::int32_t id) { return p(id) < least; });
  std::vector<double> result(logits.size(), kNever);
  for (const std::int32_t id : order) result[id] = std::log(p(id) / total());
  return result;
}

Sampled sample(const std::vector<float>& logits, const Case& c, LogprobsMode mode,
               std::uint64_t index = 0) {
  Sampler sampler(static_cast<std::int64_t>(logits.size()));
  return sampler
      .sample(logits, {.sampling = c.sampling,
                       .output_index = index,
                       .prompt = c.prompt,
                       .output = c.output,
                       .masked = {c.masked},
                       .mode = mode,
                       .top_logprobs = -1})
      .value();
}

// Log probabilities by id.
std::vector<double> by_id(const Sampled& sampled) {
  std::vector<double> result(sampled.top.size());
  for (const TokenLogprob& each : sampled.top) {
    result.at(static_cast<std::size_t>(each.id)) = static_cast<double>(each.logprob);
  }
  return result;
}

void expect_close(const std::vector<double>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (expected[i] == kNever) {
      EXPECT_EQ(got[i], kNever) << "token " << i;
    } else {
      EXPECT_NEAR(got[i], expected[i], 2e-5) << "token " << i;
    }
  }
}

std::vector<Case> cases() {
  const Ids prompt = {1, 2, 2}, output = {2, 5, 5, 7};
  return {
      {.sampling = {.logit_bias = {{3, 2.5f}, {0, -4.0f}, {3, 1.0f}}}},
      {.sampling = {.allowed_token_ids = {7, 1, 4, 4}}},
      {.sampling = {.repetition_penalty = 1.7f}, .prompt = prompt, .output = output},
      {.sampling = {.repetition_penalty = 0.4f}, .prompt = prompt, .output = output},
      {.sampling = {.frequency_penalty = 1.25f}, .prompt = prompt, .output = output},
      {.sampling = {.presence_penalty = -1.5f}, .prompt = prompt, .output = output},
      {.sampling = {.temperature = 0.0f}, .masked = {1, 9}},
      {.sampling = {.temperature = 0.7f, .top_p = 0.8f, .top_k = 5, .seed = 3}},
      {.sampling = {.temperature = 1.9f, .min_p = 0.2f, .seed = 4}},
      {.sampling = {.temperature = 1.3f, .top_p = 0.9f, .top_k = 9, .min_p = 0.01f, .seed = 5,
                    .repetition_penalty = 1.2f, .frequency_penalty = -0.5f,
                    .presence_penalty = 0.25f, .logit_bias = {{8, 3.0f}, {2, -1.0f}},
                    .allowed_token_ids = {0, 1, 2, 5, 7, 8, 11}},
       .prompt = prompt,
       .output = output,
       .masked = {11}}};
}

TEST(SamplerFields, ProcessedLogProbabilitiesAreThoseOfTheFormulas) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const auto logits = random_logits(random);
    for (const Case& c : cases()) {
      const Sampled sampled = sample(logits, c, LogprobsMode::kProcessed);
      const auto expected = processed(changed_logits(logits, c), c.sampling);
      expect_close(by_id(sampled), expected);
      EXPECT_NEAR(sampled.logprob, expected[static_cast<std::size_t>(sampled.id)], 2e-5);
      double total = 0;
      for (const double log : by_id(sampled)) total += std::exp(log);
      EXPECT_NEAR(total, 1.0, 1e-5);
    }
  }
}

TEST(SamplerFields, GreedyTakesTheLargestOfTheChangedLogits) {
  std::mt19937 random(2);
  for (int round = 0; round < 50; ++round) {
    const auto logits = random_logits(random);
    for (const Case& c : cases()) {
      if (c.sampling.temperature != 0.0f) continue;
      const auto changed = changed_logits(logits, c);
      const auto best = std::max_element(changed.begin(), changed.end()) - changed.begin();
      EXPECT_EQ(sample(logits, c, LogprobsMode::kRaw).id, best);
    }
  }
}

TEST(SamplerFields, RawLogProbabilitiesAreTheModelsWhateverIsChanged) {
  std::mt19937 random(3);
  const auto logits = random_logits(random);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  for (const Case& c : cases()) {
    const Sampled sampled = sample(logits, c, LogprobsMode::kRaw);
    for (const TokenLogprob& each : sampled.top) {
      const auto logit = static_cast<double>(logits[static_cast<std::size_t>(each.id)]);
      EXPECT_NEAR(each.logprob, logit - std::log(total), 1e-5);
    }
    EXPECT_EQ(by_id(sampled)[static_cast<std::size_t>(sampled.id)],
              static_cast<double>(sampled.logprob));
  }
}

TEST(SamplerFields, TheLikeliestComeFirstWithTiesToTheLowerIdAndTheRankIsThePlace) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, 2.0f};
  Sampler sampler(5);
  const Ids order = {1, 3, 2, 4, 0};
  for (std::int32_t place = 0; place < 5; ++place) {
    const Sampled scored = *sampler.score(logits, order[static_cast<std::size_t>(place)], -1);
    EXPECT_EQ(scored.rank, place + 1);
    Ids got;
    for (const TokenLogprob& each : scored.top) got.push_back(each.id);
    EXPECT_EQ(got, order);
  }
  for (const std::int32_t count : {0, 1, 3, 5}) {
    const Sampled scored = *sampler.score(logits, 4, count);
    EXPECT_EQ(std::ssize(scored.top), count);
    EXPECT_EQ(scored.rank, 4);
  }
  const Sampled plain = *sampler.score(logits, 4, std::nullopt);
  EXPECT_EQ(plain.rank, 0);
  EXPECT_TRUE(plain.top.empty());
}

TEST(SamplerFields, NoMaskedOrForbiddenTokenIsEverDrawn) {
  std::mt19937 random(4);
  Case c{.sampling = {.temperature = 100.0f, .seed = 8, .allowed_token_ids = {2, 3, 5, 7}},
         .prompt = {},
         .output = {},
         .masked = {3, 11}};
  std::set<std::int32_t> drawn;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    drawn.insert(sample(random_logits(random), c, LogprobsMode::kRaw, i).id);
  }
  EXPECT_EQ(drawn, (std::set<std::int32_t>{2, 5, 7}));
}

TEST(SamplerFields, DrawsFollowTheProcessedProbabilities) {
  std::mt19937 random(5);
  const auto logits = random_logits(random);
  const Case c = cases().back();
  const auto expected = by_id(sample(logits, c, LogprobsMode::kProcessed));
  constexpr int kDraws = 20000;
  std::vector<int> counts(kVocab);
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(sample(logits, c, LogprobsMode::kRaw, i).id)];
  }
  for (std::size_t id = 0; id < kVocab; ++id) {
    const double p = std::exp(expected[id]);
    // Five standard deviations of a binomial count.
    EXPECT_NEAR(counts[id], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << id;
  }
}

TEST(SamplerFields, PenaltiesOfOppositeSignsUndoEachOther) {
  std::mt19937 random(6);
  const auto logits = random_logits(random);
  const Case none{.sampling = {.temperature = 1.0f}, .prompt = {1}, .output = {2, 5, 5}};
  Case opposed = none;
  // Token 5 came twice and token 2 once: only the latter is left as it was.
  opposed.sampling.frequency_penalty = 1.5f;
  opposed.sampling.presence_penalty = -1.5f;
  const auto plain = changed_logits(logits, none);
  const auto got = by_id(sample(logits, opposed, LogprobsMode::kProcessed));
  EXPECT_NEAR(got[2] - got[0], plain[2] - plain[0], 2e-5);
  EXPECT_NEAR(got[5] - got[0], plain[5] - plain[0] - 1.5, 2e-5);
  Case up = none, down = none;
  up.sampling.presence_penalty = -0.75f;
  down.sampling.presence_penalty = 0.75f;
  const auto more = by_id(sample(logits, up, LogprobsMode::kProcessed));
  const auto less = by_id(sample(logits, down, LogprobsMode::kProcessed));
  EXPECT_NEAR((more[5] - more[0]) + (less[5] - less[0]), 2 * (plain[5] - plain[0]), 4e-5);
}

TEST(SamplerFields, ExtremeFieldsLeaveFiniteNumbers) {
  const float most = std::numeric_limits<float>::max();
  const std::vector<float> logits = {most, -most, 1.0f, -1.0f};
  const Case c{.sampling = {.temperature = 1.0f, .repetition_penalty = 1e-30f,
                            .logit_bias = {{0, 100.0f}, {1, -100.0f}}},
               .prompt = {0, 1, 2, 3}};
  const Sampled sampled = sample(logits, c, LogprobsMode::kProcessed);
  EXPECT_EQ(sampled.id, 0);
  EXPECT_EQ(sampled.logprob, 0.0f);
  for (const TokenLogprob& each : sampled.top) EXPECT_FALSE(std::isnan(each.logprob));
}

TEST(SamplerFields, AnEarlierCallLeavesNothingBehind) {
  std::mt19937 random(7);
  Sampler used(kVocab);
  for (int round = 0; round < 20; ++round) {
    const auto logits = random_logits(random);
    for (const Case& c : cases()) {
      const SampleInput input{.sampling = c.sampling,
                              .output_index = 3,
                              .prompt = c.prompt,
                              .output = c.output,
                              .masked = {c.masked},
                              .mode = LogprobsMode::kProcessed,
                              .top_logprobs = 4};
      const Sampled again = *used.sample(logits, input);
      Sampler fresh(kVocab);
      const Sampled first = *fresh.sample(logits, input);
      EXPECT_EQ(again.id, first.id);
      EXPECT_EQ(again.logprob, first.logprob);
      EXPECT_EQ(again.rank, first.rank);
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(again.top[i].logprob, first.top[i].logprob);
    }
  }
}

TEST(SamplerFields, ATokenWithoutExtrasAllocatesNothing) {
  std::mt19937 random(8);
  const auto logits = random_logits(random, 1000);
  Sampler sampler(1000);
  const Sampling greedy, drawn{.temperature = 0.8f, .top_p = 0.9f, .top_k = 50, .seed = 1};
  for (const Sampling& sampling : {greedy, drawn}) {
    std::int32_t id = -1;
    const auto draw = [&] { id = sampler.sample(logits, {.sampling = sampling})->id; };
    EXPECT_EQ(count_allocations(draw), 0u);
    EXPECT_GE(id, 0);
  }
}

}  // namespace
}  // namespace holdfast::engine
