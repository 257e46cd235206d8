#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "serve/status_json.h"
#include "serve/status_page.h"

namespace holdfast::serve {
namespace {

using Json = nlohmann::json;

EngineStats stats_with(std::uint64_t generated) {
  EngineStats stats;
  stats.generated_tokens = generated;
  stats.prompt_tokens = 2 * generated;
  stats.steps = generated / 10;
  return stats;
}

TEST(Throughput, IsOverTheLastSecondsOnly) {
  ThroughputWindow window;
  EXPECT_FALSE(window.sample(0, stats_with(0)).has_value());
  for (int second = 1; second <= 20; ++second) {
    const auto tokens = static_cast<std::uint64_t>(second <= 10 ? 0 : (second - 10) * 100);
    const auto rates = window.sample(second, stats_with(tokens));
    ASSERT_TRUE(rates.has_value());
    EXPECT_LE(rates->window_s, ThroughputWindow::kMost_s);
    if (second < 16) continue;
    EXPECT_DOUBLE_EQ(rates->generated_tokens_per_s, 100) << second;
    EXPECT_DOUBLE_EQ(rates->prompt_tokens_per_s, 200);
    EXPECT_DOUBLE_EQ(rates->steps_per_s, 10);
  }
}

TEST(Throughput, ManyWhoAskDoNotShortenTheWindow) {
  ThroughputWindow window;
  (void)window.sample(0, stats_with(0));
  std::optional<ThroughputWindow::Rates> rates;
  for (int i = 1; i <= 4000; ++i) {
    rates = window.sample(i * 0.001, stats_with(static_cast<std::uint64_t>(i)));
  }
  ASSERT_TRUE(rates.has_value());
  EXPECT_GT(rates->window_s, 3);
  EXPECT_NEAR(rates->generated_tokens_per_s, 1000, 1);
}

TEST(Throughput, AfterALongSilenceItIsOverAllOfIt) {
  ThroughputWindow window;
  (void)window.sample(0, stats_with(0));
  const auto rates = window.sample(100, stats_with(1000));
  ASSERT_TRUE(rates.has_value());
  EXPECT_DOUBLE_EQ(rates->window_s, 100);
  EXPECT_DOUBLE_EQ(rates->generated_tokens_per_s, 10);
}

TEST(StatusJson, TheWorstStateIsTheOneThatIsNamed) {
  HostSnapshot now;
  EXPECT_EQ(state_name(now), "serving");
  now.pausing = true;
  EXPECT_EQ(state_name(now), "pausing");
  now.paused = true;
  EXPECT_EQ(state_name(now), "paused");
  now.poisoned = true;
  EXPECT_EQ(state_name(now), "poisoned");
  now.failed = true;
  EXPECT_EQ(state_name(now), "failed");
}

TEST(StatusJson, TellsReloadsWithTheirPhases) {
  HostSnapshot now;
  now.epoch = 3;
  now.version = "<b>\"v2\"";
  now.stats.kv_pages = 10;
  now.stats.waiting = 4;
  now.reload.phase = ReloadPhase::kStaging;
  now.reload.awaited = {"lm_head.weight"};
  ReloadRecord record;
  record.report.state = "rolled_back";
  record.report.pause_us = 81.5;
  record.report.error = "corrupt: cut off";
  record.began_unix_ms = 1000;
  now.reloads = {record, record};
  const Json json = Json::parse(status_json(
      {.snapshot = now, .model = "tiny", .uptime_s = 7.5, .now_unix_ms = 123456789012}));
  EXPECT_EQ(json["epoch"], 3);
  EXPECT_EQ(json["version"], "<b>\"v2\"");
  EXPECT_EQ(json["requests"]["waiting"], 4);
  EXPECT_EQ(json["kv"]["pages"], 10);
  EXPECT_TRUE(json["throughput"].is_null());
  EXPECT_EQ(json["reload"]["phase"], "staging");
  EXPECT_EQ(json["reload"]["awaited"][0], "lm_head.weight");
  ASSERT_EQ(json["reloads"].size(), 2u);
  EXPECT_EQ(json["reloads"][1]["pause_us"], 81.5);
  EXPECT_EQ(json["reloads"][1]["error"], "corrupt: cut off");
  EXPECT_EQ(json["now_unix_ms"], 123456789012);
}

TEST(StatusJson, WithoutALabelTheVersionIsDefault) {
  EXPECT_EQ(Json::parse(status_json({.snapshot = {}, .model = ""}))["version"], "default");
}

TEST(StatusJson, ACensusIsSummedByClass) {
  CensusReport census;
  census.epoch = 2;
  census.captured_addresses = 9;
  census.slots.resize(3);
  census.slots[0].slot_class = census.slots[2].slot_class = "weight";
  census.slots[1].slot_class = "state";
  for (CensusEntry& slot : census.slots) slot.bytes = 100;
  census.homeless = {"step/3/weight 0x10"};
  const Json json = Json::parse(census_summary_json(census));
  EXPECT_EQ(json["classes"].size(), 2u);
  EXPECT_EQ(json["classes"][1], (Json{{"class", "weight"}, {"slots", 2}, {"bytes", 200}}));
  EXPECT_EQ(json["homeless"].size(), 1u);
  EXPECT_EQ(json["rehomed"].size(), 0u);
}

TEST(StatusPage, NeedsNothingFromOutside) {
  const std::string page(status_page_html());
  EXPECT_THAT(page, testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(page, testing::HasSubstr("</html>"));
  for (const char* outside : {"src=", "@import", "url(", "https://", "innerHTML"}) {
    EXPECT_THAT(page, testing::Not(testing::HasSubstr(outside))) << outside;
  }
}

}  // namespace
}  // namespace holdfast::serve
