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

PromptDetail& detail_of(Sequence& sequence) {
  if (!sequence.prompt_detail) sequence.prompt_detail = std::make_shared<PromptDetail>();
  return *sequence.prompt_detail;
}

}  // namespace

Results::Results(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)), sampler_(vocabulary_.size) {}

Status Results::take(std::span<const ComputedChunk> chunks, const Read& read,
                     std::uint64_t epoch) {
  Status first_failure;
  const auto check = [&](Sequence& sequence, const Status& taken) {
    if (taken.ok()) return;
    this->end(sequence, FinishReason::kAbort);
    if (first_failure.ok()) first_failure = taken;
  };
  std::int64_t logits_index = 0, first_row = 0;
  for (const ComputedChunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    const std::int64_t end = chunk.begin + chunk.count;
    if (sequence.request.routed_experts && read.experts) {
      check(sequence, take_experts(chunk, first_row, read.experts));
    }
    first_row += chunk.count;
    for (std::int64_t p = chunk.begin; p < end; ++p) {
      if (!sequence.wants_logits(p)) continue;
      const Row row{.position = p, .index = logits_index++, .epoch = epoch};
      if (!sequence.ended) check(sequence, take_row(sequence, row, read));
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

// Of positions that have not been taken: those of the prompt but its last are kept for the first
// event, another one for the token that it gives.
Status Results::take_experts(const ComputedChunk& chunk, std::int64_t first_row,
                             const ReadExperts& read_experts) {
  Sequence& sequence = *chunk.sequence;
  const std::int64_t begin = std::max(chunk.begin, sequence.taken_tokens);
  const std::int64_t end = chunk.begin + chunk.count;
  if (begin >= end) return {};
  const std::int64_t prompt_end = std::clamp(sequence.prompt_tokens - 1, begin, end);
  const std::int64_t row = first_row + begin - chunk.begin;
  if (prompt_end > begin) {
    HF_TRY(read_experts({.begin = row, .count = prompt_end - begin},
                        detail_of(sequence).routed_experts));
  }
  experts_.clear();
  if (end <= prompt_end) return {};
  return read_experts({.begin = row + prompt_end - begin, .count = end - prompt_end}, experts_);
}

Status Results::take_prompt_row(Sequence& sequence, std::int64_t position,
                                std::span<const float> logits) {
  if (!sequence.wants_prompt_logprobs()) return {};
  const std::int32_t next = sequence.tokens[static_cast<std::size_t>(position) + 1];
  const std::optional<std::int32_t> top = sequence.request.prompt_top_logprobs;
  HF_ASSIGN(Sampled scored, sampler_.score(logits, next, top));
  sequence.prompt_logprobs.push_back(scored.logprob);
  if (!top) return {};
  detail_of(sequence).ranks.push_back(scored.rank);
  detail_of(sequence).top.push_back(std::move(scored.top));
  return {};
}

SampleInput Results::input_of(const Sequence& sequence) const {
  const Request& request = sequence.request;
  const std::span<const std::int32_t> tokens = sequence.tokens;
  const auto prompt_tokens = static_cast<std::size_t>(sequence.prompt_tokens);
  SampleInput input{.sampling = request.sampling,
                    .output_index = static_cast<std::uint64_t>(sequence.output_tokens()),
                    .prompt = tokens.first(prompt_tokens),
                    .output = tokens.subspan(prompt_tokens),
                    .mode = request.logprobs_mode,
                    .top_logprobs = request.top_logprobs};
  if (sequence.output_tokens() < request.min_tokens) {
    input.masked[0] = request.stop_token_ids;
    if (!request.ignore_eos) input.masked[1] = vocabulary_.eos_token_ids;
  }
  return input;
}

std::optional<ChoiceInput> Results::choice_of(const Sequence& sequence,
                                              std::int64_t position) const {
  const bool gives_token = position + 1 >= sequence.prompt_tokens && sequence.output_limit > 0;
  const bool is_shown = position < sequence.prompt_tokens && sequence.request.prompt_logits;
  if (!gives_token || is_shown) return std::nullopt;
  return Sampler::choosable(input_of(sequence));
}

Status Results::take_row(Sequence& sequence, const Row& row, const Read& read) {
  const auto failed = [&](const Error& error) {
    return make_error(error.code(), "request {}, position {}, epoch {}: {}", sequence.id.value,
                      row.position, row.epoch, error.message());
  };
  if (read.choice && choice_of(sequence, row.position)) {
    HF_ASSIGN(const ops::Choice choice, read.choice(row.index));
    Result<Sampled> sampled = Sampler::chosen(choice);
    if (!sampled.ok()) return failed(sampled.error());
    take_token(sequence, *std::move(sampled), row.epoch);
    return {};
  }
  HF_ASSIGN(const std::span<const float> logits, read.logits(row.index));
  if (row.position < sequence.prompt_tokens && sequence.request.prompt_logits) {
    sequence.request.prompt_logits(row.position, logits);
  }
  if (row.position + 1 < sequence.prompt_tokens) {
    const Status taken = take_prompt_row(sequence, row.position, logits);
    return taken.ok() ? taken : failed(taken.error());
  }
  if (sequence.output_limit == 0) return {};
  Result<Sampled> sampled = sampler_.sample(logits, input_of(sequence));
  if (!sampled.ok()) return failed(sampled.error());
  take_token(sequence, *std::move(sampled), row.epoch);
  return {};
}

void Results::take_token(Sequence& sequence, Sampled sampled, std::uint64_t epoch) {
  sequence.tokens.push_back(sampled.id);
  Event event;
  event.token =
      Token{.id = sampled.id, .logprob = sampled.logprob, .epoch = epoch, .rank = sampled.rank};
  event.top_logprobs = std::move(sampled.top);
  event.finish_reason = reason_to_finish(sequence);
  if (sequence.request.routed_experts) event.routed_experts = std::exchange(experts_, {});
  emit(sequence, std::move(event));
}

std::optional<FinishReason> Results::reason_to_finish(const Sequence& sequence) const {
  const std::int32_t id = sequence.tokens.back();
  const bool is_eos = !sequence.request.ignore_eos && contains(vocabulary_.eos_token_ids, id);
  if (is_eos || contains(sequence.request.stop_token_ids, id)) return FinishReason::kStop;
  if (sequence.output_tokens() >= sequence.output_limit) return FinishReason::kLength;
  return std::nullopt;
}

void Results::end(Sequence& sequence, FinishReason reason) {
  Event event;
  event.finish_reason = reason;
  emit(sequence, std::move(event));
}

void Results::restart(Sequence& sequence) {
  HF_ASSERT(sequence.computed_tokens == 0, "the keys and values of void tokens are still there");
  if (sequence.taken_tokens > 0) {
    events_.push_back({.request = sequence.id, .token = {}, .prompt_logprobs = {},
                       .finish_reason = {}, .restarted = true});
  }
  sequence.tokens.resize(static_cast<std::size_t>(sequence.prompt_tokens));
  sequence.prompt_logprobs.clear();
  sequence.prompt_detail.reset();
  sequence.has_event = false;
  sequence.taken_tokens = sequence.cached_tokens = 0;
  sequence.last_epoch = 0;
}

void Results::emit(Sequence& sequence, Event event) {
  event.request = sequence.id;
  if (!sequence.has_event) {
    if (sequence.cached_tokens > 0) detail_of(sequence).cached_tokens = sequence.cached_tokens;
    event.prompt = std::move(sequence.prompt_detail);
    event.prompt_logprobs = std::exchange(sequence.prompt_logprobs, {});
    sequence.has_event = true;
  }
  if (event.finish_reason) sequence.ended = true;
  events_.push_back(std::move(event));
}

std::vector<Event> Results::take_events() { return std::exchange(events_, {}); }

}  // namespace holdfast::engine
