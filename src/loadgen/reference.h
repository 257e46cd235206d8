// Reference runs: spans of a run's streams, made again at rest by the weights that are said to have
// made them. Greedy tokens depend on prompt and weights alone, so they must be the same. Pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "loadgen/run.h"
#include "loadgen/workload.h"

namespace holdfast::loadgen {

struct ReferenceJob {
  std::size_t stream = 0;  // index of the outcome
  VersionSpan span;
  std::string directory;
  PlannedRequest request;
};

// Spans of at most options.verify_spans streams, spread over the run. Under `recompute` each span
// can be made again, from the prompt and the tokens before it; else the first of a stream. Under
// `continue`, which keeps keys and values over a commit, that takes a request that was sent after
// the commit of its first token's weights.
std::vector<ReferenceJob> plan_references(const BenchOptions& options, const RunResult& result);

SpanCheck compare_with_reference(const ReferenceJob& job, const RunResult& result,
                                 const Outcome& reference);

}  // namespace holdfast::loadgen
