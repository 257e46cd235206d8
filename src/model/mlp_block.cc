#include "model/mlp_block.h"

#include "config/tensor_names.h"

namespace holdfast::model {

using ops::TensorView;
using storage::SlotClass;
using tensor::DType;
using tensor::Shape;

Result<MlpScratch> define_mlp_scratch(storage::Registry& registry,
                                      const config::ModelConfig& config, std::int64_t rows) {
  const auto scratch = [&](const char* name, std::int64_t width) {
    return define_working(registry, name, SlotClass::kScratch, DType::kF32, Shape{rows, width});
  };
  MlpScratch slots;
  HF_ASSIGN(slots.gate_up, scratch("act.mlp_gate_up", 2 * config.dense_intermediate_size));
  HF_ASSIGN(slots.inner, scratch("act.mlp_inner", config.dense_intermediate_size));
  return slots;
}

Result<MlpBlock> MlpBlock::define(storage::Registry& registry, const config::ModelConfig& config,
                                  std::int64_t layer, const MlpScratch& scratch) {
  const config::LayerNames names = config::layer_names(config, layer);
  const std::string slot = fmt::format("layers.{}.", layer);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.dense_intermediate_size;
  MlpBlock block;
  block.layer_ = layer;
  block.scratch_ = scratch;
  HF_ASSIGN(block.norm_,
            define_weight(registry, slot + "post_attention_norm.weight", Shape{hidden},
                          {{names.post_attention_norm, hidden}}));
  HF_ASSIGN(block.gate_up_, define_linear(registry, config, {.name = slot + "mlp.gate_up",
                                                     .parts = {{names.gate, inner},
                                                               {names.up, inner}},
                                                     .inputs = hidden}));
  HF_ASSIGN(block.down_, define_linear(registry, config, {.name = slot + "mlp.down",
                                                  .parts = {{names.down, hidden}},
                                                  .inputs = inner}));
  return block;
}

Status MlpBlock::step(const Step& step) const {
  const TensorView hidden = step.rows_of(step.act.hidden);
  const TensorView normed = step.rows_of(step.act.normed);
  const TensorView gate_up = step.rows_of(scratch_.gate_up);
  const TensorView inner = step.rows_of(scratch_.inner);
  HF_TRY(ops::rms_norm(step.context, step.norm(hidden, norm_, normed)));
  step.show(layer_, "post_attention_layernorm_out", normed);
  HF_TRY(ops::linear(step.context, step.linear(normed, gate_up_, {}, gate_up)));
  HF_TRY(ops::silu_gate(step.context,
                        {.x = gate_up, .out = inner, .active_rows = step.active()}));
  step.show(layer_, "mlp_inner", inner);
  HF_TRY(ops::linear(step.context, step.linear(inner, down_, hidden, hidden)));
  step.show(layer_, "layer_out", hidden);
  return {};
}

}  // namespace holdfast::model
