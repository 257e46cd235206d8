// Results: from the logits of a step to events: prompt log probabilities, sampled tokens, the ends
// of requests. Owned by the request queue; engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "engine/sequence.h"
#include "holdfast/request.h"
#include "holdfast/result.h"

namespace holdfast::engine {

struct Vocabulary {
  std::int64_t size = 0;
  std::vector<std::int32_t> eos_token_ids;
};

// Positions [begin, begin + count) of a sequence, which a step has computed.
struct ComputedChunk {
  Sequence* sequence = nullptr;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

class Results {
 public:
  explicit Results(Vocabulary vocabulary);

  // After a step ran, with its chunks in the order of its rows: callbacks, samples, ends. Updates
  // computed_tokens, taken_tokens and last_epoch. `read_logits` gives the n-th wanted row.
  // Errors: kDevice when logits cannot be read or are not finite: the first such; those requests
  // have ended (kAbort), the others went on.
  using ReadLogits = std::function<Result<std::span<const float>>(std::int64_t)>;
  Status take(std::span<const ComputedChunk> chunks, const ReadLogits& read_logits,
              std::uint64_t epoch);
  // Ends a sequence without a token.
  void end(Sequence& sequence, FinishReason reason);
  // Back to its prompt; an event says so when anything has been told of it. Asserts that it has no
  // keys and values.
  void restart(Sequence& sequence);

  bool has_events() const { return !events_.empty(); }
  std::vector<Event> take_events();

 private:
  Status take_row(Sequence& sequence, std::int64_t position,
                  const Result<std::span<const float>>& read, std::uint64_t epoch);
  void emit(Sequence& sequence, std::optional<Token> token, std::optional<FinishReason> reason);
  std::optional<FinishReason> reason_to_finish(const Sequence& sequence) const;

  Vocabulary vocabulary_;
  Sampler sampler_;
  std::vector<Event> events_;
};

}  // namespace holdfast::engine
