// The prefix cache by itself: what is found, what is given up first, what is forgotten.
#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <array>

namespace holdfast::engine {
namespace {

using Tokens = std::array<std::int32_t, 2>;

TEST(PrefixCache, APageIsFoundByWeightsSaltPlaceAndTokensAndByNothingLess) {
  PrefixCache cache(8, 2);
  const Tokens a = {1, 2}, b = {3, 4};
  cache.insert({.epoch = 5, .salt = "x"}, a, 3);
  cache.insert({.epoch = 5, .salt = "x", .before = 3}, b, 6);
  EXPECT_EQ(cache.find({.epoch = 5, .salt = "x"}, a), 3);
  EXPECT_EQ(cache.find({.epoch = 5, .salt = "x", .before = 3}, b), 6);
  EXPECT_EQ(cache.find({.epoch = 4, .salt = "x"}, a), kNoPage);
  EXPECT_EQ(cache.find({.epoch = 6, .salt = "x"}, a), kNoPage);
  EXPECT_EQ(cache.find({.epoch = 5, .salt = "y"}, a), kNoPage);
  EXPECT_EQ(cache.find({.epoch = 5}, a), kNoPage);
  EXPECT_EQ(cache.find({.epoch = 5, .salt = "x"}, b), kNoPage) << "it is no first page";
  EXPECT_EQ(cache.find({.epoch = 5, .salt = "x", .before = 6}, b), kNoPage);
  EXPECT_EQ(cache.find({.epoch = 5, .salt = "x"}, Tokens{2, 1}), kNoPage);
}

// One bucket for all: nothing but comparing keeps them apart.
TEST(PrefixCache, TokensAreComparedAndNotOnlyHashed) {
  PrefixCache cache(1, 2);
  cache.insert({.epoch = 1}, Tokens{1, 2}, 0);
  for (std::int32_t token = 0; token < 2000; ++token) {
    EXPECT_EQ(cache.find({.epoch = 1}, Tokens{1, token}), token == 2 ? 0 : kNoPage);
  }
}

TEST(PrefixCache, ThePageThatHasBeenIdleLongestIsGivenUpFirst) {
  PrefixCache cache(8, 2);
  for (std::int32_t page = 0; page < 4; ++page) {
    cache.insert({.epoch = 1}, Tokens{page, page}, page);
  }
  for (const std::int32_t page : {2, 0, 3}) cache.set_idle(page);
  EXPECT_EQ(cache.idle_count(), 3);
  cache.set_used(0);
  cache.set_idle(0);
  EXPECT_EQ(cache.give_up_oldest(), 2);
  EXPECT_EQ(cache.give_up_oldest(), 3);
  EXPECT_EQ(cache.find({.epoch = 1}, Tokens{2, 2}), kNoPage);
  EXPECT_FALSE(cache.holds(2));
  EXPECT_EQ(cache.give_up_oldest(), 0);
  EXPECT_EQ(cache.idle_count(), 0);
  EXPECT_EQ(cache.find({.epoch = 1}, Tokens{1, 1}), 1) << "one in use stays";
  EXPECT_DEATH(static_cast<void>(cache.give_up_oldest()), "no page is idle");
}

TEST(PrefixCache, APageThatIsGivenUpCanHoldOtherTokens) {
  PrefixCache cache(2, 2);
  cache.insert({.epoch = 1}, Tokens{1, 1}, 0);
  cache.set_idle(0);
  EXPECT_EQ(cache.give_up_oldest(), 0);
  cache.insert({.epoch = 1}, Tokens{2, 2}, 0);
  EXPECT_EQ(cache.find({.epoch = 1}, Tokens{1, 1}), kNoPage);
  EXPECT_EQ(cache.find({.epoch = 1}, Tokens{2, 2}), 0);
}

TEST(PrefixCache, ClearingForgetsAllAndGivesTheIdlePages) {
  PrefixCache cache(8, 2);
  cache.insert({.epoch = 1}, Tokens{1, 1}, 4);
  cache.insert({.epoch = 1, .before = 4}, Tokens{1, 1}, 5);
  cache.insert({.epoch = 1}, Tokens{7, 7}, 6);
  cache.set_idle(5);
  cache.set_idle(4);
  std::vector<std::int32_t> freed;
  cache.clear([&freed](std::int32_t page) { freed.push_back(page); });
  EXPECT_EQ(freed, (std::vector<std::int32_t>{5, 4}));
  EXPECT_FALSE(cache.holds(6));
  EXPECT_EQ(cache.find({.epoch = 1}, Tokens{7, 7}), kNoPage);
  EXPECT_EQ(cache.idle_count(), 0);
}

}  // namespace
}  // namespace holdfast::engine
