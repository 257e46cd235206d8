#include "engine/results.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
  }
  return "abort";
}

}  // namespace holdfast

namespace holdfast::engine {

namespace {

bool contains(std::span<const std::int32_t> ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Results::Results(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), sampler_(vocabulary_.size) {}

Status Results::take(std::span<const ComputedChunk> chunks, const ReadLogits& read_logits,
                     std::uint64_t epoch) {
  Status first_failure;
  std::int64_t logits_index = 0;
  for (const ComputedChunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    const std::int64_t end = chunk.begin + chunk.count;
    for (std::int64_t p = chunk.begin; p < end; ++p) {
      if (!sequence.wants_logits(p)) continue;
      const std::int64_t index = logits_index++;
      if (sequence.ended) continue;
      const Status taken = take_row(sequence, p, read_logits(index), epoch);
      if (taken.ok()) continue;
      this->end(sequence, FinishReason::kAbort);
      if (first_failure.ok()) first_failure = taken;
    }
    sequence.computed_tokens = end;
    sequence.taken_tokens = std::max(sequence.taken_tokens, end);
    sequence.last_epoch = epoch;
    if (!sequence.ended && sequence.output_limit == 0 && end == sequence.prompt_tokens) {
      this->end(sequence, FinishReason::kLength);
    }
  }
  return first_failure;
}

Status Results::take_row(Sequence& sequence, std::int64_t position,
                         const Result<std::span<const float>>& read, std::uint64_t epoch) {
  HF_ASSIGN(const std::span<const float> logits, read);
  if (position < sequence.prompt_tokens && sequence.request.prompt_logits) {
    sequence.request.prompt_logits(position, logits);
  }
  if (position + 1 < sequence.prompt_tokens) {
    if (sequence.request.prompt_logprobs) {
      const std::int32_t next = sequence.tokens[static_cast<std::size_t>(position) + 1];
      sequence.prompt_logprobs.push_back(static_cast<float>(log_probability(logits, next)));
    }
    return {};
  }
  if (sequence.output_limit == 0) return {};
  const auto sampled = sampler_.sample(logits, sequence.request.sampling,
                                       static_cast<std::uint64_t>(sequence.output_tokens()));
  if (!sampled.ok()) {
    return make_error(sampled.error().code(), "request {}, position {}, epoch {}: {}",
                      sequence.id.value, position, epoch, sampled.error().message());
  }
  sequence.tokens.push_back(sampled->id);
  emit(sequence, Token{.id = sampled->id, .logprob = sampled->logprob, .epoch = epoch},
       reason_to_finish(sequence));
  return {};
}

std::optional<FinishReason> Results::reason_to_finish(const Sequence& sequence) const {
  const std::int32_t id = sequence.tokens.back();
  const bool is_eos = !sequence.request.ignore_eos && contains(vocabulary_.eos_token_ids, id);
  if (is_eos || contains(sequence.request.stop_token_ids, id)) return FinishReason::kStop;
  if (sequence.output_tokens() >= sequence.output_limit) return FinishReason::kLength;
  return std::nullopt;
}

void Results::end(Sequence& sequence, FinishReason reason) {
  emit(sequence, std::nullopt, reason);
}

void Results::restart(Sequence& sequence) {
  HF_ASSERT(sequence.computed_tokens == 0, "the keys and values of void tokens are still there");
  if (sequence.taken_tokens > 0) {
    events_.push_back({.request = sequence.id, .token = {}, .prompt_logprobs = {},
                       .finish_reason = {}, .restarted = true});
  }
  sequence.tokens.resize(static_cast<std::size_t>(sequence.prompt_tokens));
  sequence.prompt_logprobs.clear();
  sequence.taken_tokens = sequence.cached_tokens = 0;
  sequence.last_epoch = 0;
}

void Results::emit(Sequence& sequence, std::optional<Token> token,
                   std::optional<FinishReason> reason) {
  events_.push_back({.request = sequence.id,
                     .token = token,
                     .prompt_logprobs = std::exchange(sequence.prompt_logprobs, {}),
                     .finish_reason = reason});
  if (reason) sequence.ended = true;
}

std::vector<Event> Results::take_events() { return std::exchange(events_, {}); }

}  // namespace holdfast::engine
