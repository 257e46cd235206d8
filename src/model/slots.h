// How a decoder's storage is defined: weight slots from published tensors, working slots, and what
// all models have: inputs, activations, rope tables. Called while the registry is building; one
// thread. Errors are the registry's.
#pragma once

#include <string>
#include <vector>

#include "model/decoder.h"

namespace holdfast::model {

// A published tensor and its first dimension within the slot that it shares.
struct Part {
  std::string parameter;
  std::int64_t rows;
};
// A bf16 weight slot filled by `parts`, stacked along the first axis.
Result<storage::SlotId> define_weight(storage::Registry& registry, std::string name,
                                      const tensor::Shape& shape, const std::vector<Part>& parts);

// A linear layer, perhaps made of several published ones whose outputs stand one after another.
struct LinearSlots {
  storage::SlotId weight;
  std::optional<storage::SlotId> bias;
};
// `<name>.weight` bf16 [sum of rows, inputs] and, with `bias`, `<name>.bias`; of each part
// PARAMETER the tensors PARAMETER.weight, or what the config says that it is quantised to, and
// PARAMETER.bias.
struct LinearSpec {
  std::string name;
  std::vector<Part> parts;
  std::int64_t inputs = 0;
  bool bias = false;
};
Result<LinearSlots> define_linear(storage::Registry& registry, const config::ModelConfig& config,
                                  const LinearSpec& spec);

Result<storage::SlotId> define_working(storage::Registry& registry, std::string name,
                                       storage::SlotClass slot_class, tensor::DType dtype,
                                       const tensor::Shape& shape);
// An f32 constant.
Result<storage::SlotId> define_table(storage::Registry& registry, std::string name,
                                     const tensor::Shape& shape, const std::vector<float>& values);

Result<DecoderSlots> define_inputs(storage::Registry& registry, const config::ModelConfig& config,
                                   const DecoderOptions& options);

// Of one step; shared by all layers.
struct Activations {
  storage::SlotId hidden;          // f32 [n, H]: the residual stream
  storage::SlotId normed;          // f32 [n, H]
  storage::SlotId qkv;             // f32 [n, (Hq + 2 Hkv) d]
  storage::SlotId heads;           // f32 [n, Hq d]
  storage::SlotId router_logits;   // f32 [n, E]
  storage::SlotId expert_weights;  // f32 [n, K]
  storage::SlotId last;            // f32 [n, H]: the rows whose logits are wanted
};
Result<Activations> define_activations(storage::Registry& registry,
                                       const config::ModelConfig& config, std::int64_t rows);

}  // namespace holdfast::model
