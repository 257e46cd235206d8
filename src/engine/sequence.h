// Sequence: one request while it waits and runs: its tokens so far, how many of them have keys and
// values, and what has been said about it. Owned by the request queue; engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "holdfast/request.h"

namespace holdfast::engine {

struct Sequence {
  RequestId id;
  Request request;                   // its prompt_ids moved to tokens
  std::vector<std::int32_t> tokens;  // prompt and output
  std::int64_t prompt_tokens = 0;
  std::int64_t output_limit = 0;     // output tokens at most
  std::int64_t computed_tokens = 0;  // positions whose keys and values are in the cache
  // Positions whose results have been taken. It does not fall when keys and values are lost, so
  // that computing them again says nothing twice.
  std::int64_t taken_tokens = 0;
  // Prompt positions that a cached prefix spared the request, before its first event.
  std::int64_t cached_tokens = 0;
  std::int32_t row = -1;                // of the block tables; -1: waits
  bool started = false;                 // it has run, so that a held admission does not stop it
  std::uint64_t last_epoch = 0;         // of the last step that computed a position
  std::uint64_t prefix_epoch = 0;       // of the cached pages that it took last
  std::vector<float> prompt_logprobs;   // until the first event
  std::shared_ptr<PromptDetail> prompt_detail;  // as well; null: there is nothing to say
  bool has_event = false;               // its first event has been made
  bool ended = false;

  std::int64_t known_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t output_tokens() const { return known_tokens() - prompt_tokens; }
  bool wants_prompt_logprobs() const {
    return request.prompt_logprobs || request.prompt_top_logprobs;
  }
  // A request that wants to know something of each prompt position has to compute it.
  bool may_use_cached_prefix() const {
    return !request.prompt_logits && !wants_prompt_logprobs() && !request.routed_experts;
  }
  // Whether the step that computes `position` has to bring its logits.
  bool wants_logits(std::int64_t position) const {
    if (position < taken_tokens) return false;
    if (position + 1 >= prompt_tokens && output_limit > 0) return true;
    if (request.prompt_logits && position < prompt_tokens) return true;
    return wants_prompt_logprobs() && position + 1 < prompt_tokens;
  }
};
using SequencePtr = std::unique_ptr<Sequence>;

}  // namespace holdfast::engine
