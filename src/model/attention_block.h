// AttentionBlock: hidden += out(attention(rope(qkv(norm(hidden))))), with what a model has of it:
// biases, sinks, a window, norms of query and key heads. Defined while the registry is building;
// step() only enqueues.
#pragma once

#include <optional>

#include "model/slots.h"
#include "model/step.h"

namespace holdfast::model {

// What a model's attention has.
struct AttentionTraits {
  bool bias = false;       // of q, k, v and out
  bool sinks = false;
  bool head_norm = false;  // RMSNorm of each query and key head, before rope
  std::int64_t window = 0;  // 0: full
};

// What all layers share.
struct AttentionTables {
  storage::SlotId rope_cos, rope_sin;        // f32 [max_context, d / 2]
  std::optional<storage::SlotId> no_sinks;   // f32 [Hq] of -inf: for models without sinks
};

class AttentionBlock {
 public:
  static Result<AttentionBlock> define(storage::Registry& registry,
                                       const config::ModelConfig& config,
                                       const DecoderOptions& options, std::int64_t layer,
                                       const AttentionTraits& traits);

  Status step(const Step& step, const AttentionTables& tables) const;

 private:
  Status project(const Step& step, const AttentionTables& tables) const;
  Status project_in_parts(const Step& step, const ops::QkvArgs& args) const;

  std::int64_t layer_ = 0, query_heads_ = 0, kv_heads_ = 0, head_dim_ = 0, window_ = 0;
  storage::SlotId norm_, key_pages_, value_pages_;
  LinearSlots qkv_, out_;
  std::optional<storage::SlotId> sinks_, query_norm_, key_norm_;
};

}  // namespace holdfast::model
