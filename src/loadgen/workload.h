// The requests of a run, and when they arrive: a pure function of the options and the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loadgen/bench.h"

namespace holdfast::loadgen {

struct PlannedRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 0;
  double arrival_s = 0;  // since the run began; rising
  std::uint64_t seed = 0;
};

// Errors: kInvalidArgument naming the option and its value.
Result<std::vector<PlannedRequest>> plan_requests(const BenchOptions& options);

// The body of a streamed completion.
std::string request_body(const BenchOptions& options, const std::string& model,
                         const PlannedRequest& request);

}  // namespace holdfast::loadgen
