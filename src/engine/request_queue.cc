#include "engine/request_queue.h"

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

Status check_ids(const char* field, std::span<const std::int32_t> ids, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "request field {}[{}] is {}, expected a token id from 0 to {}", field, i,
                      ids[i], vocab_size - 1);
  }
  return {};
}

bool contains(std::span<const std::int32_t> ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

// ------------------------------------------------------------------------------ one sequence

// The last generated token is never an input, so it needs no place in the cache.
std::int64_t RequestQueue::Sequence::reserved_tokens() const {
  return prompt_tokens + std::max<std::int64_t>(output_limit - 1, 0);
}

bool RequestQueue::Sequence::wants_logits(std::int64_t position) const {
  if (position + 1 >= prompt_tokens && output_limit > 0) return true;
  if (request.prompt_logits && position < prompt_tokens) return true;
  return request.prompt_logprobs && position + 1 < prompt_tokens;
}

// ------------------------------------------------------------------------------ requests

RequestQueue::RequestQueue(const Settings& settings, Vocabulary vocabulary)
    : settings_(settings),
      vocabulary_(std::move(vocabulary)),
      kv_(settings.page_count, kPageSize, settings.max_sequences),
      sampler_(vocabulary_.size) {
  for (std::int64_t row = settings.max_sequences; row > 0; --row) {
    free_rows_.push_back(static_cast<std::int32_t>(row - 1));
  }
  batch_.rows.reserve(static_cast<std::size_t>(settings.max_rows));
}

Status RequestQueue::check(const Request& request) const {
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt_ids.size());
  if (prompt_tokens < 1 || prompt_tokens > settings_.max_context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field prompt_ids holds {} tokens, expected 1 to {} (max_context)",
                      prompt_tokens, settings_.max_context);
  }
  if (request.max_tokens < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field max_tokens is {}, expected 0 (score only) or more",
                      request.max_tokens);
  }
  if (request.stop_token_ids.size() > kMaxStopTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field stop_token_ids holds {} ids, at most {} are allowed",
                      request.stop_token_ids.size(), kMaxStopTokens);
  }
  HF_TRY(check_ids("prompt_ids", request.prompt_ids, vocabulary_.size));
  HF_TRY(check_ids("stop_token_ids", request.stop_token_ids, vocabulary_.size));
  return check_sampling(request.sampling);
}

Result<RequestId> RequestQueue::submit(Request request) {
  HF_TRY(check(request));
  if (waiting_.size() >= kMaxWaitingRequests) {
    return make_error(ErrorCode::kResourceExhausted,
                      "{} requests are waiting, the most that may; submit again later",
                      waiting_.size());
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = RequestId{next_id_++};
  sequence->tokens = std::move(request.prompt_ids);
  sequence->prompt_tokens = sequence->known_tokens();
  sequence->output_limit =
      std::min(request.max_tokens, settings_.max_context - sequence->prompt_tokens + 1);
  sequence->tokens.reserve(
      static_cast<std::size_t>(sequence->prompt_tokens + sequence->output_limit));
  if (request.prompt_logprobs) sequence->prompt_logprobs.reserve(sequence->tokens.size());
  sequence->request = std::move(request);
  const RequestId id = sequence->id;
  waiting_.push_back(std::move(sequence));
  return id;
}

Status RequestQueue::cancel(RequestId request) {
  const auto is_it = [request](const SequencePtr& s) { return s->id == request; };
  if (const auto at = std::find_if(waiting_.begin(), waiting_.end(), is_it);
      at != waiting_.end()) {
    emit(**at, std::nullopt, FinishReason::kAbort);
    waiting_.erase(at);
    return {};
  }
  if (const auto at = std::find_if(running_.begin(), running_.end(), is_it);
      at != running_.end()) {
    emit(**at, std::nullopt, FinishReason::kAbort);
    drop_ended();
    return {};
  }
  return make_error(ErrorCode::kNotFound, "request {} is neither waiting nor running",
                    request.value);
}

bool RequestQueue::idle() const {
  return waiting_.empty() && running_.empty() && events_.empty();
}

void RequestQueue::abort_computed_after(std::uint64_t epoch) {
  for (const SequencePtr& sequence : running_) {
    if (sequence->last_epoch > epoch) emit(*sequence, std::nullopt, FinishReason::kAbort);
  }
  drop_ended();
}

// ------------------------------------------------------------------------------ a step's rows

Status RequestQueue::admit(const WriteTable& write_table) {
  if (waiting_.empty()) return {};
  std::vector<std::int64_t> pages;
  for (const SequencePtr& sequence : waiting_) {
    if (pages.size() == free_rows_.size()) break;
    pages.push_back(kv_.pages_for(sequence->reserved_tokens()));
  }
  const std::size_t count =
      plan_admission({.waiting_pages = pages,
                      .free_sequences = static_cast<std::int64_t>(free_rows_.size()),
                      .free_pages = kv_.free_pages()});
  for (std::size_t i = 0; i < count; ++i) {
    Sequence& sequence = *waiting_.front();
    const std::int32_t row = free_rows_.back();
    HF_TRY(kv_.reserve(row, sequence.reserved_tokens()));
    if (Status written = write_table(row, kv_.pages(row)); !written.ok()) {
      kv_.release(row);
      return written;
    }
    sequence.row = row;
    free_rows_.pop_back();
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return {};
}

const StepBatch& RequestQueue::plan_batch() {
  std::vector<SequenceProgress> progress;
  progress.reserve(running_.size());
  for (const SequencePtr& sequence : running_) {
    progress.push_back({.prompt_tokens = sequence->prompt_tokens,
                        .computed_tokens = sequence->computed_tokens});
  }
  chunks_ = plan_step(progress, {.max_rows = settings_.max_rows,
                                 .prefill_chunk = settings_.prefill_chunk});
  batch_.clear();
  for (const StepChunk& chunk : chunks_) {
    const Sequence& sequence = *running_[chunk.sequence];
    for (std::int64_t p = chunk.begin; p < chunk.begin + chunk.count; ++p) {
      batch_.rows.push_back({.token = sequence.tokens[static_cast<std::size_t>(p)],
                             .position = static_cast<std::int32_t>(p),
                             .sequence = sequence.row,
                             .kv_slot = kv_.slot_of(sequence.row, p),
                             .wants_logits = sequence.wants_logits(p)});
    }
  }
  return batch_;
}

// ------------------------------------------------------------------------------ its results

Status RequestQueue::take_results(const ReadLogits& read_logits, std::uint64_t epoch) {
  Status first_failure;
  std::int64_t logits_index = 0;
  for (const StepChunk& chunk : chunks_) {
    Sequence& sequence = *running_[chunk.sequence];
    const std::int64_t end = chunk.begin + chunk.count;
    sequence.computed_tokens = end;
    sequence.last_epoch = epoch;
    for (std::int64_t p = chunk.begin; p < end; ++p) {
      if (!sequence.wants_logits(p)) continue;
      const std::int64_t index = logits_index++;
      if (sequence.ended) continue;
      const Status taken = take_row(sequence, p, read_logits(index), epoch);
      if (taken.ok()) continue;
      emit(sequence, std::nullopt, FinishReason::kAbort);
      if (first_failure.ok()) first_failure = taken;
    }
    if (!sequence.ended && sequence.output_limit == 0 && end == sequence.prompt_tokens) {
      emit(sequence, std::nullopt, FinishReason::kLength);
    }
  }
  chunks_.clear();
  drop_ended();
  return first_failure;
}

Status RequestQueue::take_row(Sequence& sequence, std::int64_t position,
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

std::optional<FinishReason> RequestQueue::reason_to_finish(const Sequence& sequence) const {
  const std::int32_t id = sequence.tokens.back();
  const bool is_eos = !sequence.request.ignore_eos && contains(vocabulary_.eos_token_ids, id);
  if (is_eos || contains(sequence.request.stop_token_ids, id)) return FinishReason::kStop;
  if (sequence.output_tokens() >= sequence.output_limit) return FinishReason::kLength;
  return std::nullopt;
}

void RequestQueue::emit(Sequence& sequence, std::optional<Token> token,
                        std::optional<FinishReason> reason) {
  events_.push_back({.request = sequence.id,
                     .token = token,
                     .prompt_logprobs = std::exchange(sequence.prompt_logprobs, {}),
                     .finish_reason = reason});
  if (reason) sequence.ended = true;
}

void RequestQueue::drop_ended() {
  for (const SequencePtr& sequence : running_) {
    if (!sequence->ended) continue;
    kv_.release(sequence->row);
    free_rows_.push_back(sequence->row);
  }
  std::erase_if(running_, [](const SequencePtr& sequence) { return sequence->ended; });
}

std::vector<Event> RequestQueue::take_events() { return std::exchange(events_, {}); }

}  // namespace holdfast::engine
