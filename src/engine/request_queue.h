// RequestQueue: the requests of an engine and what becomes of them: waiting, running, preempted,
// ended; the rows of a step, and the pages that they need. What a step's logits mean is
// engine/results.h. Owned by the engine; engine thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/results.h"
#include "engine/scheduler.h"
#include "engine/settings.h"
#include "engine/step_batch.h"
#include "holdfast/engine.h"

namespace holdfast::engine {

class RequestQueue {
 public:
  RequestQueue(const Settings& settings, Vocabulary vocabulary);

  // Errors: kInvalidArgument naming field, value and range; kResourceExhausted over max_waiting.
  Result<RequestId> submit(Request request);
  // Its last event comes with the next take_events. Errors: kNotFound.
  Status cancel(RequestId request);
  // Cancels all that have started, and those that have not if `waiting`. Gives their number.
  std::size_t cancel_all(bool waiting);
  // While held, no request starts; those that have started go on, also when they are preempted.
  void hold_admission(bool held) { held_ = held; }
  // Nothing waits, runs, or has an event to be taken.
  bool idle() const;
  // Requests that run, or have and were preempted.
  std::size_t started() const { return running_.size() + preempted_.size(); }

  // Plans the next step, under the weights of `epoch`: starts requests, gives them pages, and
  // preempts the last in order when there are none left. `write_table` gets each sequence row whose
  // pages have changed. Loses and advances nothing, so that a step that failed can be tried again.
  // Errors: whatever write_table says.
  using WriteTable = std::function<Status(std::int32_t, std::span<const std::int32_t>)>;
  Status plan(std::uint64_t epoch, const WriteTable& write_table);
  // The planned rows; empty when nothing runs.
  const StepBatch& batch() const { return batch_; }
  // After the planned step ran: callbacks, samples, ends. Parameters and errors: as Results::take.
  Status take_results(const Results::Read& read, std::uint64_t epoch);
  std::vector<Event> take_events();

  // Weights have changed: no prefix of others is ever found again.
  void enter_epoch(std::uint64_t epoch) { kv_.enter_epoch(epoch); }
  void forget_prefixes() { kv_.forget_prefixes(); }
  // What a commit does to the requests that have started. Asserts that there are none with kDrain.
  void apply(InFlight policy);
  // Ends the started requests that a step of a later epoch than `epoch` touched: after a roll-back
  // their tokens, keys and values come from weights that are gone. One that has only taken cached
  // pages of such weights computes them anew.
  void abort_computed_after(std::uint64_t epoch);

  // Without what reloads count.
  EngineStats stats() const;

  // For whoever checks the engine: called when a request has keys and values of another number of
  // positions than before; 0: it has lost them.
  using KeysObserver = std::function<void(RequestId request, std::int64_t positions)>;
  void observe_keys(KeysObserver observer) { keys_observer_ = std::move(observer); }

 private:
  // Whoever is less goes first.
  struct Order {
    std::int64_t priority = 0;
    std::uint64_t id = 0;
    friend auto operator<=>(const Order&, const Order&) = default;
  };
  using Sequences = std::map<Order, SequencePtr>;

  static Order order_of(const Sequence& sequence);
  Sequences& home_of(const Sequence& sequence);
  Sequences* next_to_start();
  void admit();
  bool may_start(const Sequence& sequence, std::int64_t promised_pages) const;
  std::int64_t promised_pages() const;
  void start(Sequences& from);
  void take_prefix(Sequence& sequence);
  void take_prefixes();
  std::vector<StepChunk> plan_chunks();
  std::size_t count_kept(std::span<const StepChunk> chunks) const;
  void fill_batch(std::span<const StepChunk> chunks);
  void preempt(Sequences::iterator at);
  void preempt_all();
  void leave_row(Sequence& sequence);
  void count_step();
  void tell_keys(const Sequence& sequence) const;
  void abort(Sequence& sequence);
  template <typename Predicate>
  std::size_t abort_if(Sequences& sequences, const Predicate& predicate);

  Settings settings_;
  Vocabulary vocabulary_;
  KvCache kv_;
  Results results_;
  bool held_ = false;
  Sequences waiting_;    // never started
  Sequences running_;    // with a row
  Sequences preempted_;  // started, and without row and pages now
  std::unordered_map<std::uint64_t, Sequence*> by_id_;
  std::vector<std::int32_t> free_rows_;  // a stack
  std::vector<Sequence*> in_order_;      // those that run, while a step is planned
  std::vector<ComputedChunk> chunks_;    // of the planned batch
  StepBatch batch_;
  std::uint64_t next_id_ = 1;
  EngineStats counts_;  // only what this queue counts
  KeysObserver keys_observer_;
};

}  // namespace holdfast::engine
