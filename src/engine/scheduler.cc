#include "engine/scheduler.h"

#include <algorithm>

namespace holdfast::engine {

std::vector<StepChunk> plan_step(std::span<const SequenceProgress> running,
                                 const StepLimits& limits) {
  std::vector<StepChunk> chunks;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < running.size() && rows < limits.max_rows; ++i) {
    const SequenceProgress& sequence = running[i];
    if (sequence.computed_tokens < sequence.prompt_tokens) continue;
    chunks.push_back({.sequence = i, .begin = sequence.computed_tokens, .count = 1});
    ++rows;
  }
  std::int64_t prompt_rows = std::min(limits.prefill_chunk, limits.max_rows - rows);
  for (std::size_t i = 0; i < running.size() && prompt_rows > 0; ++i) {
    const SequenceProgress& sequence = running[i];
    const std::int64_t left = sequence.prompt_tokens - sequence.computed_tokens;
    if (left <= 0) continue;
    const std::int64_t count = std::min(left, prompt_rows);
    chunks.push_back({.sequence = i, .begin = sequence.computed_tokens, .count = count});
    prompt_rows -= count;
  }
  return chunks;
}

std::size_t plan_admission(const AdmissionState& state) {
  std::int64_t pages = state.free_pages;
  std::size_t admitted = 0;
  while (admitted < state.waiting_pages.size() &&
         static_cast<std::int64_t>(admitted) < state.free_sequences &&
         state.waiting_pages[admitted] <= pages) {
    pages -= state.waiting_pages[admitted];
    ++admitted;
  }
  return admitted;
}

}  // namespace holdfast::engine
