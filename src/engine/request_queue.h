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
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/settings.h"
#include "engine/step_batch.h"
#include "holdfast/engine.h"

namespace holdfast::engine {

inline constexpr std::size_t kMaxWaitingRequests = 4096;
inline constexpr std::size_t kMaxStopTokens = 256;

class RequestQueue {
 public:
  struct Vocabulary {
    std::int64_t size = 0;
    std::vector<std::int32_t> eos_token_ids;
  };
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
  // Errors: kDevice when logits cannot be read or are not finite: the first such; those requests
  // have ended (kAbort), the others went on.
  using ReadLogits = std::function<Result<std::span<const float>>(std::int64_t)>;
  Status take_results(const ReadLogits& read_logits, std::uint64_t epoch);
  std::vector<Event> take_events();

  // Ends the running requests that a step of a later epoch than `epoch` touched: after a roll-back
  // their keys and values come from weights that are gone.
  void abort_computed_after(std::uint64_t epoch);

 private:
  struct Sequence {
    RequestId id;
    Request request;                  // its prompt_ids moved to tokens
    std::vector<std::int32_t> tokens;  // prompt and generated
    std::int64_t prompt_tokens = 0;
    std::int64_t computed_tokens = 0;
    std::int64_t output_limit = 0;
    std::int32_t row = -1;  // of the block tables
    std::uint64_t last_epoch = 0;
    std::vector<float> prompt_logprobs;  // until the first event
    bool ended = false;

    std::int64_t known_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
    std::int64_t output_tokens() const { return known_tokens() - prompt_tokens; }
    std::int64_t reserved_tokens() const;
    bool wants_logits(std::int64_t position) const;
  };
  using SequencePtr = std::unique_ptr<Sequence>;

  Status check(const Request& request) const;
  Status take_row(Sequence& sequence, std::int64_t position,
                  const Result<std::span<const float>>& read, std::uint64_t epoch);
  void emit(Sequence& sequence, std::optional<Token> token, std::optional<FinishReason> reason);
  std::optional<FinishReason> reason_to_finish(const Sequence& sequence) const;
  void drop_ended();

  Settings settings_;
  Vocabulary vocabulary_;
  KvCache kv_;
  Sampler sampler_;
  std::deque<SequencePtr> waiting_;
  std::vector<SequencePtr> running_;     // in order of admission
  std::vector<std::int32_t> free_rows_;  // a stack
  std::vector<StepChunk> chunks_;        // of the planned batch
  StepBatch batch_;
  std::vector<Event> events_;
  std::uint64_t next_id_ = 1;
};

}  // namespace holdfast::engine
