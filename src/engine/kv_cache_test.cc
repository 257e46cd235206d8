// KV pages: given, shared, kept for equal prefixes, given up, forgotten.
#include "engine/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/rng.h"

namespace holdfast::engine {
namespace {

std::vector<std::int32_t> pages_of(const KvCache& cache, std::int32_t row) {
  return {cache.pages(row).begin(), cache.pages(row).end()};
}

std::vector<std::int32_t> counting(std::size_t count, std::int32_t first = 0) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A row that has computed all of `tokens`.
void compute(KvCache& cache, std::int32_t row, const std::vector<std::int32_t>& tokens,
             const std::string& salt = "") {
  cache.start(row, salt);
  ASSERT_TRUE(cache.grow(row, static_cast<std::int64_t>(tokens.size())).ok());
  cache.keep_prefix(row, tokens);
}

TEST(KvCache, PagesAreGivenOnceAndComeBack) {
  KvCache cache({.page_count = 5, .page_size = 16, .sequence_count = 3});
  cache.start(0, "");
  ASSERT_TRUE(cache.grow(0, 20).ok());
  ASSERT_TRUE(cache.grow(0, 33).ok());
  ASSERT_TRUE(cache.grow(1, 1).ok());
  EXPECT_EQ(cache.available_pages(), 1);
  EXPECT_EQ(pages_of(cache, 0), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(cache.slot_of(0, 0), 0);
  EXPECT_EQ(cache.slot_of(0, 32), 32);
  EXPECT_EQ(cache.slot_of(1, 0), 48);
  const Status full = cache.grow(2, 17);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(cache.available_pages(), 1);
  cache.release(0);
  EXPECT_EQ(cache.available_pages(), 4);
  ASSERT_TRUE(cache.grow(2, 64).ok());
  EXPECT_EQ(cache.available_pages(), 0);
  cache.release(1);
  cache.release(2);
  EXPECT_EQ(cache.available_pages(), 5);
}

TEST(KvCache, APositionWithoutAPageIsAProgrammersError) {
  KvCache cache({.page_count = 5, .page_size = 16, .sequence_count = 1});
  ASSERT_TRUE(cache.grow(0, 16).ok());
  EXPECT_DEATH(static_cast<void>(cache.slot_of(0, 16)), "no page");
}

TEST(KvCache, TheTableIsToBeWrittenWheneverPagesHaveChanged) {
  KvCache cache({.page_count = 5, .page_size = 4, .sequence_count = 1});
  cache.start(0, "");
  EXPECT_FALSE(cache.table_changed(0));
  ASSERT_TRUE(cache.grow(0, 3).ok());
  EXPECT_TRUE(cache.table_changed(0));
  cache.table_written(0);
  ASSERT_TRUE(cache.grow(0, 4).ok());
  EXPECT_FALSE(cache.table_changed(0));
  ASSERT_TRUE(cache.grow(0, 5).ok());
  EXPECT_TRUE(cache.table_changed(0));
}

TEST(KvCache, APrefixIsFoundInFullPagesAndOneTokenIsAlwaysLeft) {
  KvCache cache({.page_count = 10, .page_size = 4, .sequence_count = 3});
  compute(cache, 0, counting(11));
  cache.release(0);
  EXPECT_EQ(cache.cached_pages(), 2);
  EXPECT_EQ(cache.used_pages(), 0);
  cache.start(1, "");
  EXPECT_EQ(cache.match("", counting(12)).pages, 2);
  EXPECT_EQ(cache.take_prefix(1, counting(12), 0), 8);
  EXPECT_TRUE(cache.table_changed(1));
  EXPECT_EQ(cache.used_pages(), 2);
  cache.start(2, "");
  EXPECT_EQ(cache.match("", counting(8)).used_pages, 1);
  EXPECT_EQ(cache.take_prefix(2, counting(8), 0), 4) << "the last token is computed";
  EXPECT_EQ(cache.pages(2)[0], cache.pages(1)[0]);
  EXPECT_EQ(cache.pages_alone(1), 1);
  EXPECT_EQ(cache.match("other", counting(12)).pages, 0);
  EXPECT_EQ(cache.match("", counting(12, 1)).pages, 0);
}

TEST(KvCache, ARowFindsWhatAnotherHasComputedMeanwhile) {
  KvCache cache({.page_count = 10, .page_size = 4, .sequence_count = 2});
  cache.start(1, "");
  EXPECT_EQ(cache.take_prefix(1, counting(12), 0), 0);
  compute(cache, 0, counting(9));
  EXPECT_EQ(cache.take_prefix(1, counting(12), 0), 8);
  EXPECT_EQ(pages_of(cache, 1).front(), pages_of(cache, 0).front());
}

TEST(KvCache, TwinsBecomeOnePage) {
  KvCache cache({.page_count = 10, .page_size = 4, .sequence_count = 2});
  cache.start(0, "");
  cache.start(1, "");
  ASSERT_TRUE(cache.grow(0, 8).ok());
  ASSERT_TRUE(cache.grow(1, 8).ok());
  EXPECT_EQ(cache.used_pages(), 4);
  cache.keep_prefix(0, counting(8));
  cache.table_written(1);
  cache.keep_prefix(1, counting(8));
  EXPECT_EQ(pages_of(cache, 1), pages_of(cache, 0));
  EXPECT_TRUE(cache.table_changed(1));
  EXPECT_EQ(cache.used_pages(), 2);
}

TEST(KvCache, KeptPagesAreGivenUpWhenPagesAreNeededTheLongestUnusedFirst) {
  KvCache cache({.page_count = 4, .page_size = 4, .sequence_count = 3});
  compute(cache, 0, counting(8));
  compute(cache, 1, counting(4, 100));
  cache.release(0);
  cache.release(1);
  EXPECT_EQ(cache.available_pages(), 4);
  ASSERT_TRUE(cache.grow(2, 8).ok());
  EXPECT_EQ(cache.match("", counting(9)).pages, 1) << "the end of the older prefix is gone";
  EXPECT_EQ(cache.match("", counting(5, 100)).pages, 1);
}

TEST(KvCache, NoPrefixIsFoundUnderOtherWeightsAndNoneOfAMixtureIsKept) {
  KvCache cache({.page_count = 12, .page_size = 4, .sequence_count = 3});
  cache.enter_epoch(1);
  compute(cache, 0, counting(8));
  compute(cache, 1, counting(8, 50));
  cache.release(0);
  cache.enter_epoch(2);
  EXPECT_EQ(cache.match("", counting(9)).pages, 0);
  EXPECT_EQ(cache.match("", counting(9, 50)).pages, 0);
  EXPECT_EQ(cache.cached_pages(), 0);
  // Row 1 goes on: its first pages are of the old weights.
  std::vector<std::int32_t> tokens = counting(16, 50);
  ASSERT_TRUE(cache.grow(1, 16).ok());
  cache.keep_prefix(1, tokens);
  EXPECT_EQ(cache.match("", tokens).pages, 0);
  EXPECT_EQ(cache.take_prefix(1, counting(30, 50), 16), 16);
  cache.release(1);
  EXPECT_EQ(cache.cached_pages(), 0);
  // Nor is an entry of weights that come back.
  compute(cache, 2, counting(8, 90));
  cache.enter_epoch(1);
  EXPECT_EQ(cache.match("", counting(9)).pages, 0);
  EXPECT_EQ(cache.match("", counting(9, 90)).pages, 0);
  cache.enter_epoch(2);
  EXPECT_EQ(cache.match("", counting(9, 90)).pages, 0);
}

TEST(KvCache, WhatIsForgottenDoesNotComeBackWithARowThatHasIt) {
  KvCache cache({.page_count = 12, .page_size = 4, .sequence_count = 2});
  compute(cache, 0, counting(8));
  cache.forget_prefixes();
  ASSERT_TRUE(cache.grow(0, 12).ok());
  cache.keep_prefix(0, counting(12));
  EXPECT_EQ(cache.match("", counting(13)).pages, 0);
}

TEST(KvCache, WithoutPrefixesNothingIsKept) {
  KvCache cache(
      {.page_count = 5, .page_size = 4, .sequence_count = 1, .keep_prefixes = false});
  compute(cache, 0, counting(8));
  cache.release(0);
  EXPECT_EQ(cache.cached_pages(), 0);
  EXPECT_EQ(cache.match("", counting(9)).pages, 0);
}

// Against a model of what each page holds: all tokens up to its end, under which weights and salt.
class RandomCache {
 public:
  static constexpr std::int64_t kRows = 4, kPages = 14, kSize = 3;

  explicit RandomCache(std::uint64_t seed) : rng_(seed) {}

  void run(int events) {
    for (int event = 0; event < events && !testing::Test::HasFailure(); ++event) {
      const auto row = static_cast<std::int32_t>(rng_.next_below(kRows));
      switch (rng_.next_below(12)) {
        case 0: epoch_ += 1; cache_.enter_epoch(epoch_); break;
        case 1: cache_.forget_prefixes(); break;
        case 2: case 3: release(row); break;
        default: advance(row);
      }
      check();
    }
  }

 private:
  // What a page holds, as one word: the bits of keys and values follow from it.
  using Content = std::vector<std::int64_t>;
  struct Row {
    bool active = false;
    std::string salt;
    std::vector<std::int32_t> tokens;
    std::int64_t computed = 0;
    std::vector<std::int64_t> epochs;  // of the positions computed
  };

  void release(std::int32_t row) {
    cache_.release(row);
    rows_[row] = {};
  }

  void begin(std::int32_t row) {
    Row& r = rows_[row];
    r.active = true;
    r.salt = rng_.next_below(3) == 0 ? "s" : "";
    for (std::uint64_t i = 1 + rng_.next_below(14); i > 0; --i) {
      r.tokens.push_back(static_cast<std::int32_t>(rng_.next_below(2)));
    }
    cache_.start(row, r.salt);
  }

  void advance(std::int32_t row) {
    Row& r = rows_[row];
    if (!r.active) begin(row);
    const auto known = static_cast<std::int64_t>(r.tokens.size());
    const std::int64_t taken = cache_.take_prefix(row, r.tokens, r.computed);
    ASSERT_LT(taken, known);
    for (std::int64_t p = r.computed; p < taken; ++p) {
      // The bits that are there must be those that this row would have computed.
      ASSERT_EQ(content_.at(cache_.slot_of(row, p)), content_of(r, p, epoch_));
      r.epochs.push_back(epoch_);
    }
    r.computed = taken;
    const std::int64_t count =
        1 + static_cast<std::int64_t>(rng_.next_below(static_cast<std::uint64_t>(known - taken)));
    if (!cache_.grow(row, taken + count).ok()) return release(row);
    for (std::int64_t p = taken; p < taken + count; ++p) {
      r.epochs.push_back(epoch_);
      content_[cache_.slot_of(row, p)] = content_of(r, p, epoch_);
    }
    r.computed = taken + count;
    cache_.keep_prefix(row, std::span(r.tokens).first(static_cast<std::size_t>(r.computed)));
    if (r.computed == known) r.tokens.push_back(static_cast<std::int32_t>(rng_.next_below(2)));
    if (known > 30) release(row);
  }

  static Content content_of(const Row& row, std::int64_t position, std::int64_t epoch) {
    Content content = {epoch, row.salt.empty() ? 0 : 1};
    for (std::int64_t p = 0; p <= position; ++p) {
      content.push_back(row.tokens[static_cast<std::size_t>(p)]);
      if (p < position) content.push_back(row.epochs[static_cast<std::size_t>(p)]);
    }
    return content;
  }

  // Every position of every row still holds what the row computed or was given.
  void check() {
    std::set<std::int32_t> used;
    for (const auto& [index, row] : rows_) {
      for (std::int64_t p = 0; p < row.computed; ++p) {
        ASSERT_EQ(content_.at(cache_.slot_of(index, p)),
                  content_of(row, p, row.epochs[static_cast<std::size_t>(p)]));
      }
      for (const std::int32_t page : cache_.pages(index)) used.insert(page);
    }
    ASSERT_EQ(cache_.used_pages(), static_cast<std::int64_t>(used.size()));
  }

  base::Rng rng_;
  KvCache cache_{{.page_count = kPages, .page_size = kSize, .sequence_count = kRows}};
  std::int64_t epoch_ = 0;
  std::map<std::int32_t, Row> rows_;
  std::map<std::int32_t, Content> content_;  // by slot
};

TEST(KvCache, WhateverHappensAPositionHoldsWhatItsRowWouldHaveComputed) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomCache(seed).run(300);
  }
}

}  // namespace
}  // namespace holdfast::engine
