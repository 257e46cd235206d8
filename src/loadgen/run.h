// A run: what is sent when, what came back, and the reloads in its middle. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loadgen/bench.h"
#include "loadgen/outcome.h"

namespace holdfast::loadgen {

// Times in seconds since the run began.
struct ReloadOutcome {
  std::string directory, version;
  double began_s = 0, ended_s = 0;  // the call, as the client saw it
  int status = 0;
  std::string error;                // empty: done
};

// Tokens of one span, made again by the same weights at rest.
struct SpanCheck {
  std::size_t stream = 0;
  VersionSpan span;
  std::string directory;
  std::string error;             // empty: the same tokens
};

struct RunResult {
  std::string model;
  std::vector<Outcome> outcomes;       // in the order of the plan
  std::vector<ReloadOutcome> reloads;
  std::vector<std::string> versions;   // labels in the order of their commits, the first first
  std::vector<SpanCheck> spans;
  double duration_s = 0;
  std::int64_t most_streams = 0;       // open at one time
  std::size_t most_connections = 0;
};

// Errors: as run_bench.
Result<RunResult> run(const BenchOptions& options);

}  // namespace holdfast::loadgen
