#include "model/moe_block.h"

#include "config/tensor_names.h"

namespace holdfast::model {

using ops::TensorView;
using tensor::Shape;

Result<MoeBlock> MoeBlock::define(storage::Registry& registry, const config::ModelConfig& config,
                                  std::int64_t layer, const RouterTraits& traits) {
  const config::LayerNames names = config::layer_names(config, layer);
  const std::string slot = fmt::format("layers.{}.", layer);
  MoeBlock block;
  block.layer_ = layer;
  block.renormalise_ = traits.renormalise;
  HF_ASSIGN(block.norm_, define_weight(registry, slot + "post_attention_norm.weight",
                                       Shape{config.hidden_size},
                                       {{names.post_attention_norm, config.hidden_size}}));
  HF_ASSIGN(block.router_, define_linear(registry, config, {.name = slot + "router",
                                                    .parts = {{names.router, config.expert_count}},
                                                    .inputs = config.hidden_size,
                                                    .bias = traits.bias}));
  return block;
}

Status MoeBlock::define_experts(storage::Registry& registry, experts::ExpertsBackend& backend,
                                const config::ModelConfig& config, experts::ExpertsSpec spec) {
  spec.slot_prefix = fmt::format("layers.{}.experts", layer_);
  spec.parameter_prefix = config::experts_prefix(config, layer_);
  HF_ASSIGN(experts_, backend.define(registry, spec));
  return {};
}

Status MoeBlock::step(const Step& step) const {
  const TensorView hidden = step.rows_of(step.act.hidden);
  const TensorView normed = step.rows_of(step.act.normed);
  const TensorView logits = step.rows_of(step.act.router_logits);
  const TensorView ids = step.view(step.slots.expert_ids).row(layer_).rows(0, step.rows);
  const TensorView weights = step.rows_of(step.act.expert_weights);
  const ops::RouteArgs args{.norm = step.norm(hidden, norm_, normed),
                            .linear = step.linear(normed, router_, {}, logits),
                            .top_k = {.logits = logits,
                                      .ids = ids,
                                      .weights = weights,
                                      .active_rows = step.active(),
                                      .over_all = !renormalise_}};
  if (step.tap) {
    HF_TRY(ops::rms_norm(step.context, args.norm));
    HF_TRY(ops::linear(step.context, args.linear));
    step.show(layer_, "router_logits", logits);
    HF_TRY(ops::router_top_k(step.context, args.top_k));
  } else {
    HF_TRY(ops::route(step.context, args));
  }
  step.show(layer_, "post_attention_layernorm_out", normed);
  step.show(layer_, "topk_ids", ids);
  step.show(layer_, "topk_weights", weights);
  HF_TRY(experts_->forward(step.context, {.x = normed,
                                          .ids = ids,
                                          .weights = weights,
                                          .residual = hidden,
                                          .out = hidden,
                                          .active_rows = step.active()}));
  step.show(layer_, "layer_out", hidden);
  return {};
}

}  // namespace holdfast::model
