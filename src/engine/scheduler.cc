#include "engine/scheduler.h"

#include <algorithm>

namespace holdfast::engine {

std::vector<StepChunk> plan_step(std::span<const SequenceProgress> running,
                                 const StepLimits& limits) {
  std::vector<StepChunk> chunks;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < running.size() && rows < limits.max_rows; ++i) {
    const SequenceProgress& sequence = running[i];
    if (sequence.known_tokens - sequence.computed_tokens != 1) continue;
    chunks.push_back({.sequence = i, .begin = sequence.computed_tokens, .count = 1});
    ++rows;
  }
  std::int64_t prompt_rows = std::min(limits.prefill_chunk, limits.max_rows - rows);
  for (std::size_t i = 0; i < running.size() && prompt_rows > 0; ++i) {
    const SequenceProgress& sequence = running[i];
    const std::int64_t left = sequence.known_tokens - sequence.computed_tokens;
    if (left <= 1) continue;
    const std::int64_t count = std::min(left, prompt_rows);
    chunks.push_back({.sequence = i, .begin = sequence.computed_tokens, .count = count});
    prompt_rows -= count;
  }
  return chunks;
}

bool plan_admission(const AdmissionState& state, std::int64_t pages) {
  return state.free_sequences > 0 && pages <= state.available_pages - state.promised_pages;
}

std::size_t plan_preemption(std::span<const PageDemand> running, std::int64_t available_pages) {
  std::int64_t wanted = 0;
  for (const PageDemand& demand : running) wanted += demand.more;
  std::size_t kept = running.size();
  while (kept > 1 && wanted > available_pages) {
    --kept;
    wanted -= running[kept].more;
    available_pages += running[kept].given_up;
  }
  return kept;
}

}  // namespace holdfast::engine
