#include "loadgen/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

namespace holdfast::loadgen {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownErrors = 5;

const std::map<std::string, std::string>& titles() {
  static const std::map<std::string, std::string> all = {
      {"ttft", "Time to first token"},
      {"tpot", "Time per output token (after the first)"},
      {"itl", "Inter-token latency"},
      {"e2el", "Request, sent to ended"}};
  return all;
}

bool shown(const BenchOptions& options, const std::string& metric) {
  return std::find(options.metrics.begin(), options.metrics.end(), metric) !=
         options.metrics.end();
}

void row(std::string& out, std::string_view name, const std::string& value) {
  out += fmt::format("{:<44} {:>16}\n", name, value);
}

std::string two(double value) { return fmt::format("{:.2f}", value); }

void add_counts(std::string& out, const ReportInput& input) {
  const Measures& measures = input.measures;
  row(out, "Successful requests", std::to_string(measures.completed));
  row(out, "Failed requests", std::to_string(measures.failed));
  if (measures.retries > 0) row(out, "Answers 429, tried again", std::to_string(measures.retries));
  row(out, "Most open streams", std::to_string(input.result.most_streams));
  row(out, "Duration (s)", two(measures.duration_s));
  row(out, "Prompt tokens", std::to_string(measures.input_tokens));
  row(out, "  of them from the prefix cache", std::to_string(measures.cached_tokens));
  row(out, "Generated tokens", std::to_string(measures.output_tokens));
  row(out, "Requests a second", two(measures.request_throughput));
  row(out, "Generated tokens a second", two(measures.output_throughput));
  row(out, "  the best second", two(measures.most_output_tokens_in_a_second));
  row(out, "All tokens a second", two(measures.total_throughput));
}

void add_latencies(std::string& out, const ReportInput& input) {
  out += fmt::format("\n{:<42} {:>9} {:>9}", "ms", "mean", "median");
  for (const double percent : input.options.percentiles) {
    out += fmt::format(" {:>9}", percentile_name(percent));
  }
  out += fmt::format(" {:>9}\n", "longest");
  for (const auto& [name, summary] : named_summaries(input.measures)) {
    if (!shown(input.options, name)) continue;
    out += fmt::format("{:<42} {:>9.2f} {:>9.2f}", titles().at(name), summary->mean,
                       summary->median);
    for (const double value : summary->percentiles) out += fmt::format(" {:>9.2f}", value);
    out += fmt::format(" {:>9.2f}\n", summary->most);
  }
}

const CommitGap* gap_of(const Measures& measures, const std::string& version) {
  for (const CommitGap& gap : measures.gaps) {
    if (gap.version == version) return &gap;
  }
  return nullptr;
}

void add_reloads(std::string& out, const ReportInput& input) {
  if (input.result.reloads.empty()) return;
  out += fmt::format("\n{:<12} {:>8} {:>10} {:>9} {:>12} {:>12}  {}\n", "reload", "at s",
                     "call ms", "streams", "gap p50 ms", "gap max ms", "from");
  for (const ReloadOutcome& reload : input.result.reloads) {
    const CommitGap* gap = gap_of(input.measures, reload.version);
    out += fmt::format("{:<12} {:>8.2f} {:>10.1f} {:>9} {:>12} {:>12}  {}\n", reload.version,
                       reload.began_s, (reload.ended_s - reload.began_s) * 1e3,
                       gap != nullptr ? gap->streams : 0,
                       gap != nullptr ? two(gap->median_ms) : "-",
                       gap != nullptr ? two(gap->longest_ms) : "-",
                       reload.error.empty() ? reload.directory : "FAILED: " + reload.error);
  }
  double longest_ms = 0;
  for (const CommitGap& gap : input.measures.gaps) {
    longest_ms = std::max(longest_ms, gap.longest_ms);
  }
  // Not the median between two arrivals: a client that is late reads several tokens at once.
  const double step_ms = input.measures.tpot_ms.median;
  out += fmt::format("Longest gap over a commit {:.2f} ms: {:.1f} times the median time of a token "
                     "({:.2f} ms); longest gap of all {:.2f} ms\n",
                     longest_ms, step_ms > 0 ? longest_ms / step_ms : 0, step_ms,
                     input.measures.longest_gap_ms);
}

// Errors by their text, the most frequent first.
std::vector<std::pair<std::string, std::size_t>> errors_of(const RunResult& result) {
  std::map<std::string, std::size_t> counts;
  for (const Outcome& outcome : result.outcomes) {
    if (outcome.completed()) continue;
    ++counts[outcome.error.empty() ? "no [DONE]" : outcome.error];
  }
  std::vector<std::pair<std::string, std::size_t>> out(counts.begin(), counts.end());
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

void add_checks(std::string& out, const ReportInput& input) {
  if (!input.checks.empty()) out += '\n';
  for (const Check& check : input.checks) {
    out += fmt::format("{:<4} {:<48} {:>8} of {}\n", check.passed() ? "ok" : "FAIL", check.name,
                       check.checked - check.failed, check.checked);
    if (!check.first_failure.empty()) out += fmt::format("     {}\n", check.first_failure);
  }
}

Json reloads_json(const ReportInput& input) {
  Json out = Json::array();
  for (const ReloadOutcome& reload : input.result.reloads) {
    Json one = {{"version", reload.version},
                {"directory", reload.directory},
                {"began_s", reload.began_s},
                {"call_ms", (reload.ended_s - reload.began_s) * 1e3},
                {"error", reload.error}};
    if (const CommitGap* gap = gap_of(input.measures, reload.version)) {
      one["streams"] = gap->streams;
      one["median_gap_ms"] = gap->median_ms;
      one["longest_gap_ms"] = gap->longest_ms;
    }
    out.push_back(std::move(one));
  }
  return out;
}

Json checks_json(const std::vector<Check>& checks) {
  Json out = Json::array();
  for (const Check& check : checks) {
    out.push_back({{"name", check.name},
                   {"passed", check.passed()},
                   {"checked", check.checked},
                   {"failed", check.failed},
                   {"first_failure", check.first_failure}});
  }
  return out;
}

}  // namespace

std::string report_table(const ReportInput& input) {
  std::string out;
  add_counts(out, input);
  add_latencies(out, input);
  add_reloads(out, input);
  const auto errors = errors_of(input.result);
  for (std::size_t i = 0; i < std::min(errors.size(), kShownErrors); ++i) {
    out += fmt::format("{}{:>6} failed: {}\n", i == 0 ? "\n" : "", errors[i].second,
                       errors[i].first);
  }
  add_checks(out, input);
  return out;
}

std::string report_json(const ReportInput& input) {
  const BenchOptions& options = input.options;
  const Measures& measures = input.measures;
  Json out;
  out["date"] = fmt::format("{:%Y%m%d-%H%M%S}",
                            fmt::gmtime(std::chrono::system_clock::now()));
  out["endpoint_type"] = "openai";
  out["backend"] = "openai";
  out["model_id"] = input.result.model;
  out["num_prompts"] = options.prompts;
  out["request_rate"] = options.request_rate > 0 ? Json(options.request_rate) : Json("inf");
  out["burstiness"] = 1.0;
  out["max_concurrency"] =
      options.max_concurrency > 0 ? Json(options.max_concurrency) : Json(nullptr);
  out["duration"] = measures.duration_s;
  out["completed"] = measures.completed;
  out["failed"] = measures.failed;
  out["total_input_tokens"] = measures.input_tokens;
  out["total_output_tokens"] = measures.output_tokens;
  out["request_throughput"] = measures.request_throughput;
  out["output_throughput"] = measures.output_throughput;
  out["total_token_throughput"] = measures.total_throughput;
  out["max_output_tokens_per_s"] = measures.most_output_tokens_in_a_second;
  out["max_concurrent_requests"] = input.result.most_streams;
  for (const auto& [name, summary] : named_summaries(measures)) {
    if (!shown(options, name)) continue;
    out[fmt::format("mean_{}_ms", name)] = summary->mean;
    out[fmt::format("median_{}_ms", name)] = summary->median;
    out[fmt::format("std_{}_ms", name)] = summary->deviation;
    for (std::size_t i = 0; i < options.percentiles.size(); ++i) {
      out[fmt::format("{}_{}_ms", percentile_name(options.percentiles[i]), name)] =
          summary->percentiles[i];
    }
  }
  Json errors = Json::array();
  for (const auto& [text, count] : errors_of(input.result)) {
    errors.push_back({{"error", text}, {"count", count}});
  }
  out["holdfast"] = {{"seed", options.seed},
                     {"retries_429", measures.retries},
                     {"cached_tokens", measures.cached_tokens},
                     {"most_connections", input.result.most_connections},
                     {"longest_itl_ms", measures.longest_gap_ms},
                     {"reloads", reloads_json(input)},
                     {"checks", checks_json(input.checks)},
                     {"errors", std::move(errors)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace holdfast::loadgen
