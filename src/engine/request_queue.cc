#include "engine/request_queue.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "engine/request_check.h"

namespace holdfast {

const char* in_flight_name(InFlight policy) {
  switch (policy) {
    case InFlight::kContinue: return "continue";
    case InFlight::kRecompute: return "recompute";
    case InFlight::kRestart: return "restart";
    case InFlight::kAbort: return "abort";
    case InFlight::kDrain: return "drain";
  }
  return "continue";
}

}  // namespace holdfast

namespace holdfast::engine {

RequestQueue::RequestQueue(const Settings& settings, Vocabulary vocabulary)
    : settings_(settings),
      vocabulary_(std::move(vocabulary)),
      kv_({.page_count = settings.page_count,
           .page_size = kPageSize,
           .sequence_count = settings.max_sequences,
           .keep_prefixes = settings.prefix_cache}),
      results_(vocabulary_) {
  for (std::int64_t row = settings.max_sequences; row > 0; --row) {
    free_rows_.push_back(static_cast<std::int32_t>(row - 1));
  }
  batch_.rows.reserve(static_cast<std::size_t>(settings.max_rows));
}

RequestQueue::Order RequestQueue::order_of(const Sequence& sequence) {
  return {.priority = sequence.request.priority, .id = sequence.id.value};
}

RequestQueue::Sequences& RequestQueue::home_of(const Sequence& sequence) {
  if (sequence.row >= 0) return running_;
  return sequence.started ? preempted_ : waiting_;
}

// ------------------------------------------------------------------------------ requests

Result<RequestId> RequestQueue::submit(Request request) {
  HF_TRY(check_request(request, settings_, vocabulary_));
  if (static_cast<std::int64_t>(waiting_.size()) >= settings_.max_waiting) {
    return make_error(ErrorCode::kResourceExhausted,
                      "{} requests are waiting, the most that may (engine option max_waiting); "
                      "submit again later",
                      waiting_.size());
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = RequestId{next_id_++};
  sequence->tokens = std::move(request.prompt_ids);
  sequence->prompt_tokens = sequence->known_tokens();
  sequence->output_limit =
      std::min(request.max_tokens, settings_.max_context - sequence->prompt_tokens + 1);
  sequence->request = std::move(request);
  const RequestId id = sequence->id;
  by_id_.emplace(id.value, sequence.get());
  waiting_.emplace(order_of(*sequence), std::move(sequence));
  return id;
}

// Gives a row and its pages back; what is kept for equal prefixes stays in the cache.
void RequestQueue::leave_row(Sequence& sequence) {
  kv_.release(sequence.row);
  free_rows_.push_back(sequence.row);
  sequence.row = -1;
  sequence.computed_tokens = 0;
  tell_keys(sequence);
}

void RequestQueue::tell_keys(const Sequence& sequence) const {
  if (keys_observer_) keys_observer_(sequence.id, sequence.computed_tokens);
}

// With its event still to be taken.
void RequestQueue::abort(Sequence& sequence) {
  results_.end(sequence, FinishReason::kAbort);
  Sequences& home = home_of(sequence);
  if (sequence.row >= 0) leave_row(sequence);
  by_id_.erase(sequence.id.value);
  home.erase(order_of(sequence));
}

template <typename Predicate>
std::size_t RequestQueue::abort_if(Sequences& sequences, const Predicate& predicate) {
  std::size_t count = 0;
  for (auto at = sequences.begin(); at != sequences.end();) {
    Sequence& sequence = *at++->second;
    if (!predicate(sequence)) continue;
    abort(sequence);
    ++count;
  }
  return count;
}

Status RequestQueue::cancel(RequestId request) {
  const auto at = by_id_.find(request.value);
  if (at == by_id_.end()) {
    return make_error(ErrorCode::kNotFound, "request {} is neither waiting nor running",
                      request.value);
  }
  abort(*at->second);
  return {};
}

std::size_t RequestQueue::cancel_all(bool waiting) {
  const auto all = [](const Sequence&) { return true; };
  const std::size_t count = abort_if(running_, all) + abort_if(preempted_, all);
  return waiting ? count + abort_if(waiting_, all) : count;
}

bool RequestQueue::idle() const {
  return waiting_.empty() && started() == 0 && !results_.has_events();
}

void RequestQueue::abort_computed_after(std::uint64_t epoch) {
  const auto touched = [epoch](const Sequence& s) { return s.last_epoch > epoch; };
  abort_if(running_, touched);
  abort_if(preempted_, touched);
  for (auto at = running_.begin(); at != running_.end();) {
    const auto sequence = at++;
    if (sequence->second->prefix_epoch > epoch) preempt(sequence);
  }
}

void RequestQueue::apply(InFlight policy) {
  switch (policy) {
    case InFlight::kContinue: return;
    case InFlight::kRecompute: return preempt_all();
    case InFlight::kAbort: static_cast<void>(cancel_all(false)); return;
    case InFlight::kDrain: HF_ASSERT(started() == 0, "requests still run"); return;
    case InFlight::kRestart: break;
  }
  preempt_all();
  for (const auto& [order, sequence] : preempted_) results_.restart(*sequence);
}

// ------------------------------------------------------------------------------ who runs

void RequestQueue::preempt(Sequences::iterator at) {
  leave_row(*at->second);
  preempted_.insert(running_.extract(at));
}

void RequestQueue::preempt_all() {
  while (!running_.empty()) preempt(std::prev(running_.end()));
}

// The queue whose first request is the next one to start; null when none may.
RequestQueue::Sequences* RequestQueue::next_to_start() {
  if (held_ || waiting_.empty()) return preempted_.empty() ? nullptr : &preempted_;
  if (preempted_.empty()) return &waiting_;
  return preempted_.begin()->first < waiting_.begin()->first ? &preempted_ : &waiting_;
}

std::int64_t RequestQueue::promised_pages() const {
  std::int64_t pages = 0;
  for (const auto& [order, sequence] : running_) {
    pages += kv_.pages_for(sequence->known_tokens()) -
             static_cast<std::int64_t>(kv_.pages(sequence->row).size());
  }
  return pages;
}

bool RequestQueue::may_start(const Sequence& sequence, std::int64_t promised_pages) const {
  const AdmissionState state{.free_sequences = static_cast<std::int64_t>(free_rows_.size()),
                             .available_pages = kv_.available_pages(),
                             .promised_pages = promised_pages};
  const std::int64_t pages = kv_.pages_for(sequence.known_tokens());
  if (plan_admission(state, pages)) return true;
  if (!sequence.may_use_cached_prefix()) return false;
  // Pages that others use already cost nothing.
  const KvCache::Match match = kv_.match(sequence.request.cache_salt, sequence.tokens);
  return plan_admission(state, pages - match.used_pages);
}

void RequestQueue::admit() {
  if (free_rows_.empty() || next_to_start() == nullptr) return;
  std::int64_t promised = promised_pages();
  for (Sequences* from = next_to_start(); from != nullptr && !free_rows_.empty();
       from = next_to_start()) {
    const Sequence& sequence = *from->begin()->second;
    if (!may_start(sequence, promised)) return;
    start(*from);
    promised += kv_.pages_for(sequence.known_tokens()) -
                static_cast<std::int64_t>(kv_.pages(sequence.row).size());
  }
}

void RequestQueue::start(Sequences& from) {
  Sequence& sequence = *from.begin()->second;
  sequence.row = free_rows_.back();
  free_rows_.pop_back();
  sequence.started = true;
  running_.insert(from.extract(from.begin()));
  kv_.start(sequence.row, sequence.request.cache_salt);
  const bool is_new = sequence.taken_tokens == 0 && sequence.cached_tokens == 0;
  if (is_new && settings_.prefix_cache && sequence.may_use_cached_prefix()) {
    counts_.prefix_queries += static_cast<std::uint64_t>(sequence.prompt_tokens);
  }
  take_prefix(sequence);
}

// ------------------------------------------------------------------------------ a step's rows

// Whatever others have computed since is not computed again: requests with one prompt that come
// together share it all the same.
void RequestQueue::take_prefix(Sequence& sequence) {
  const std::int64_t before = sequence.computed_tokens;
  if (!sequence.may_use_cached_prefix() || before % kPageSize != 0) return;
  sequence.computed_tokens = kv_.take_prefix(sequence.row, sequence.tokens, before);
  if (sequence.computed_tokens == before) return;
  sequence.prefix_epoch = kv_.epoch();
  tell_keys(sequence);
  // What the request itself has computed, before it was preempted, is no gift.
  const std::int64_t gift = std::min(sequence.computed_tokens, sequence.prompt_tokens) -
                            std::max(before, sequence.taken_tokens);
  if (gift <= 0) return;
  sequence.cached_tokens += gift;
  counts_.prefix_hits += static_cast<std::uint64_t>(gift);
}

// Of those that the step could serve.
void RequestQueue::take_prefixes() {
  std::int64_t rows = settings_.prefill_chunk;
  for (const auto& [order, sequence] : running_) {
    if (rows <= 0) return;
    if (sequence->known_tokens() - sequence->computed_tokens <= 1) continue;
    take_prefix(*sequence);
    rows -= sequence->known_tokens() - sequence->computed_tokens;
  }
}

std::vector<StepChunk> RequestQueue::plan_chunks() {
  in_order_.clear();
  std::vector<SequenceProgress> progress;
  progress.reserve(running_.size());
  for (const auto& [order, sequence] : running_) {
    in_order_.push_back(sequence.get());
    progress.push_back({.known_tokens = sequence->known_tokens(),
                        .computed_tokens = sequence->computed_tokens});
  }
  return plan_step(progress, {.max_rows = settings_.max_rows,
                              .prefill_chunk = settings_.prefill_chunk});
}

// How many of those in order go on with the pages that there are.
std::size_t RequestQueue::count_kept(std::span<const StepChunk> chunks) const {
  std::vector<PageDemand> demands(in_order_.size());
  std::int64_t wanted = 0;
  for (const StepChunk& chunk : chunks) {
    PageDemand& demand = demands[chunk.sequence];
    const auto held = kv_.pages(in_order_[chunk.sequence]->row).size();
    demand.more = kv_.pages_for(chunk.begin + chunk.count) - static_cast<std::int64_t>(held);
    wanted += demand.more;
  }
  if (wanted <= kv_.available_pages()) return in_order_.size();
  for (std::size_t i = 0; i < demands.size(); ++i) {
    demands[i].given_up = kv_.pages_alone(in_order_[i]->row);
  }
  return plan_preemption(demands, kv_.available_pages());
}

Status RequestQueue::plan(std::uint64_t epoch, const WriteTable& write_table) {
  kv_.enter_epoch(epoch);
  chunks_.clear();
  batch_.clear();
  admit();
  take_prefixes();
  std::vector<StepChunk> chunks = plan_chunks();
  // Who is left gets the rows of those that went, so that the demands are counted anew.
  for (std::size_t kept = count_kept(chunks); kept < running_.size(); kept = count_kept(chunks)) {
    counts_.preemptions += running_.size() - kept;
    while (running_.size() > kept) preempt(std::prev(running_.end()));
    chunks = plan_chunks();
  }
  for (const StepChunk& chunk : chunks) {
    const std::int32_t row = in_order_[chunk.sequence]->row;
    HF_TRY(kv_.grow(row, chunk.begin + chunk.count));
    if (!kv_.table_changed(row)) continue;
    HF_TRY(write_table(row, kv_.pages(row)));
    kv_.table_written(row);
  }
  fill_batch(chunks);
  return {};
}

void RequestQueue::fill_batch(std::span<const StepChunk> chunks) {
  for (const StepChunk& chunk : chunks) {
    Sequence& sequence = *in_order_[chunk.sequence];
    chunks_.push_back({.sequence = &sequence, .begin = chunk.begin, .count = chunk.count});
    for (std::int64_t p = chunk.begin; p < chunk.begin + chunk.count; ++p) {
      const bool wants_logits = sequence.wants_logits(p);
      const auto choice = wants_logits ? results_.choice_of(sequence, p) : std::nullopt;
      batch_.rows.push_back({.token = sequence.tokens[static_cast<std::size_t>(p)],
                             .position = static_cast<std::int32_t>(p),
                             .sequence = sequence.row,
                             .kv_slot = kv_.slot_of(sequence.row, p),
                             .wants_logits = wants_logits,
                             .temperature = choice ? choice->temperature : 0.0f,
                             .draw = choice ? choice->draw : 0.0});
    }
  }
}

Status RequestQueue::take_results(const Results::Read& read, std::uint64_t epoch) {
  count_step();
  const Status taken = results_.take(chunks_, read, epoch);
  for (const ComputedChunk& chunk : chunks_) {
    Sequence& sequence = *chunk.sequence;
    tell_keys(sequence);
    // What ended because its numbers are broken is no prefix for anybody.
    if (taken.ok() || !sequence.ended) {
      kv_.keep_prefix(sequence.row, std::span(sequence.tokens)
                                        .first(static_cast<std::size_t>(sequence.computed_tokens)));
    }
    if (!sequence.ended) continue;
    leave_row(sequence);
    by_id_.erase(sequence.id.value);
    running_.erase(order_of(sequence));
  }
  chunks_.clear();
  batch_.clear();
  return taken;
}

// Of the planned step, which ran.
void RequestQueue::count_step() {
  ++counts_.steps;
  counts_.last_step_rows = batch_.rows.size();
  for (const ComputedChunk& chunk : chunks_) {
    const Sequence& sequence = *chunk.sequence;
    const std::int64_t end = chunk.begin + chunk.count;
    const std::int64_t prompt_end = std::min(end, sequence.prompt_tokens);
    if (prompt_end > chunk.begin) {
      counts_.prompt_tokens += static_cast<std::uint64_t>(prompt_end - chunk.begin);
    }
    const bool gives_token = end == sequence.known_tokens() && sequence.output_limit > 0;
    if (gives_token) ++counts_.generated_tokens;
  }
}

std::vector<Event> RequestQueue::take_events() { return results_.take_events(); }

EngineStats RequestQueue::stats() const {
  EngineStats stats = counts_;
  stats.running = static_cast<std::int64_t>(running_.size());
  stats.waiting = static_cast<std::int64_t>(waiting_.size() + preempted_.size());
  stats.kv_pages = kv_.page_count();
  stats.kv_pages_used = kv_.used_pages();
  stats.kv_pages_cached = kv_.cached_pages();
  return stats;
}

}  // namespace holdfast::engine
