#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "engine/graph_set.h"
#include "engine/kv_cache.h"
#include "engine/settings.h"

namespace holdfast::engine {
namespace {

TEST(Scheduler, DecodeRowsComeFirstThenPromptRowsInOrder) {
  const std::vector<SequenceProgress> running = {
      {.prompt_tokens = 100, .computed_tokens = 64},  // a prompt under way
      {.prompt_tokens = 5, .computed_tokens = 9},     // decoding
      {.prompt_tokens = 40, .computed_tokens = 0},    // a new prompt
      {.prompt_tokens = 3, .computed_tokens = 3}};    // decoding its second token
  EXPECT_EQ(plan_step(running, {.max_rows = 64, .prefill_chunk = 64}),
            (std::vector<StepChunk>{{1, 9, 1}, {3, 3, 1}, {0, 64, 36}, {2, 0, 26}}));
}

TEST(Scheduler, PromptRowsStopAtTheChunk) {
  const std::vector<SequenceProgress> running = {{.prompt_tokens = 100, .computed_tokens = 10}};
  EXPECT_EQ(plan_step(running, {.max_rows = 64, .prefill_chunk = 7}),
            (std::vector<StepChunk>{{0, 10, 7}}));
}

TEST(Scheduler, APromptAdvancesEvenWhenAllOthersDecode) {
  std::vector<SequenceProgress> running(8, {.prompt_tokens = 1, .computed_tokens = 4});
  running.back() = {.prompt_tokens = 50, .computed_tokens = 0};
  const auto chunks = plan_step(running, {.max_rows = 8, .prefill_chunk = 1});
  ASSERT_EQ(chunks.size(), 8u);
  EXPECT_EQ(chunks.back(), (StepChunk{7, 0, 1}));
}

TEST(Scheduler, NothingRunningIsAnEmptyStep) {
  EXPECT_TRUE(plan_step({}, {.max_rows = 8, .prefill_chunk = 8}).empty());
}

TEST(Scheduler, AdmissionIsFirstComeFirstServed) {
  const std::vector<std::int64_t> pages = {3, 9, 1};
  EXPECT_EQ(plan_admission({pages, 8, 100}), 3u);
  EXPECT_EQ(plan_admission({pages, 2, 100}), 2u);
  EXPECT_EQ(plan_admission({pages, 8, 12}), 2u);
  // The second does not fit, and the third must not overtake it.
  EXPECT_EQ(plan_admission({pages, 8, 11}), 1u);
  EXPECT_EQ(plan_admission({pages, 0, 100}), 0u);
}

TEST(KvCache, PagesAreGivenOnceAndComeBack) {
  KvCache cache(5, 16, 3);
  ASSERT_TRUE(cache.reserve(0, 33).ok());
  ASSERT_TRUE(cache.reserve(1, 1).ok());
  EXPECT_EQ(cache.free_pages(), 1);
  EXPECT_EQ(std::vector<std::int32_t>(cache.pages(0).begin(), cache.pages(0).end()),
            (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(cache.slot_of(0, 0), 0);
  EXPECT_EQ(cache.slot_of(0, 32), 32);
  EXPECT_EQ(cache.slot_of(1, 0), 48);
  const Status full = cache.reserve(2, 17);
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(cache.free_pages(), 1);
  cache.release(0);
  EXPECT_EQ(cache.free_pages(), 4);
  ASSERT_TRUE(cache.reserve(2, 64).ok());
  EXPECT_EQ(cache.free_pages(), 0);
  cache.release(1);
  cache.release(2);
  EXPECT_EQ(cache.free_pages(), 5);
}

TEST(KvCache, APositionThatIsNotReservedIsAProgrammersError) {
  KvCache cache(5, 16, 1);
  ASSERT_TRUE(cache.reserve(0, 16).ok());
  EXPECT_DEATH(static_cast<void>(cache.slot_of(0, 16)), "not reserved");
}

TEST(GraphSet, RowCountsAreThoseOfDecodeBatchesAndTheLargestStep) {
  EXPECT_EQ(graph_row_counts(8, 64), (std::vector<std::int64_t>{1, 2, 4, 8, 64}));
  EXPECT_EQ(graph_row_counts(20, 64), (std::vector<std::int64_t>{1, 2, 4, 8, 20, 64}));
  EXPECT_EQ(graph_row_counts(1, 1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(graph_row_counts(3, 3), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(graph_row_counts(16, 16), (std::vector<std::int64_t>{1, 2, 4, 8, 16}));
}

// ------------------------------------------------------------------------------ settings

config::ModelConfig small_config() {
  config::ModelConfig config;
  config.max_positions = 1024;
  return config;
}

TEST(Settings, DefaultsComeFromTheModel) {
  const Settings settings = *resolve_settings({}, small_config());
  EXPECT_EQ(settings.max_context, 1024);
  EXPECT_EQ(settings.max_rows, 64);
  EXPECT_EQ(settings.page_count, 8 * 1024 / kPageSize);
  config::ModelConfig large = small_config();
  large.max_positions = 131072;
  EXPECT_EQ(resolve_settings({}, large)->max_context, 4096);
  EngineOptions whole;
  whole.max_context = 131072;
  EXPECT_EQ(resolve_settings(whole, large)->page_count, 131072 / kPageSize)
      << "one whole context fits even where that is more than the default";
}

TEST(Settings, AnOptionOutOfRangeIsNamedWithItsValue) {
  struct Case {
    std::string option;
    std::function<void(EngineOptions&)> spoil;
  };
  const std::vector<Case> cases = {
      {"threads", [](EngineOptions& o) { o.threads = -1; }},
      {"threads", [](EngineOptions& o) { o.threads = 5000; }},
      {"max_context", [](EngineOptions& o) { o.max_context = 1025; }},
      {"max_context", [](EngineOptions& o) { o.max_context = -1; }},
      {"max_sequences", [](EngineOptions& o) { o.max_sequences = 0; }},
      {"max_sequences", [](EngineOptions& o) { o.max_sequences = 1 << 20; }},
      {"prefill_chunk", [](EngineOptions& o) { o.prefill_chunk = 0; }},
      {"prefill_chunk", [](EngineOptions& o) { o.prefill_chunk = 1 << 20; }},
      {"kv_tokens", [](EngineOptions& o) { o.kv_tokens = 1023; }},
      {"kv_tokens", [](EngineOptions& o) { o.kv_tokens = std::int64_t{1} << 40; }},
      {"kv_tokens", [](EngineOptions& o) { o.kv_tokens = -5; }},
      {"kernels", [](EngineOptions& o) { o.kernels = "quick"; }},
      {"experts", [](EngineOptions& o) { o.experts = "marlin"; }},
      {"commit", [](EngineOptions& o) { o.commit = "auto"; }}};
  for (const Case& c : cases) {
    EngineOptions options;
    c.spoil(options);
    const auto settings = resolve_settings(options, small_config());
    ASSERT_FALSE(settings.ok()) << c.option;
    EXPECT_EQ(settings.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(settings.error().message().find(c.option), std::string::npos)
        << settings.error().message();
  }
}

}  // namespace
}  // namespace holdfast::engine
