#include "loadgen/workload.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/rng.h"

namespace holdfast::loadgen {
namespace {

// Draws of different kinds come from streams of their own, so that another rate does not change
// the prompts.
enum Stream : std::uint64_t { kArrivals = 1, kLengths, kPrompts, kPrefix };

base::Rng stream_of(std::uint64_t seed, Stream stream) {
  return base::Rng(base::counter_draw(seed, stream));
}

Error wrong(const char* option, auto value, const char* expected) {
  return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected {}", option, value, expected);
}

Status check_sizes(const BenchOptions& options) {
  constexpr std::int64_t kMany = 10'000'000;
  const auto outside = [](std::int64_t value, std::int64_t least, std::int64_t most) {
    return value < least || value > most;
  };
  if (outside(options.prompts, 1, kMany)) {
    return wrong("--num-prompts", options.prompts, "1 to 1e7");
  }
  if (outside(options.input_len, 1, kMany)) {
    return wrong("--random-input-len", options.input_len, "1 to 1e7");
  }
  if (outside(options.output_len, 1, kMany)) {
    return wrong("--random-output-len", options.output_len, "1 to 1e7");
  }
  if (outside(options.prefix_len, 0, kMany)) {
    return wrong("--random-prefix-len", options.prefix_len, "0 to 1e7");
  }
  if (outside(options.vocabulary, 1, INT32_MAX)) {
    return wrong("--random-vocab", options.vocabulary, "1 to 2147483647");
  }
  if (!(options.range_ratio >= 0 && options.range_ratio < 1)) {
    return wrong("--random-range-ratio", options.range_ratio, "0 to below 1");
  }
  if (!(options.request_rate >= 0)) {
    return wrong("--request-rate", options.request_rate, "0 or more");
  }
  if (!(options.timeout_s > 0)) return wrong("--timeout", options.timeout_s, "more than 0");
  const std::pair<const char*, std::int64_t> counts[] = {
      {"--max-concurrency", options.max_concurrency},
      {"--max-retries", options.max_retries},
      {"--reloads", options.reloads},
      {"--verify-spans", options.verify_spans}};
  for (const auto& [option, count] : counts) {
    if (outside(count, 0, kMany)) return wrong(option, count, "0 to 1e7");
  }
  return {};
}

std::int64_t draw_length(base::Rng& rng, std::int64_t middle, double ratio) {
  const auto reach = static_cast<std::int64_t>(std::floor(static_cast<double>(middle) * ratio));
  const std::int64_t least = std::max<std::int64_t>(1, middle - reach);
  const auto width = static_cast<std::uint64_t>(middle + reach - least + 1);
  return least + static_cast<std::int64_t>(rng.next_below(width));
}

void append_ids(base::Rng& rng, std::int64_t count, std::int64_t vocabulary,
                std::vector<std::int32_t>& to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to.push_back(
        static_cast<std::int32_t>(rng.next_below(static_cast<std::uint64_t>(vocabulary))));
  }
}

}  // namespace

Result<std::vector<PlannedRequest>> plan_requests(const BenchOptions& options) {
  HF_TRY(check_sizes(options));
  base::Rng arrivals = stream_of(options.seed, kArrivals);
  base::Rng lengths = stream_of(options.seed, kLengths);
  base::Rng prompts = stream_of(options.seed, kPrompts);
  base::Rng prefixes = stream_of(options.seed, kPrefix);
  std::vector<std::int32_t> prefix;
  append_ids(prefixes, options.prefix_len, options.vocabulary, prefix);
  std::vector<PlannedRequest> out(static_cast<std::size_t>(options.prompts));
  double now = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    PlannedRequest& request = out[i];
    request.prompt = prefix;
    append_ids(prompts, draw_length(lengths, options.input_len, options.range_ratio),
               options.vocabulary, request.prompt);
    request.max_tokens = draw_length(lengths, options.output_len, options.range_ratio);
    request.arrival_s = now;
    request.seed = options.seed + i;
    // Times between the arrivals of a Poisson process are exponential.
    if (options.request_rate > 0) {
      now += -std::log1p(-arrivals.next_unit()) / options.request_rate;
    }
  }
  return out;
}

std::string request_body(const BenchOptions& options, const std::string& model,
                         const PlannedRequest& request) {
  return fmt::format(
      R"({{"model":{},"prompt":[{}],"max_tokens":{},"temperature":{},"seed":{},"stream":true,)"
      R"("stream_options":{{"include_usage":true}},"ignore_eos":{},"return_token_ids":true}})",
      nlohmann::json(model).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
      fmt::join(request.prompt, ","), request.max_tokens, options.temperature, request.seed,
      options.ignore_eos);
}

}  // namespace holdfast::loadgen
