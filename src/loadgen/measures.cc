#include "loadgen/measures.h"

#include <algorithm>
#include <map>

namespace holdfast::loadgen {
namespace {

// The times between the arrivals of one stream's tokens.
void add_intervals(const Outcome& outcome, std::vector<double>& to) {
  const std::vector<double>& times = outcome.token_times_s;
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i] > times[i - 1]) to.push_back((times[i] - times[i - 1]) * 1e3);
  }
}

void add_slices(const Outcome& outcome, std::vector<double>& slices) {
  for (const double time : outcome.token_times_s) {
    const auto slice = static_cast<std::size_t>(time / kSlice_s);
    if (slices.size() <= slice) slices.resize(slice + 1);
    slices[slice] += 1;
  }
}

double most_in_a_second(const std::vector<double>& slices) {
  constexpr std::size_t width = 10;  // slices in a second
  double sum = 0, most = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    sum += slices[i];
    if (i >= width) sum -= slices[i - width];
    most = std::max(most, sum);
  }
  return most;
}

std::vector<CommitGap> commit_gaps(const RunResult& result) {
  std::map<std::pair<std::uint64_t, std::string>, std::vector<double>> gaps_ms;
  for (const Outcome& outcome : result.outcomes) {
    const std::vector<double>& times = outcome.token_times_s;
    for (std::size_t k = 1; k < outcome.spans.size(); ++k) {
      const VersionSpan& span = outcome.spans[k];
      if (span.start < 1 || span.start >= static_cast<std::int64_t>(times.size())) continue;
      const auto first = static_cast<std::size_t>(span.start);
      gaps_ms[{span.epoch, span.version}].push_back((times[first] - times[first - 1]) * 1e3);
    }
  }
  std::vector<CommitGap> out;
  for (const auto& [key, values] : gaps_ms) {
    const Summary summary = summarise(values, {});
    out.push_back({.version = key.second,
                   .epoch = key.first,
                   .streams = summary.count,
                   .longest_ms = summary.most,
                   .median_ms = summary.median});
  }
  // By epoch where there is one; else in the order of the labels' commits.
  const auto place = [&](const CommitGap& gap) {
    return std::find(result.versions.begin(), result.versions.end(), gap.version);
  };
  std::stable_sort(out.begin(), out.end(), [&](const CommitGap& a, const CommitGap& b) {
    return a.epoch != b.epoch ? a.epoch < b.epoch : place(a) < place(b);
  });
  return out;
}

}  // namespace

Measures measure(const RunResult& result, const std::vector<double>& percentiles) {
  Measures out;
  std::vector<double> tpots_ms, e2els_ms;
  for (const Outcome& outcome : result.outcomes) {
    out.retries += outcome.retries;
    add_slices(outcome, out.tokens_in_slice);
    if (!outcome.completed()) {
      ++out.failed;
      continue;
    }
    ++out.completed;
    const auto arrived = static_cast<std::int64_t>(outcome.token_times_s.size());
    const std::int64_t tokens =
        outcome.usage_completion_tokens >= 0 ? outcome.usage_completion_tokens : arrived;
    out.input_tokens += static_cast<std::int64_t>(outcome.prompt.size());
    out.output_tokens += tokens;
    out.cached_tokens += outcome.cached_tokens;
    e2els_ms.push_back((outcome.end_s - outcome.sent_s) * 1e3);
    if (outcome.token_times_s.empty()) continue;
    out.ttfts_ms.push_back((outcome.token_times_s.front() - outcome.sent_s) * 1e3);
    if (tokens > 1) {
      const double decode_s = outcome.token_times_s.back() - outcome.token_times_s.front();
      tpots_ms.push_back(decode_s * 1e3 / static_cast<double>(tokens - 1));
    }
    add_intervals(outcome, out.itls_ms);
  }
  std::sort(out.itls_ms.begin(), out.itls_ms.end());
  std::sort(out.ttfts_ms.begin(), out.ttfts_ms.end());
  out.duration_s = result.duration_s;
  if (out.duration_s > 0) {
    out.request_throughput = static_cast<double>(out.completed) / out.duration_s;
    out.output_throughput = static_cast<double>(out.output_tokens) / out.duration_s;
    out.total_throughput =
        static_cast<double>(out.input_tokens + out.output_tokens) / out.duration_s;
  }
  out.most_output_tokens_in_a_second = most_in_a_second(out.tokens_in_slice);
  out.ttft_ms = summarise(out.ttfts_ms, percentiles);
  out.tpot_ms = summarise(std::move(tpots_ms), percentiles);
  out.itl_ms = summarise(out.itls_ms, percentiles);
  out.e2el_ms = summarise(std::move(e2els_ms), percentiles);
  out.longest_gap_ms = out.itl_ms.most;
  out.gaps = commit_gaps(result);
  return out;
}

std::vector<std::pair<std::string, const Summary*>> named_summaries(const Measures& measures) {
  return {{"ttft", &measures.ttft_ms},
          {"tpot", &measures.tpot_ms},
          {"itl", &measures.itl_ms},
          {"e2el", &measures.e2el_ms}};
}

}  // namespace holdfast::loadgen
