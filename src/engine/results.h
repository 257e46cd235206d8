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

  // What a step left behind: the n-th wanted row of logits; and where rows went, appended as i16
  // [count, layers, experts per token], asked for only if a request wants it.
  using ReadLogits = std::function<Result<std::span<const float>>(std::int64_t)>;
  struct RowRange {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };
  using ReadExperts = std::function<Status(RowRange, std::vector<std::int16_t>&)>;
  // The token that the device has taken from the n-th wanted row.
  using ReadChoice = std::function<Result<ops::Choice>(std::int64_t)>;
  struct Read {
    ReadLogits logits;
    ReadExperts experts;  // null: nobody gets any
    ReadChoice choice;    // null: every token is taken here
  };

  // After a step ran, with its chunks in the order of its rows: callbacks, samples, ends. Updates
  // computed_tokens, taken_tokens and last_epoch. Rows of which the device's choice says all are
  // not read. Errors: kDevice when something cannot be read, kCorrupt when logits are not finite:
  // the first such; those requests have ended (kAbort), the others went on.
  Status take(std::span<const ComputedChunk> chunks, const Read& read, std::uint64_t epoch);
  // What the device needs to take the token that follows `position`; empty when it cannot.
  std::optional<ChoiceInput> choice_of(const Sequence& sequence, std::int64_t position) const;
  // Ends a sequence without a token.
  void end(Sequence& sequence, FinishReason reason);
  // Back to its prompt; an event says so when anything has been told of it. Asserts that it has no
  // keys and values.
  void restart(Sequence& sequence);

  bool has_events() const { return !events_.empty(); }
  std::vector<Event> take_events();

 private:
  // Of one wanted row.
  struct Row {
    std::int64_t position = 0;
    std::int64_t index = 0;  // among the wanted ones
    std::uint64_t epoch = 0;
  };
  Status take_row(Sequence& sequence, const Row& row, const Read& read);
  void take_token(Sequence& sequence, Sampled sampled, std::uint64_t epoch);
  Status take_prompt_row(Sequence& sequence, std::int64_t position,
                         std::span<const float> logits);
  Status take_experts(const ComputedChunk& chunk, std::int64_t first_row,
                      const ReadExperts& read_experts);
  SampleInput input_of(const Sequence& sequence) const;
  void emit(Sequence& sequence, Event event);
  std::optional<FinishReason> reason_to_finish(const Sequence& sequence) const;

  Vocabulary vocabulary_;
  Sampler sampler_;
  std::vector<std::int16_t> experts_;  // of the position whose logits give the next token
  std::vector<Event> events_;
};

}  // namespace holdfast::engine
