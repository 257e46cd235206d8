// Decoder: one model as a declaration of slots and a sequence of ops. Defines its storage while the
// registry is building; afterwards step() only enqueues ops over slots. Knows no checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/expert_quantizer.h"
#include "config/model_config.h"
#include "experts/experts.h"
#include "holdfast/result.h"
#include "ops/ops.h"
#include "storage/registry.h"

namespace holdfast::model {

struct DecoderOptions {
  std::int64_t max_rows = 64;       // tokens in one step
  std::int64_t max_sequences = 8;   // rows of the block tables
  std::int64_t page_size = 16;      // tokens in a KV page
  std::int64_t page_count = 0;      // KV pages per layer
  std::int64_t max_context = 0;     // positions a sequence may have; rope tables and block tables
  std::optional<experts::ExpertsBackendKind> experts_backend;
  device::DeviceKind device = device::DeviceKind::kCpu;
  // What the experts do to their inputs, in place of what the checkpoint says.
  std::optional<config::ActivationScheme> expert_activations = {};
  // A step also takes a token of each row of logits (ops::choose), for hosts that cannot read them.
  bool chooses = false;
  // What plain experts become as they arrive; empty: they stay as they are.
  std::optional<config::QuantizeTarget> quantize_experts = {};
};

// Of ops::choose; row r is about row r of the logits.
struct ChoiceSlots {
  storage::SlotId temperatures;  // f32 [n]
  storage::SlotId draws;         // i32 [n, 2]: a float64 each
  storage::SlotId scratch;
  storage::SlotId choices;       // i32 [n, kChooseWords]: an ops::Choice each
};

// What the engine writes before a step and reads after it. Shapes with n = max_rows.
struct DecoderSlots {
  storage::SlotId token_ids;     // i32 [n]
  storage::SlotId positions;     // i32 [n]
  storage::SlotId row_sequence;  // i32 [n]
  storage::SlotId slot_mapping;  // i32 [n]: page * page_size + offset, -1 = do not store
  storage::SlotId block_tables;  // i32 [max_sequences, max_context / page_size rounded up]
  storage::SlotId logit_rows;    // i32 [n]: rows whose logits are wanted
  storage::SlotId row_count;     // i32 [1]
  storage::SlotId logit_count;   // i32 [1]
  storage::SlotId logits;        // f32 [n, vocab]; rows [0, logit_count) are written
  // i32 [layers, n, experts per token]: where each row went, likeliest first; rows [0, row_count)
  // of each layer with experts are written, the others stay zero.
  storage::SlotId expert_ids;
  std::optional<ChoiceSlots> choices;  // with DecoderOptions::chooses
};

// Called with each named intermediate of an eager step: "layers.0.qkv_proj_out", ... The view's
// contents are those of that moment: activations are shared by all layers.
using Tap = std::function<void(std::string_view name, const ops::TensorView& view)>;

class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual const DecoderSlots& slots() const = 0;
  // Enqueues one step over up to `rows` (<= max_rows) rows; the actual counts are read from
  // row_count and logit_count when it runs. `tap` only outside a capture.
  virtual Status step(const ops::OpContext& context, std::int64_t rows,
                      const Tap& tap = {}) const = 0;
  // Names of the experts' constant slots, all layers: layer_count x 3 for gpt-oss.
  virtual std::vector<std::string> experts_constant_slots() const = 0;
  virtual const experts::ExpertsChoice& experts_choice() const = 0;
};

// Defines the model of `config` in `registry`. Errors: kUnsupported, kInvalidArgument (options out
// of range, naming them), whatever the registry says.
Result<std::unique_ptr<Decoder>> define_decoder(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const DecoderOptions& options);

}  // namespace holdfast::model
