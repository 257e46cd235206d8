#include "model/slots.h"

#include <cstring>
#include <utility>

#include "model/quantized_linear.h"

namespace holdfast::model {

using storage::SlotClass;
using storage::SlotId;
using tensor::DType;
using tensor::Shape;

Result<SlotId> define_weight(storage::Registry& registry, std::string name, const Shape& shape,
                             const std::vector<Part>& parts) {
  HF_ASSIGN(const SlotId slot, registry.define({.name = std::move(name),
                                                .slot_class = SlotClass::kWeight,
                                                .dtype = DType::kBF16,
                                                .shape = shape,
                                                .arena = {}}));
  const std::int64_t row_elements = shape.rank() == 2 ? shape[1] : 1;
  std::size_t offset_bytes = 0;
  for (const Part& part : parts) {
    const Shape part_shape =
        shape.rank() == 2 ? Shape{part.rows, row_elements} : Shape{part.rows};
    HF_TRY(registry.bind({.name = part.parameter,
                          .dtype = DType::kBF16,
                          .shape = part_shape,
                          .slot = slot,
                          .offset_bytes = offset_bytes,
                          .any_float = true}));
    HF_ASSIGN(const std::size_t bytes, tensor::byte_size(DType::kBF16, part_shape));
    offset_bytes += bytes;
  }
  return slot;
}

Result<LinearSlots> define_linear(storage::Registry& registry, const config::ModelConfig& config,
                                  const LinearSpec& spec) {
  std::vector<Part> weights, biases;
  std::int64_t rows = 0;
  for (const Part& part : spec.parts) {
    weights.push_back({part.parameter + ".weight", part.rows});
    biases.push_back({part.parameter + ".bias", part.rows});
    rows += part.rows;
  }
  LinearSlots slots;
  if (is_quantized(config, spec)) {
    HF_ASSIGN(slots.weight, define_quantized_weight(registry, config, spec));
  } else {
    HF_ASSIGN(slots.weight,
              define_weight(registry, spec.name + ".weight", Shape{rows, spec.inputs}, weights));
  }
  if (spec.bias) {
    HF_ASSIGN(slots.bias, define_weight(registry, spec.name + ".bias", Shape{rows}, biases));
  }
  return slots;
}

Result<SlotId> define_working(storage::Registry& registry, std::string name, SlotClass slot_class,
                              DType dtype, const Shape& shape) {
  return registry.define({.name = std::move(name),
                          .slot_class = slot_class,
                          .dtype = dtype,
                          .shape = shape,
                          .arena = slot_class == SlotClass::kState ? "kv" : ""});
}

Result<SlotId> define_table(storage::Registry& registry, std::string name, const Shape& shape,
                            const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return registry.define_constant({.name = std::move(name),
                                   .slot_class = SlotClass::kConstant,
                                   .dtype = DType::kF32,
                                   .shape = shape,
                                   .arena = {}},
                                  std::move(bytes));
}

namespace {

Result<ChoiceSlots> define_choices(storage::Registry& registry, std::int64_t rows,
                                   std::int64_t vocab) {
  const auto define = [&](const char* name, SlotClass slot_class, DType dtype,
                          const Shape& shape) {
    return define_working(registry, name, slot_class, dtype, shape);
  };
  ChoiceSlots slots;
  HF_ASSIGN(slots.temperatures,
            define("input.temperatures", SlotClass::kInput, DType::kF32, Shape{rows}));
  HF_ASSIGN(slots.draws, define("input.draws", SlotClass::kInput, DType::kI32, Shape{rows, 2}));
  HF_ASSIGN(slots.scratch,
            define("choice.scratch", SlotClass::kScratch, DType::kI32,
                   Shape{rows, ops::choose_chunks(vocab), ops::kChooseWords}));
  HF_ASSIGN(slots.choices, define("choices", SlotClass::kScratch, DType::kI32,
                                  Shape{rows, ops::kChooseWords}));
  return slots;
}

}  // namespace

Result<DecoderSlots> define_inputs(storage::Registry& registry, const config::ModelConfig& config,
                                   const DecoderOptions& options) {
  const std::int64_t n = options.max_rows;
  const std::int64_t pages = (options.max_context + options.page_size - 1) / options.page_size;
  const auto input = [&registry](const char* name, const Shape& shape) {
    return define_working(registry, name, SlotClass::kInput, DType::kI32, shape);
  };
  DecoderSlots slots;
  HF_ASSIGN(slots.token_ids, input("input.token_ids", Shape{n}));
  HF_ASSIGN(slots.positions, input("input.positions", Shape{n}));
  HF_ASSIGN(slots.row_sequence, input("input.row_sequence", Shape{n}));
  HF_ASSIGN(slots.slot_mapping, input("input.slot_mapping", Shape{n}));
  HF_ASSIGN(slots.block_tables, input("input.block_tables", Shape{options.max_sequences, pages}));
  HF_ASSIGN(slots.logit_rows, input("input.logit_rows", Shape{n}));
  HF_ASSIGN(slots.row_count, input("input.row_count", Shape{1}));
  HF_ASSIGN(slots.logit_count, input("input.logit_count", Shape{1}));
  HF_ASSIGN(slots.logits, define_working(registry, "logits", SlotClass::kScratch, DType::kF32,
                                         Shape{n, config.vocab_size}));
  // Of its own for each layer, so that all can be read after a step.
  HF_ASSIGN(slots.expert_ids,
            define_working(registry, "act.expert_ids", SlotClass::kScratch, DType::kI32,
                           Shape{config.layer_count, n, config.experts_per_token}));
  if (options.chooses) {
    HF_ASSIGN(slots.choices, define_choices(registry, n, config.vocab_size));
  }
  return slots;
}

Result<Activations> define_activations(storage::Registry& registry,
                                       const config::ModelConfig& config, std::int64_t rows) {
  const auto scratch = [&registry, rows](const char* name, std::int64_t width) {
    return define_working(registry, name, SlotClass::kScratch, DType::kF32, Shape{rows, width});
  };
  const std::int64_t heads = config.query_head_count + 2 * config.kv_head_count;
  Activations act;
  HF_ASSIGN(act.hidden, scratch("act.hidden", config.hidden_size));
  HF_ASSIGN(act.normed, scratch("act.normed", config.hidden_size));
  HF_ASSIGN(act.qkv, scratch("act.qkv", heads * config.head_dim));
  HF_ASSIGN(act.heads, scratch("act.heads", config.query_head_count * config.head_dim));
  HF_ASSIGN(act.router_logits, scratch("act.router_logits", config.expert_count));
  HF_ASSIGN(act.expert_weights, scratch("act.expert_weights", config.experts_per_token));
  HF_ASSIGN(act.last, scratch("act.last", config.hidden_size));
  return act;
}

}  // namespace holdfast::model
