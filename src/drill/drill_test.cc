#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "drill/count.h"
#include "drill/report_json.h"
#include "drill/tokens.h"

namespace holdfast::drill {
namespace {

CensusEntry slot(std::string name, std::uint64_t address, std::string digest) {
  return {.name = std::move(name), .slot_class = "constant", .address = address, .bytes = 64,
          .epoch = 1, .digest = std::move(digest)};
}

// Two versioned slots and a state slot; captured addresses lie in `a` and `state`.
Count small_count() {
  Count count;
  count.epoch = 1;
  for (const CensusEntry& entry :
       {slot("a", 0x1000, "aa"), slot("b", 0x1040, "bb"), slot("state", 0x2000, "")}) {
    count.slots.emplace(entry.name, entry);
  }
  count.homes = {"a", "state"};
  return count;
}

TEST(DrillCount, AnUnchangedCensusHasMovedAndChangedNothing) {
  const Count count = small_count();
  EXPECT_TRUE(moved(count, count).empty());
  EXPECT_TRUE(changed(count, count).empty());
  EXPECT_TRUE(stale_epochs(count).empty());
  const std::set<std::string> names = {"a", "b"};
  const DrillCount figure = figures({count, count, count, count}, &names);
  EXPECT_EQ(figure.total, 2u);
  EXPECT_EQ(figure.stable, 2u);
  EXPECT_TRUE(figure.values_preserved);
  EXPECT_TRUE(figure.values_intact_post_pressure);
  EXPECT_EQ(figure.registered_at_first_load, 1u);
  EXPECT_EQ(figure.registered_after_reload, 1u);
}

TEST(DrillCount, ASlotThatMovedHasNotKeptItsValueThoughItsDigestIsTheSame) {
  const Count before = small_count();
  Count after = before;
  after.slots["a"].address = 0x9000;
  after.homes = {"state"};
  EXPECT_EQ(moved(before, after), Names{"a"});
  EXPECT_EQ(changed(before, after), Names{"a"});
  EXPECT_TRUE(different_values(before, after).empty());
  const DrillCount figure = figures({before, after, after, after}, nullptr);
  EXPECT_EQ(figure.moved, 1u);
  EXPECT_EQ(figure.moved_keys, Names{"a"});
  EXPECT_FALSE(figure.values_preserved);
  EXPECT_FALSE(figure.values_intact_post_pressure);
  EXPECT_EQ(figure.registered_at_first_load, 2u);
  EXPECT_EQ(figure.registered_after_reload, 1u);
}

TEST(DrillCount, ASlotThatMovedAndCameBackCountsAsMoved) {
  const Count before = small_count();
  Count away = before;
  away.slots["b"].address = 0x9000;
  const DrillCount figure = figures({before, away, before, before}, nullptr);
  EXPECT_EQ(figure.moved_keys, Names{"b"});
  EXPECT_FALSE(figure.values_preserved);
}

TEST(DrillCount, AChangedDigestIsNamedAndOnlyWhereItWasAsked) {
  const Count before = small_count();
  Count after = before;
  after.slots["b"].digest = "b2";
  EXPECT_TRUE(moved(before, after).empty());
  EXPECT_EQ(changed(before, after), Names{"b"});
  EXPECT_EQ(different_values(before, after), Names{"b"});
  const std::set<std::string> others = {"a"};
  EXPECT_TRUE(figures({before, after, after, after}, &others).values_preserved);
  EXPECT_FALSE(figures({before, after, after, after}, nullptr).values_preserved);
  EXPECT_FALSE(figures({before, before, before, after}, nullptr).values_intact_post_pressure);
}

TEST(DrillCount, ASlotThatIsGoneHasMovedAndChanged) {
  const Count before = small_count();
  Count after = before;
  after.slots.erase("a");
  EXPECT_EQ(moved(before, after), Names{"a"});
  EXPECT_EQ(changed(before, after), Names{"a"});
  EXPECT_EQ(different_values(before, after), Names{"a"});
}

TEST(DrillCount, ASlotOfAnotherEpochThanTheEngineIsNamed) {
  Count count = small_count();
  count.epoch = 2;
  count.slots["b"].epoch = 2;
  EXPECT_EQ(stale_epochs(count), Names{"a"});  // the state slot has no epoch
}

TEST(DrillCount, HomesComeFromTheCensussJson) {
  CensusReport report;
  report.epoch = 3;
  report.slots = {slot("a", 0x1000, "aa")};
  report.json = R"({"addresses": [{"home": "a"}, {"home": null}, {"home": "a"}]})";
  const Result<Count> count = reduce(report);
  ASSERT_TRUE(count.ok());
  EXPECT_EQ(count->homes, std::set<std::string>{"a"});
  EXPECT_EQ(count->versioned_bytes(), 64u);
  report.json = "{}";
  EXPECT_FALSE(reduce(report).ok());
}

TEST(DrillCount, AListIsCutAndSaysHowManyThereAre) {
  EXPECT_EQ(listed("slots moved", {"x", "y"}), "slots moved (2): x, y");
  const Names many(kShownNames + 3, "z");
  EXPECT_NE(listed("slots moved", many).find("(9)"), std::string::npos);
  EXPECT_NE(listed("slots moved", many).find("and 3 more"), std::string::npos);
  const Names wide(3, std::string(kShownBytes, 'w'));
  EXPECT_NE(listed("slots moved", wide).find("and 2 more"), std::string::npos);
}

TEST(DrillTokens, EqualRunsDoNotDifferEvenWithNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Tokens> run = {{{.id = 1, .logprob = nan, .epoch = 1}}, {}};
  EXPECT_EQ(token_difference(run, run), "");
  EXPECT_EQ(logprob_difference(run, run), "");
}

TEST(DrillTokens, TheFirstDifferentTokenIsNamed) {
  const std::vector<Tokens> a = {{{1, -1.0f, 1}, {2, -1.0f, 1}}};
  const std::vector<Tokens> b = {{{1, -1.0f, 1}, {3, -1.0f, 1}}};
  EXPECT_EQ(token_difference(a, b), "prompt 0, token 1: 3, 2 before");
  EXPECT_EQ(token_difference(a, {{{1, -1.0f, 1}}}), "prompt 0: 1 tokens, 2 before");
  EXPECT_EQ(token_difference(a, {}), "0 prompts, 1 before");
}

TEST(DrillTokens, OneBitOfALogProbabilityIsADifference) {
  const std::vector<Tokens> a = {{{1, -1.0f, 1}}};
  const std::vector<Tokens> b = {{{1, std::nextafter(-1.0f, 0.0f), 1}}};
  EXPECT_EQ(token_difference(a, b), "");
  EXPECT_NE(logprob_difference(a, b), "");
  EXPECT_NE(logprob_difference({{{1, 0.0f, 1}}}, {{{1, -0.0f, 1}}}), "");
}

TEST(DrillTokens, ATokenOfAnotherEpochIsNamed) {
  const std::vector<Tokens> run = {{{1, -1.0f, 2}, {1, -1.0f, 1}}};
  EXPECT_EQ(epoch_difference(run, 2), "prompt 0, token 1: epoch 1, the engine is at 2");
  EXPECT_EQ(epoch_difference({{{1, -1.0f, 2}}}, 2), "");
}

TEST(DrillReportJson, HoldsTheConstantsAtTheTopAndAllSlotsBelow) {
  DrillReport report;
  report.label = "x";
  report.reasons = {"because"};
  report.constants.total = 12;
  report.constants.moved_keys = {"k"};
  report.slots.total = 100;
  DrillOptions options;
  options.from = "A";
  auto json = nlohmann::json::parse(report_json(report, options));
  EXPECT_EQ(json["verdict"], "RED");
  EXPECT_EQ(json["total"], 12);
  EXPECT_EQ(json["moved_keys"][0], "k");
  EXPECT_EQ(json["slots"]["total"], 100);
  EXPECT_TRUE(json["replay_error"].is_null());
  report.green = true;
  report.replay_error = "lost";
  json = nlohmann::json::parse(report_json(report, options));
  EXPECT_EQ(json["verdict"], "GREEN");
  EXPECT_EQ(json["replay_error"], "lost");
}

}  // namespace
}  // namespace holdfast::drill
