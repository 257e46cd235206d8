// Scheduler: what the next step does, as pure functions of the queues. Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace holdfast::engine {

struct StepLimits {
  std::int64_t max_rows = 0;       // rows of the largest graph
  std::int64_t prefill_chunk = 0;  // prompt rows in one step
};

// A running sequence, in the order of admission.
struct SequenceProgress {
  std::int64_t prompt_tokens = 0;
  std::int64_t computed_tokens = 0;  // whose keys and values are in the cache
};

// Rows [begin, begin + count) of one running sequence.
struct StepChunk {
  std::size_t sequence = 0;  // index into the running sequences
  std::int64_t begin = 0;
  std::int64_t count = 0;
  friend bool operator==(const StepChunk&, const StepChunk&) = default;
};

// One row for every sequence past its prompt, in order; then prompt rows, first come first served,
// up to prefill_chunk and what max_rows leaves. Empty when nothing runs. Progress is certain as
// long as max_rows is at least the number of running sequences.
std::vector<StepChunk> plan_step(std::span<const SequenceProgress> running,
                                 const StepLimits& limits);

// How many of the waiting requests start now, first come first served: each needs a sequence row
// and pages for all that it may ever store, so that none is put back later. A request that does not
// fit holds back those behind it: nobody starves.
struct AdmissionState {
  std::span<const std::int64_t> waiting_pages;  // pages that each waiting request will reserve
  std::int64_t free_sequences = 0;
  std::int64_t free_pages = 0;
};
std::size_t plan_admission(const AdmissionState& state);

}  // namespace holdfast::engine
