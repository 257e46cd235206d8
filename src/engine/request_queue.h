// RequestQueue: the requests of an engine, waiting and running, and what becomes of them: from
// queues to the rows of a step, and from a step's logits to events. Owned by the engine; engine
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/results.h"
#include "engine/scheduler.h"
#include "engine/settings.h"
#include "engine/step_batch.h"
#include "holdfast/engine.h"

namespace holdfast::engine {

inline constexpr std::size_t kMaxWaitingRequests = 4096;

class RequestQueue {
 public:
  RequestQueue(const Settings& settings, Vocabulary vocabulary);

  // Errors: kInvalidArgument naming field, value and range; kResourceExhausted over
  // kMaxWaitingRequests.
  Result<RequestId> submit(Request request);
  // Its last event comes with the next take_events. Errors: kNotFound.
  Status cancel(RequestId request);
  // Nothing waits, runs, or has an event to be taken.
  bool idle() const;

  // Starts waiting requests that fit. `write_table` gets a sequence row and its pages.
  // Errors: whatever write_table says; the request then waits on.
  using WriteTable = std::function<Status(std::int32_t, std::span<const std::int32_t>)>;
  Status admit(const WriteTable& write_table);
  // The rows of the next step; empty when nothing runs. Changes no request, so that a step that
  // failed can be tried again.
  const StepBatch& plan_batch();
  // After the step ran: callbacks, samples, ends. `read_logits` gives the n-th wanted row.
  // Errors: as Results::take.
  Status take_results(const Results::ReadLogits& read_logits, std::uint64_t epoch);
  std::vector<Event> take_events();

  // Ends the running requests that a step of a later epoch than `epoch` touched: after a roll-back
  // their keys and values come from weights that are gone.
  void abort_computed_after(std::uint64_t epoch);

 private:
  void drop_ended();

  Settings settings_;
  Vocabulary vocabulary_;
  KvCache kv_;
  Results results_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;     // in order of admission
  std::vector<std::int32_t> free_rows_;  // a stack
  std::vector<ComputedChunk> chunks_;    // of the planned batch
  StepBatch batch_;
  std::uint64_t next_id_ = 1;
};

}  // namespace holdfast::engine
