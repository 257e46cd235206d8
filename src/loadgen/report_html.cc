#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "loadgen/report.h"
#include "loadgen/svg_chart.h"

namespace holdfast::loadgen {
namespace {

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>holdfast bench serve</title>
<style>
:root { color-scheme: light dark; --bg: #fbfbf9; --fg: #1d2428; --soft: #66727a; --rule: #dfe3e4;
  --card: #ffffff; --line: #14746f; --area: #14746f22; --band: #e07a1f; --ok: #1f7a3d;
  --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --bg: #14181a; --fg: #e6eaeb; --soft: #96a2a8;
  --rule: #2c3438; --card: #1b2124; --line: #4fc3b5; --area: #4fc3b522; --band: #f0a35a;
  --ok: #6fcf8c; --bad: #ff8a80; } }
body { margin: 0 auto; max-width: 920px; padding: 28px 20px 60px; background: var(--bg);
  color: var(--fg); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 16px; margin: 32px 0 10px; }
.sub { color: var(--soft); margin: 2px 0 20px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 12px 14px; }
.card b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 13px; }
figure { margin: 16px 0; background: var(--card); border: 1px solid var(--rule);
  border-radius: 10px; padding: 12px 14px; }
figcaption { font-weight: 600; } figcaption span { color: var(--soft); font-weight: 400; }
svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke: var(--line); stroke-width: 1.6; } .area { fill: var(--area); }
.bar { fill: var(--line); } .band { fill: var(--band); fill-opacity: .35; }
.mark { fill: var(--band); font-size: 11px; } .none { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
td.text, th.text { text-align: left; overflow-wrap: anywhere; } .ok { color: var(--ok); }
.bad { color: var(--bad); font-weight: 600; }
</style></head><body>
)";

std::string card(const std::string& value, const std::string& what) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escape_html(value),
                     escape_html(what));
}

std::string cards(const ReportInput& input) {
  const Measures& measures = input.measures;
  std::string out = "<div class=\"cards\">\n";
  out += card(fmt::format("{:.0f}", measures.output_throughput), "generated tokens a second");
  out += card(fmt::format("{:.2f}", measures.request_throughput), "requests a second");
  out += card(std::to_string(measures.completed), "requests done");
  out += card(std::to_string(measures.failed), "requests failed");
  out += card(std::to_string(input.result.most_streams), "streams open at once");
  out += card(fmt::format("{:.1f} s", measures.duration_s), "duration");
  if (!input.result.reloads.empty()) {
    double longest_ms = 0;
    for (const CommitGap& gap : measures.gaps) longest_ms = std::max(longest_ms, gap.longest_ms);
    out += card(std::to_string(input.result.reloads.size()), "reloads in the middle");
    out += card(fmt::format("{:.1f} ms", longest_ms), "longest gap over a commit");
    out += card(fmt::format("{:.1f} ms", measures.tpot_ms.median), "median time of a token");
  }
  return out + "</div>\n";
}

std::string throughput_chart(const ReportInput& input) {
  Chart chart{.title = "Throughput", .x_unit = "s", .y_unit = "generated tokens a second",
              .points = {}};
  const std::vector<double>& slices = input.measures.tokens_in_slice;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    chart.points.emplace_back((static_cast<double>(i) + 0.5) * kSlice_s, slices[i] / kSlice_s);
  }
  for (const ReloadOutcome& reload : input.result.reloads) {
    chart.bands.push_back({reload.began_s, reload.ended_s, reload.version});
  }
  return draw_chart(chart);
}

// How many values lie in each of `count` steps of equal ratio.
Chart histogram(std::string title, const std::vector<double>& sorted_ms, std::size_t count) {
  Chart chart{.title = std::move(title), .x_unit = "ms", .y_unit = "how often", .points = {},
              .bars = true, .logarithmic_x = true};
  if (sorted_ms.empty()) return chart;
  const double least = std::max(sorted_ms.front(), 1e-3);
  const double most = std::max(sorted_ms.back() * 1.001, least * 1.1);
  const double ratio = std::pow(most / least, 1.0 / static_cast<double>(count));
  double from = least;
  auto at = sorted_ms.begin();
  for (std::size_t i = 0; i <= count; ++i, from *= ratio) {
    const auto next = std::lower_bound(at, sorted_ms.end(), from * ratio);
    chart.points.emplace_back(from, i < count ? static_cast<double>(next - at) : 0);
    at = next;
  }
  return chart;
}

std::string latency_table(const ReportInput& input) {
  std::string out = "<div class=\"scroll\"><table><tr><th>ms</th><th>mean</th><th>median</th>";
  for (const double percent : input.options.percentiles) {
    out += fmt::format("<th>{}</th>", percentile_name(percent));
  }
  out += "<th>longest</th></tr>\n";
  for (const auto& [name, summary] : named_summaries(input.measures)) {
    out += fmt::format("<tr><td>{}</td><td>{:.2f}</td><td>{:.2f}</td>", name, summary->mean,
                       summary->median);
    for (const double value : summary->percentiles) out += fmt::format("<td>{:.2f}</td>", value);
    out += fmt::format("<td>{:.2f}</td></tr>\n", summary->most);
  }
  return out + "</table></div>\n";
}

std::string reload_table(const ReportInput& input) {
  if (input.result.reloads.empty()) return "";
  std::string out =
      "<h2>Reloads</h2>\n<div class=\"scroll\"><table><tr><th>version</th><th>at s</th>"
      "<th>call ms</th><th>streams over it</th><th>gap median ms</th><th>gap longest ms</th>"
      "<th class=\"text\">result</th></tr>\n";
  for (const ReloadOutcome& reload : input.result.reloads) {
    out += fmt::format("<tr><td>{}</td><td>{:.2f}</td><td>{:.1f}</td>", escape_html(reload.version),
                       reload.began_s, (reload.ended_s - reload.began_s) * 1e3);
    const auto gap = std::find_if(input.measures.gaps.begin(), input.measures.gaps.end(),
                                  [&](const CommitGap& g) { return g.version == reload.version; });
    if (gap == input.measures.gaps.end()) {
      out += "<td>0</td><td></td><td></td>";
    } else {
      out += fmt::format("<td>{}</td><td>{:.2f}</td><td>{:.2f}</td>", gap->streams, gap->median_ms,
                         gap->longest_ms);
    }
    out += fmt::format("<td class=\"text {}\">{}</td></tr>\n", reload.error.empty() ? "ok" : "bad",
                       reload.error.empty() ? "done" : escape_html(reload.error));
  }
  return out + "</table></div>\n";
}

std::string check_table(const std::vector<Check>& checks) {
  if (checks.empty()) return "";
  std::string out = "<h2>Checks</h2>\n<div class=\"scroll\"><table>"
                    "<tr><th>what must be so</th><th>held</th><th>of</th><th></th></tr>\n";
  for (const Check& check : checks) {
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"text {}\">{}</td></tr>\n",
                       escape_html(check.name), check.checked - check.failed, check.checked,
                       check.passed() ? "ok" : "bad",
                       check.passed() ? "ok" : escape_html("FAIL " + check.first_failure));
  }
  return out + "</table></div>\n";
}

}  // namespace

std::string report_html(const ReportInput& input) {
  const BenchOptions& options = input.options;
  std::string out(kHead);
  out += fmt::format(
      "<h1>holdfast bench serve</h1>\n<p class=\"sub\">{} at {}{} &middot; {} prompts of {}{} "
      "tokens, {} out &middot; rate {} &middot; seed {}</p>\n",
      escape_html(input.result.model), escape_html(options.base_url),
      escape_html(options.endpoint), options.prompts,
      options.prefix_len > 0 ? fmt::format("{} shared and ", options.prefix_len) : "",
      options.input_len, options.output_len,
      options.request_rate > 0 ? fmt::format("{:g}/s", options.request_rate) : "inf", options.seed);
  out += cards(input);
  out += throughput_chart(input);
  out += draw_chart(histogram("Time between two tokens", input.measures.itls_ms, 60));
  out += draw_chart(histogram("Time to first token", input.measures.ttfts_ms, 60));
  out += "<h2>Latencies</h2>\n" + latency_table(input);
  out += reload_table(input) + check_table(input.checks);
  return out + "</body></html>\n";
}

}  // namespace holdfast::loadgen
