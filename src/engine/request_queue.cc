#include "engine/request_queue.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/request_check.h"

namespace holdfast::engine {

namespace {

// The last generated token is never an input, so it needs no place in the cache.
std::int64_t reserved_tokens(const Sequence& sequence) {
  return sequence.prompt_tokens + std::max<std::int64_t>(sequence.output_limit - 1, 0);
}

}  // namespace

// ------------------------------------------------------------------------------ requests

RequestQueue::RequestQueue(const Settings& settings, Vocabulary vocabulary)
    : settings_(settings),
      vocabulary_(std::move(vocabulary)),
      kv_(settings.page_count, kPageSize, settings.max_sequences),
      results_(vocabulary_) {
  for (std::int64_t row = settings.max_sequences; row > 0; --row) {
    free_rows_.push_back(static_cast<std::int32_t>(row - 1));
  }
  batch_.rows.reserve(static_cast<std::size_t>(settings.max_rows));
}

Result<RequestId> RequestQueue::submit(Request request) {
  HF_TRY(check_request(request, settings_, vocabulary_));
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
    results_.end(**at, FinishReason::kAbort);
    waiting_.erase(at);
    return {};
  }
  if (const auto at = std::find_if(running_.begin(), running_.end(), is_it);
      at != running_.end()) {
    results_.end(**at, FinishReason::kAbort);
    drop_ended();
    return {};
  }
  return make_error(ErrorCode::kNotFound, "request {} is neither waiting nor running",
                    request.value);
}

bool RequestQueue::idle() const {
  return waiting_.empty() && running_.empty() && !results_.has_events();
}

void RequestQueue::abort_computed_after(std::uint64_t epoch) {
  for (const SequencePtr& sequence : running_) {
    if (sequence->last_epoch > epoch) results_.end(*sequence, FinishReason::kAbort);
  }
  drop_ended();
}

// ------------------------------------------------------------------------------ a step's rows

Status RequestQueue::admit(const WriteTable& write_table) {
  if (waiting_.empty()) return {};
  std::vector<std::int64_t> pages;
  for (const SequencePtr& sequence : waiting_) {
    if (pages.size() == free_rows_.size()) break;
    pages.push_back(kv_.pages_for(reserved_tokens(*sequence)));
  }
  const std::size_t count =
      plan_admission({.waiting_pages = pages,
                      .free_sequences = static_cast<std::int64_t>(free_rows_.size()),
                      .free_pages = kv_.free_pages()});
  for (std::size_t i = 0; i < count; ++i) {
    Sequence& sequence = *waiting_.front();
    const std::int32_t row = free_rows_.back();
    HF_TRY(kv_.reserve(row, reserved_tokens(sequence)));
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
  const auto chunks = plan_step(progress, {.max_rows = settings_.max_rows,
                                           .prefill_chunk = settings_.prefill_chunk});
  chunks_.clear();
  batch_.clear();
  for (const StepChunk& chunk : chunks) {
    Sequence& sequence = *running_[chunk.sequence];
    chunks_.push_back({.sequence = &sequence, .begin = chunk.begin, .count = chunk.count});
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

Status RequestQueue::take_results(const Results::ReadLogits& read_logits, std::uint64_t epoch) {
  const Status taken = results_.take(chunks_, read_logits, epoch);
  chunks_.clear();
  drop_ended();
  return taken;
}

void RequestQueue::drop_ended() {
  for (const SequencePtr& sequence : running_) {
    if (!sequence->ended) continue;
    kv_.release(sequence->row);
    free_rows_.push_back(sequence->row);
  }
  std::erase_if(running_, [](const SequencePtr& sequence) { return sequence->ended; });
}

std::vector<Event> RequestQueue::take_events() { return results_.take_events(); }

}  // namespace holdfast::engine
