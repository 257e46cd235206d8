// Scheduler: what the next step does, as pure functions of the queues. Any thread.
// Requests stand in one order, of priority and then of submission: whoever goes first is served
// first, and whoever goes last gives way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace holdfast::engine {

struct StepLimits {
  std::int64_t max_rows = 0;       // rows of the largest graph
  std::int64_t prefill_chunk = 0;  // prompt rows in one step
};

// A running sequence, in the order of service.
struct SequenceProgress {
  std::int64_t known_tokens = 0;     // of prompt and output
  std::int64_t computed_tokens = 0;  // whose keys and values are in the cache; fewer than known
};

// Rows [begin, begin + count) of one running sequence.
struct StepChunk {
  std::size_t sequence = 0;  // index into the running sequences
  std::int64_t begin = 0;
  std::int64_t count = 0;
  friend bool operator==(const StepChunk&, const StepChunk&) = default;
};

// One row for every sequence that has one token left to compute, in order; then rows of those that
// have more (a prompt, or what a preempted request had), the first in order first, up to
// prefill_chunk and what max_rows leaves. Empty when nothing runs. The first in order always
// advances as long as max_rows is at least the number of running sequences.
std::vector<StepChunk> plan_step(std::span<const SequenceProgress> running,
                                 const StepLimits& limits);

// Whether the first of the waiting requests starts now. One that does not fit holds back those
// behind it: nobody starves.
struct AdmissionState {
  std::int64_t free_sequences = 0;
  std::int64_t available_pages = 0;
  std::int64_t promised_pages = 0;  // that running sequences still need for the tokens they know
};
// `pages`: what the request needs for the tokens that it knows.
bool plan_admission(const AdmissionState& state, std::int64_t pages);

// The KV pages of a running sequence.
struct PageDemand {
  std::int64_t more = 0;      // that its rows of this step need
  std::int64_t given_up = 0;  // that would be available once it is preempted
};
// How many of the running sequences go on, from the first in order: the most whose demands the
// pages of all others cover, and at least one. Those after them are preempted.
std::size_t plan_preemption(std::span<const PageDemand> running, std::int64_t available_pages);

}  // namespace holdfast::engine
