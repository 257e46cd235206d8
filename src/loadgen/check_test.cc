#include "loadgen/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loadgen/measures.h"
#include "loadgen/reference.h"
#include "loadgen/svg_chart.h"
#include "loadgen/workload.h"

namespace holdfast::loadgen {
namespace {

// Ten tokens, five of each version.
Outcome sound() {
  Outcome out;
  out.asked_tokens = 10;
  out.status = 200;
  out.done = true;
  out.finish_reason = "length";
  out.usage_completion_tokens = 10;
  for (int i = 0; i < 10; ++i) out.token_times_s.push_back(1 + 0.01 * i);
  out.spans = {{"v0", 1, 0, 5}, {"v1", 2, 5, 10}};
  return out;
}

// The names of the checks that fail for one changed stream among sound ones.
std::vector<std::string> failures(const std::function<void(Outcome&)>& change) {
  BenchOptions options;
  options.ignore_eos = true;
  RunResult result;
  result.versions = {"v0", "v1"};
  result.outcomes = {sound(), sound(), sound()};
  change(result.outcomes[1]);
  std::vector<std::string> out;
  for (const Check& check : check_run(options, result)) {
    EXPECT_EQ(check.checked, 3u);
    if (check.passed()) continue;
    EXPECT_THAT(check.first_failure, testing::HasSubstr("stream "));
    out.push_back(check.name);
  }
  return out;
}

TEST(CheckRun, ASoundRunPasses) {
  EXPECT_THAT(failures([](Outcome&) {}), testing::IsEmpty());
}

TEST(CheckRun, EachDefectFailsItsOwnCheck) {
  using testing::ElementsAre;
  EXPECT_THAT(failures([](Outcome& o) { o.finish_reason = "abort"; }),
              ElementsAre("every stream ended by itself"));
  EXPECT_THAT(failures([](Outcome& o) { o.done = false; }),
              ElementsAre("every stream ended by itself", "every token arrived"));
  EXPECT_THAT(failures([](Outcome& o) { o.usage_completion_tokens = 9; }),
              ElementsAre("every token arrived"));
  EXPECT_THAT(failures([](Outcome& o) { o.asked_tokens = 11; }),
              ElementsAre("every token arrived"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans[1].start = 6; }),
              ElementsAre("every token has a version"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans[1].start = 4; }),
              ElementsAre("every token has a version"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans[1].end = 9; }),
              ElementsAre("every token has a version"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans.clear(); }),
              ElementsAre("every token has a version"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans[1].epoch = 0; }),
              ElementsAre("versions never go back"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans = {{"v1", 2, 0, 5}, {"v0", 1, 5, 10}}; }),
              ElementsAre("versions never go back"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans[1].version = "v7"; }),
              ElementsAre("versions never go back"));
  EXPECT_THAT(failures([](Outcome& o) { o.spans[0].version = "v1"; }),
              ElementsAre("versions never go back"));
}

TEST(CheckRun, ReloadsThatNeverBeganAndRunsThatCheckNothingFail) {
  BenchOptions options;
  options.reloads = 2;
  RunResult result;
  result.reloads.push_back({.directory = "A", .version = "v1", .status = 200, .error = {}});
  for (const Check& check : check_run(options, result)) {
    EXPECT_FALSE(check.passed()) << check.name;
  }
}

TEST(References, UnderContinueOnlyWhatWasSentAfterItsCommitIsSure) {
  BenchOptions options;
  options.reload_dirs = {"A", "B"};
  options.verify_spans = 10;
  RunResult result;
  result.versions = {"v0", "v1"};
  result.reloads.push_back({.directory = "B", .version = "v1", .began_s = 0.9, .ended_s = 1,
                            .status = 200, .error = {}});
  result.outcomes = {sound(), sound(), sound()};
  for (Outcome& outcome : result.outcomes) outcome.ids.assign(10, 7);
  result.outcomes[1].spans = result.outcomes[2].spans = {{"v1", 2, 0, 10}};
  result.outcomes[1].sent_s = 0.95;
  result.outcomes[2].sent_s = 1.5;
  const auto streams = [&] {
    std::vector<std::size_t> out;
    for (const ReferenceJob& job : plan_references(options, result)) out.push_back(job.stream);
    return out;
  };
  EXPECT_THAT(streams(), testing::ElementsAre(0, 2));
  options.in_flight = "drain";
  EXPECT_THAT(streams(), testing::ElementsAre(0, 1, 2));
  options.in_flight = "recompute";
  EXPECT_THAT(streams(), testing::ElementsAre(0, 0, 1, 2));
  EXPECT_EQ(plan_references(options, result)[1].directory, "B");
  EXPECT_EQ(plan_references(options, result)[1].request.prompt.size(), 5u);
}

TEST(Measures, AGapOverACommitIsBetweenTheLastTokenBeforeAndTheFirstAfter) {
  RunResult result;
  result.versions = {"v0", "v1"};
  result.outcomes = {sound(), sound()};
  result.duration_s = 2;
  for (std::size_t i = 5; i < 10; ++i) result.outcomes[1].token_times_s[i] += 0.1;
  const Measures measures = measure(result, {50});
  ASSERT_EQ(measures.gaps.size(), 1u);
  EXPECT_EQ(measures.gaps[0].streams, 2u);
  EXPECT_EQ(measures.gaps[0].version, "v1");
  EXPECT_NEAR(measures.gaps[0].longest_ms, 110, 1e-6);
  EXPECT_NEAR(measures.longest_gap_ms, 110, 1e-6);
  EXPECT_NEAR(measures.itl_ms.median, 10, 1e-6);
  EXPECT_DOUBLE_EQ(measures.output_throughput, 10);
  EXPECT_NEAR(measures.tpot_ms.least, 10, 1e-6);
}

TEST(Measures, WhatFailedCountsInNoLatency) {
  RunResult result;
  result.outcomes = {sound()};
  result.outcomes[0].error = "cut off";
  const Measures measures = measure(result, {50});
  EXPECT_EQ(measures.failed, 1u);
  EXPECT_EQ(measures.ttft_ms.count, 0u);
  EXPECT_EQ(measures.output_tokens, 0);
}

TEST(Spans, WhatChunksSayGrowsIntoWhatTheWholeIs) {
  std::vector<VersionSpan> known;
  merge_spans(known, {{"v0", 1, 0, 1}});
  merge_spans(known, {{"v0", 1, 1, 2}});
  merge_spans(known, {{"v1", 2, 2, 3}});
  merge_spans(known, {{"v1", 2, 2, 4}});
  EXPECT_EQ(known, (std::vector<VersionSpan>{{"v0", 1, 0, 2}, {"v1", 2, 2, 4}}));
  merge_spans(known, {{"v0", 1, 0, 2}, {"v1", 2, 2, 5}});
  EXPECT_EQ(known, (std::vector<VersionSpan>{{"v0", 1, 0, 2}, {"v1", 2, 2, 5}}));
  merge_spans(known, {{"v1", 2, 6, 7}});
  EXPECT_EQ(known.size(), 3u) << "a hole must stay one";
}

TEST(Workload, TheSeedAloneDecidesAndARateChangesNoPrompt) {
  BenchOptions options;
  options.prompts = 50;
  options.range_ratio = 0.5;
  options.prefix_len = 3;
  const auto first = *plan_requests(options);
  options.request_rate = 100;
  const auto second = *plan_requests(options);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].prompt, second[i].prompt);
    EXPECT_EQ(first[i].arrival_s, 0);
    EXPECT_TRUE(std::equal(first[0].prompt.begin(), first[0].prompt.begin() + 3,
                           first[i].prompt.begin()));
    EXPECT_GE(first[i].max_tokens, 32);
    EXPECT_LE(first[i].max_tokens, 96);
    EXPECT_GE(second[i].arrival_s, second[i > 0 ? i - 1 : 0].arrival_s);
  }
  EXPECT_NEAR(second.back().arrival_s, 0.5, 0.25);
  options.seed = 1;
  EXPECT_NE((*plan_requests(options))[0].prompt, first[0].prompt);
}

TEST(SvgChart, TicksAreRoundAndFew) {
  EXPECT_EQ(round_ticks(0, 10), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_TRUE(round_ticks(1, 1).empty());
  EXPECT_LE(round_ticks(0, 12345).size(), 8u);
}

TEST(SvgChart, LabelsAreEscapedAndNothingIsNoError) {
  Chart chart{.title = "a<b", .x_unit = "s", .y_unit = "", .points = {}};
  EXPECT_THAT(draw_chart(chart), testing::HasSubstr("nothing to show"));
  chart.points = {{0, 0}, {1, 0}};
  chart.bands = {{0.5, 0.6, "<v&1>"}};
  const std::string svg = draw_chart(chart);
  EXPECT_THAT(svg, testing::HasSubstr("&lt;v&amp;1&gt;"));
  EXPECT_THAT(svg, testing::Not(testing::HasSubstr("nan")));
}

}  // namespace
}  // namespace holdfast::loadgen
