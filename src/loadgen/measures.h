// Measures: the numbers of a run, from its outcomes. Pure functions; times in seconds, except where
// a name says ms.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "loadgen/run.h"
#include "loadgen/statistics.h"

namespace holdfast::loadgen {

// Over one commit: streams that had a token before it and one after it.
struct CommitGap {
  std::string version;       // of the tokens after it
  std::uint64_t epoch = 0;
  std::size_t streams = 0;
  double longest_ms = 0, median_ms = 0;  // between the last token before and the first after
};

struct Measures {
  std::size_t completed = 0, failed = 0;
  std::int64_t retries = 0;  // 429 answers
  std::int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  double duration_s = 0;
  double request_throughput = 0, output_throughput = 0, total_throughput = 0;
  double most_output_tokens_in_a_second = 0;
  Summary ttft_ms, tpot_ms, itl_ms, e2el_ms;
  std::vector<double> itls_ms, ttfts_ms;  // sorted
  std::vector<double> tokens_in_slice;    // arrived, by time; kSlice_s each
  std::vector<CommitGap> gaps;            // in the order of the commits
  double longest_gap_ms = 0;              // between two tokens of any stream, at any time
};
inline constexpr double kSlice_s = 0.1;

// Tokens that arrive in one piece are one interval, as vLLM's bench counts.
Measures measure(const RunResult& result, const std::vector<double>& percentiles);

// The four summaries by vLLM's names: "ttft", "tpot", "itl", "e2el".
std::vector<std::pair<std::string, const Summary*>> named_summaries(const Measures& measures);

}  // namespace holdfast::loadgen
