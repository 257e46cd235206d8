#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

namespace holdfast::serve {
namespace {

// What a strict reader of the text format (version 0.0.4) makes of an exposition.
struct Exposition {
  std::map<std::string, std::string> types;      // family to type
  std::map<std::string, double> samples;         // "name{labels}" as written
  std::vector<std::string> defects;
  double value(const std::string& series) const {
    const auto at = samples.find(series);
    return at == samples.end() ? std::nan("") : at->second;
  }
};

// "x_bucket" belongs to histogram x.
std::string family_of(const std::string& name, const Exposition& so_far) {
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    const std::string_view end = suffix;
    if (name.size() <= end.size() || !name.ends_with(end)) continue;
    const std::string stem = name.substr(0, name.size() - end.size());
    const auto at = so_far.types.find(stem);
    if (at != so_far.types.end() && at->second == "histogram") return stem;
  }
  return name;
}

Exposition parse(const std::string& text) {
  static const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+");
  static const std::regex type("# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)");
  static const std::regex sample(
      "([a-zA-Z_:][a-zA-Z0-9_:]*)"
      "(\\{([a-zA-Z_][a-zA-Z0-9_]*=\"([^\"\\\\]|\\\\[\\\\\"n])*\",?)*\\})? "
      "([-+0-9.eE]+|\\+Inf|NaN)");
  Exposition out;
  std::set<std::string> helped;
  std::string current;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      if (!helped.insert(match[1]).second) out.defects.push_back("HELP twice: " + line);
    } else if (std::regex_match(line, match, type)) {
      current = match[1];
      if (!out.types.emplace(match[1], match[2]).second) {
        out.defects.push_back("TYPE twice: " + line);
      }
    } else if (std::regex_match(line, match, sample)) {
      if (family_of(match[1], out) != current) out.defects.push_back("out of place: " + line);
      const std::string series = std::string(match[1]) + std::string(match[2]);
      const double value = match[5] == "+Inf" ? INFINITY : std::stod(match[5]);
      if (!out.samples.emplace(series, value).second) out.defects.push_back("twice: " + line);
    } else {
      out.defects.push_back("no such line: " + line);
    }
  }
  if (text.empty() || text.back() != '\n') out.defects.push_back("no end of line");
  return out;
}

// Each series of buckets is cumulative, ends with +Inf, and that equals the count.
std::vector<std::string> bucket_defects(const std::string& text, const Exposition& parsed) {
  static const std::regex bucket("(\\S+)_bucket\\{(.*,)?le=\"([^\"]+)\"\\} (\\S+)");
  std::vector<std::string> out;
  std::istringstream lines(text);
  double last_bound = -INFINITY, last_count = 0;
  std::string last_series;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, bucket)) continue;
    const std::string series = std::string(match[1]) + "{" + std::string(match[2]);
    const double bound = match[3] == "+Inf" ? INFINITY : std::stod(match[3]);
    const double count = std::stod(match[4]);
    if (series == last_series && (bound <= last_bound || count < last_count)) {
      out.push_back("not cumulative: " + line);
    }
    last_series = series;
    last_bound = bound;
    last_count = count;
    if (bound != INFINITY) continue;
    std::string labels = match[2];
    if (!labels.empty()) labels = "{" + labels.substr(0, labels.size() - 1) + "}";
    if (parsed.value(std::string(match[1]) + "_count" + labels) != count) {
      out.push_back("not the count: " + line);
    }
    last_series.clear();
    last_bound = -INFINITY;
    last_count = 0;
  }
  return out;
}

void use_everything(Metrics& metrics) {
  metrics.on_request({.time_to_first_token = 0.02,
                      .end_to_end = 1.5,
                      .per_output_token = 0.01,
                      .prompt_tokens = 12,
                      .output_tokens = 100,
                      .max_tokens = 100,
                      .choices = 2,
                      .finish_reason = FinishReason::kLength});
  metrics.on_inter_token(0.003);
  metrics.on_inter_token(700);
  metrics.on_step(0.002, 17);
  metrics.on_answer("GET", "/metrics", 200, 0.001);
  metrics.on_answer("POST", "/v1/completions", 200, 2);
  metrics.on_answer("POST", "/v1/completions", 429, 0.001);
  metrics.on_rejected();
  ReloadReport report;
  report.state = "committed";
  report.source_bytes = 3'000'000;
  report.pause_us = 120;
  metrics.on_reload(report);
  report.state = "rolled_back";
  report.error = "corrupt: model.safetensors: cut off";
  metrics.on_reload(report);
}

TEST(Metrics, TheTextIsWellFormedAndNoSeriesComesTwice) {
  Metrics metrics("a \"strange\\name\"");
  use_everything(metrics);
  const std::string text = metrics.text({}, 3);
  const Exposition parsed = parse(text);
  EXPECT_EQ(parsed.defects, std::vector<std::string>());
  EXPECT_EQ(bucket_defects(text, parsed), std::vector<std::string>());
  EXPECT_GT(parsed.samples.size(), 100u);
}

TEST(Metrics, NamesAreVllmsWhereTheyMeanTheSame) {
  Metrics metrics("tiny");
  use_everything(metrics);
  const Exposition parsed = parse(metrics.text({}, 0));
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
        "vllm:request_success_total", "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds", "vllm:iteration_tokens_total",
        "vllm:request_prompt_tokens", "vllm:request_generation_tokens", "vllm:request_params_n",
        "vllm:request_params_max_tokens", "vllm:cache_config_info", "vllm:engine_sleep_state",
        "holdfast_reload_seconds", "holdfast_reload_bytes_total", "holdfast_commits_total",
        "holdfast_roll_backs_total", "holdfast_weight_version_info", "holdfast_pause_seconds",
        "holdfast_paused_seconds_total", "holdfast_poisoned", "holdfast_http_connections",
        "holdfast_http_requests_total", "holdfast_rejected_total"}) {
    EXPECT_TRUE(parsed.types.contains(name)) << name;
  }
  const auto type = [&](const char* name) { return parsed.types.at(name); };
  EXPECT_EQ(type("vllm:iteration_tokens_total"), "histogram");
  EXPECT_EQ(type("vllm:generation_tokens_total"), "counter");
  EXPECT_EQ(type("vllm:kv_cache_usage_perc"), "gauge");
}

TEST(Metrics, ValuesOfASnapshotAreShownAsTheyAre) {
  Metrics metrics("tiny");
  HostSnapshot now;
  now.stats.running = 7;
  now.stats.waiting = 9;
  now.stats.kv_pages = 200;
  now.stats.kv_pages_used = 50;
  now.stats.generated_tokens = 12'345'678'901;
  now.epoch = 4;
  now.version = "step-3";
  now.poisoned = true;
  now.sleeping = true;
  now.paused_seconds = 1.25;
  const Exposition parsed = parse(metrics.text(now, 11));
  EXPECT_EQ(parsed.value("vllm:num_requests_running{model_name=\"tiny\"}"), 7);
  EXPECT_EQ(parsed.value("vllm:num_requests_waiting{model_name=\"tiny\"}"), 9);
  EXPECT_EQ(parsed.value("vllm:kv_cache_usage_perc{model_name=\"tiny\"}"), 0.25);
  EXPECT_EQ(parsed.value("vllm:generation_tokens_total{model_name=\"tiny\"}"), 12'345'678'901.0);
  EXPECT_EQ(parsed.value("holdfast_weight_version_info{epoch=\"4\",version=\"step-3\"}"), 1);
  EXPECT_EQ(parsed.value("holdfast_poisoned"), 1);
  EXPECT_EQ(parsed.value("holdfast_paused_seconds_total"), 1.25);
  EXPECT_EQ(parsed.value("holdfast_http_connections"), 11);
  EXPECT_EQ(parsed.value("vllm:engine_sleep_state{model_name=\"tiny\",sleep_state=\"awake\"}"), 0);
}

TEST(Metrics, WithoutKvPagesTheUsageIsZeroAndNotANumber) {
  Metrics metrics("tiny");
  EXPECT_EQ(parse(metrics.text({}, 0)).value("vllm:kv_cache_usage_perc{model_name=\"tiny\"}"), 0);
}

TEST(Metrics, TimesThatNeverCameAreNotObserved) {
  Metrics metrics("tiny");
  metrics.on_request({.end_to_end = 0.5, .finish_reason = FinishReason::kAbort});
  const Exposition parsed = parse(metrics.text({}, 0));
  EXPECT_EQ(parsed.value("vllm:time_to_first_token_seconds_count{model_name=\"tiny\"}"), 0);
  EXPECT_EQ(parsed.value("vllm:e2e_request_latency_seconds_count{model_name=\"tiny\"}"), 1);
  EXPECT_EQ(
      parsed.value("vllm:request_success_total{finished_reason=\"abort\",model_name=\"tiny\"}"), 1);
}

TEST(Metrics, AReloadThatWasNotCommittedCountsUnderItsReasonAndTouchesNoPause) {
  Metrics metrics("tiny");
  ReloadReport report;
  report.state = "rolled_back";
  report.error = "mismatch: lm_head.weight: shape [1, 2], expected [3, 4]";
  report.pause_us = 50;
  metrics.on_reload(report);
  report.state = "poisoned";
  report.error = "what nobody classified";
  metrics.on_reload(report);
  const Exposition parsed = parse(metrics.text({}, 0));
  EXPECT_EQ(
      parsed.value("holdfast_roll_backs_total{reason=\"mismatch\",state=\"rolled_back\"}"), 1);
  EXPECT_EQ(parsed.value("holdfast_roll_backs_total{reason=\"other\",state=\"poisoned\"}"), 1);
  EXPECT_EQ(parsed.value("holdfast_commits_total"), 0);
  EXPECT_EQ(parsed.value("holdfast_pause_seconds_count"), 0);
}

TEST(Metrics, PathsThatAClientInventsDoNotGrowTheSeries) {
  Metrics metrics("tiny");
  for (int i = 0; i < 5000; ++i) {
    metrics.on_answer("GET", "/unknown/" + std::to_string(i), 404, 0.001);
    metrics.on_answer("GET", "/reload/" + std::to_string(i), 200, 0.001);
  }
  const Exposition parsed = parse(metrics.text({}, 0));
  std::size_t series = 0;
  for (const auto& [name, value] : parsed.samples) {
    series += name.starts_with("holdfast_http_requests_total{") ? 1 : 0;
  }
  EXPECT_LE(series, 520u);
  EXPECT_EQ(parsed.value("holdfast_http_requests_total{method=\"other\",path=\"other\","
                         "status=\"404\"}"), 5000);
}

}  // namespace
}  // namespace holdfast::serve
