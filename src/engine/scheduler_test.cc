#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "engine/graph_set.h"
#include "engine/settings.h"

namespace holdfast::engine {
namespace {

TEST(Scheduler, DecodeRowsComeFirstThenPromptRowsInOrder) {
  const std::vector<SequenceProgress> running = {
      {.known_tokens = 100, .computed_tokens = 64},  // a prompt under way
      {.known_tokens = 10, .computed_tokens = 9},    // decoding
      {.known_tokens = 40, .computed_tokens = 0},    // a new prompt
      {.known_tokens = 4, .computed_tokens = 3}};    // decoding
  EXPECT_EQ(plan_step(running, {.max_rows = 64, .prefill_chunk = 64}),
            (std::vector<StepChunk>{{1, 9, 1}, {3, 3, 1}, {0, 64, 36}, {2, 0, 26}}));
}

TEST(Scheduler, PromptRowsStopAtTheChunk) {
  const std::vector<SequenceProgress> running = {{.known_tokens = 100, .computed_tokens = 10}};
  EXPECT_EQ(plan_step(running, {.max_rows = 64, .prefill_chunk = 7}),
            (std::vector<StepChunk>{{0, 10, 7}}));
}

TEST(Scheduler, APromptAdvancesEvenWhenAllOthersDecode) {
  std::vector<SequenceProgress> running(8, {.known_tokens = 5, .computed_tokens = 4});
  running.front() = {.known_tokens = 50, .computed_tokens = 0};
  const auto chunks = plan_step(running, {.max_rows = 8, .prefill_chunk = 1});
  ASSERT_EQ(chunks.size(), 8u);
  EXPECT_EQ(chunks.back(), (StepChunk{0, 0, 1}));
}

TEST(Scheduler, NothingRunningIsAnEmptyStep) {
  EXPECT_TRUE(plan_step({}, {.max_rows = 8, .prefill_chunk = 8}).empty());
}

TEST(Scheduler, ARequestStartsWhenARowAndThePagesOfItsTokensAreThere) {
  EXPECT_TRUE(plan_admission({.free_sequences = 1, .available_pages = 5}, 5));
  EXPECT_FALSE(plan_admission({.free_sequences = 0, .available_pages = 5}, 1));
  EXPECT_FALSE(plan_admission({.free_sequences = 1, .available_pages = 5}, 6));
  // What others still need is not to be had.
  EXPECT_FALSE(
      plan_admission({.free_sequences = 1, .available_pages = 5, .promised_pages = 1}, 5));
  EXPECT_TRUE(
      plan_admission({.free_sequences = 1, .available_pages = 5, .promised_pages = 1}, 4));
}

TEST(Scheduler, TheLastInOrderGiveWayUntilTheOthersHaveTheirPages) {
  const std::vector<PageDemand> running = {
      {.more = 1, .given_up = 4}, {.more = 1, .given_up = 3}, {.more = 0, .given_up = 2}};
  EXPECT_EQ(plan_preemption(running, 2), 3u);
  EXPECT_EQ(plan_preemption(running, 1), 2u) << "the third wants nothing, and goes last";
  EXPECT_EQ(plan_preemption({}, 0), 0u);
  const std::vector<PageDemand> greedy = {{.more = 4, .given_up = 1}, {.more = 1, .given_up = 1}};
  EXPECT_EQ(plan_preemption(greedy, 1), 1u) << "the first in order goes on in any case";
  // One that wants much makes room for those before it merely by leaving.
  const std::vector<PageDemand> last = {{.more = 1, .given_up = 9}, {.more = 7, .given_up = 0}};
  EXPECT_EQ(plan_preemption(last, 1), 1u);
}

TEST(GraphSet, RowCountsAreThoseOfDecodeBatchesAndTheLargestStep) {
  EXPECT_EQ(graph_row_counts(8, 64), (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(graph_row_counts(20, 64),
            (std::vector<std::int64_t>{1, 2, 4, 8, 16, 20, 32, 64}));
  EXPECT_EQ(graph_row_counts(256, 1000),
            (std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 128, 256, 1000}));
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
      {"max_waiting", [](EngineOptions& o) { o.max_waiting = 0; }},
      {"max_waiting", [](EngineOptions& o) { o.max_waiting = std::int64_t{1} << 40; }},
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
