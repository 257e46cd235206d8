#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace holdfast::engine {
namespace {

constexpr std::int64_t kVocab = 8;
// softmax: about .42 .26 .16 .09 .06 and less; ids out of order on purpose.
const std::array<float, kVocab> kLogits = {0.0f, 2.0f, -1.0f, 1.5f, 0.5f, -2.0f, 1.0f, -3.0f};

std::map<std::int32_t, int> draw_many(const Sampling& sampling, int count) {
  Sampler sampler(kVocab);
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < count; ++i) {
    ++counts[sampler.sample(kLogits, sampling, static_cast<std::uint64_t>(i))->id];
  }
  return counts;
}

std::set<std::int32_t> drawn_ids(const Sampling& sampling) {
  std::set<std::int32_t> ids;
  for (const auto& [id, count] : draw_many(sampling, 4000)) ids.insert(id);
  return ids;
}

TEST(Sampler, GreedyTakesTheLargestLogitAndTiesGoToTheLowerId) {
  Sampler sampler(4);
  EXPECT_EQ(sampler.sample(std::array{1.0f, 3.0f, 3.0f, 2.0f}, {}, 0)->id, 1);
  EXPECT_EQ(sampler.sample(std::array{-1.0f, -3.0f, -3.0f, -1.0f}, {}, 9)->id, 0);
}

TEST(Sampler, TheLogProbabilityIsThatOfTheRawDistribution) {
  double total = 0;
  for (const float logit : kLogits) total += std::exp(static_cast<double>(logit));
  Sampler sampler(kVocab);
  const Sampled greedy = *sampler.sample(kLogits, {}, 0);
  EXPECT_NEAR(greedy.logprob, 2.0 - std::log(total), 1e-6);
  const Sampled hot = *sampler.sample(kLogits, {.temperature = 3.0f, .top_k = 2, .seed = 5}, 0);
  EXPECT_NEAR(hot.logprob, static_cast<double>(kLogits[static_cast<std::size_t>(hot.id)]) -
                               std::log(total), 1e-6);
}

TEST(Sampler, ADrawDependsOnSeedAndOutputIndexAlone) {
  const Sampling sampling{.temperature = 1.0f, .seed = 42};
  Sampler one(kVocab), other(kVocab);
  std::vector<std::int32_t> forward, backward;
  for (std::uint64_t i = 0; i < 100; ++i) forward.push_back(one.sample(kLogits, sampling, i)->id);
  for (std::uint64_t i = 100; i > 0; --i) {
    backward.push_back(other.sample(kLogits, sampling, i - 1)->id);
  }
  EXPECT_EQ(forward, std::vector<std::int32_t>(backward.rbegin(), backward.rend()));
  std::vector<std::int32_t> reseeded;
  for (std::uint64_t i = 0; i < 100; ++i) {
    reseeded.push_back(one.sample(kLogits, {.temperature = 1.0f, .seed = 43}, i)->id);
  }
  EXPECT_NE(forward, reseeded);
}

TEST(Sampler, FrequenciesFollowTheSoftmaxAtTheTemperature) {
  constexpr int kDraws = 40000;
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    const auto counts = draw_many({.temperature = temperature, .seed = 7}, kDraws);
    double total = 0;
    for (const float logit : kLogits) total += std::exp(static_cast<double>(logit / temperature));
    for (std::int32_t id = 0; id < kVocab; ++id) {
      const double p =
          std::exp(static_cast<double>(kLogits[static_cast<std::size_t>(id)] / temperature)) /
          total;
      const double count = counts.contains(id) ? counts.at(id) : 0;
      // Five standard deviations of a binomial count.
      EXPECT_NEAR(count, kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)) + 1) << id;
    }
  }
}

TEST(Sampler, TopKOfOneIsGreedyAtAnyTemperature) {
  EXPECT_EQ(drawn_ids({.temperature = 100.0f, .top_k = 1}), std::set<std::int32_t>({1}));
}

TEST(Sampler, TopKKeepsTheKLargestAndTiesGoToTheLowerId) {
  EXPECT_EQ(drawn_ids({.temperature = 5.0f, .top_k = 3}), std::set<std::int32_t>({1, 3, 6}));
  Sampler sampler(4);
  std::set<std::int32_t> ids;
  for (std::uint64_t i = 0; i < 200; ++i) {
    ids.insert(sampler.sample(std::array{1.0f, 1.0f, 1.0f, 1.0f},
                              {.temperature = 1.0f, .top_k = 2}, i)->id);
  }
  EXPECT_EQ(ids, std::set<std::int32_t>({0, 1}));
}

TEST(Sampler, TopPKeepsTheShortestRunThatReachesItsShare) {
  // The two largest have .42 and .26 of the whole.
  EXPECT_EQ(drawn_ids({.temperature = 1.0f, .top_p = 0.4f}), std::set<std::int32_t>({1}));
  EXPECT_EQ(drawn_ids({.temperature = 1.0f, .top_p = 0.6f}), std::set<std::int32_t>({1, 3}));
  EXPECT_EQ(drawn_ids({.temperature = 1.0f, .top_p = 1e-6f}), std::set<std::int32_t>({1}));
}

TEST(Sampler, TopPCountsSharesOfWhatTopKKept) {
  // Of ids 1 and 3 alone, id 1 has .62.
  EXPECT_EQ(drawn_ids({.temperature = 1.0f, .top_p = 0.6f, .top_k = 2}),
            std::set<std::int32_t>({1}));
}

TEST(Sampler, MinPKeepsWhatReachesItsPartOfTheLargest) {
  // Relative to id 1: id 3 e^-.5 = .61, id 6 e^-1 = .37, id 4 e^-1.5 = .22.
  EXPECT_EQ(drawn_ids({.temperature = 1.0f, .min_p = 0.5f}), std::set<std::int32_t>({1, 3}));
  EXPECT_EQ(drawn_ids({.temperature = 1.0f, .min_p = 0.3f}), std::set<std::int32_t>({1, 3, 6}));
  EXPECT_EQ(drawn_ids({.temperature = 1.0f, .min_p = 1.0f}), std::set<std::int32_t>({1}));
}

TEST(Sampler, ATemperatureNearZeroIsGreedy) {
  EXPECT_EQ(drawn_ids({.temperature = 1e-30f}), std::set<std::int32_t>({1}));
}

TEST(Sampler, LogitsThatAreNotFiniteAreAnErrorThatNamesTheToken) {
  Sampler sampler(3);
  const auto nan =
      sampler.sample(std::array{0.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f}, {}, 0);
  ASSERT_FALSE(nan.ok());
  EXPECT_EQ(nan.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(nan.error().message().find("token 1"), std::string::npos);
  EXPECT_FALSE(
      sampler.sample(std::array{0.0f, 1.0f, std::numeric_limits<float>::infinity()}, {}, 0).ok());
}

}  // namespace
}  // namespace holdfast::engine
