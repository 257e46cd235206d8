#include "model/attention_block.h"

#include <cmath>

#include "config/tensor_names.h"

namespace holdfast::model {

using ops::TensorView;
using storage::SlotClass;
using storage::SlotId;
using tensor::DType;
using tensor::Shape;

namespace {

// Scalars that no kernel reads: they are kept so that every published tensor has its place.
Status define_cache_scales(storage::Registry& registry, const config::ModelConfig& config,
                           const config::LayerNames& names, const std::string& slot) {
  if (names.key_scale.empty()) return {};
  const DType dtype = config.cache_scales.dtype;
  const Shape shape = config.cache_scales.have_axis ? Shape{1} : Shape{};
  for (const auto& [name, published] : {std::pair{"attention.key_scale", names.key_scale},
                                        std::pair{"attention.value_scale", names.value_scale}}) {
    HF_ASSIGN(const SlotId id, registry.define({.name = slot + name,
                                                .slot_class = SlotClass::kWeight,
                                                .dtype = dtype,
                                                .shape = shape,
                                                .arena = {}}));
    HF_TRY(registry.bind({.name = published, .dtype = dtype, .shape = shape, .slot = id}));
  }
  return {};
}

// One published layer of all three, or one of each.
std::vector<Part> qkv_parts(const config::LayerNames& names, std::int64_t q, std::int64_t kv) {
  if (names.qkv.size() == 1) return {{names.qkv[0], q + 2 * kv}};
  return {{names.qkv[0], q}, {names.qkv[1], kv}, {names.qkv[2], kv}};
}

}  // namespace

Result<AttentionBlock> AttentionBlock::define(storage::Registry& registry,
                                              const config::ModelConfig& config,
                                              const DecoderOptions& options, std::int64_t layer,
                                              const AttentionTraits& traits) {
  const config::LayerNames names = config::layer_names(config, layer);
  const std::string slot = fmt::format("layers.{}.", layer);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t dim = config.head_dim;
  const std::int64_t q = config.query_head_count * dim;
  const std::int64_t kv = config.kv_head_count * dim;
  const Shape pages{options.page_count, options.page_size, config.kv_head_count, dim};
  const auto vector = [&](const char* name, const std::string& published, std::int64_t size) {
    return define_weight(registry, slot + name, Shape{size}, {{published, size}});
  };

  AttentionBlock block;
  block.layer_ = layer;
  block.query_heads_ = config.query_head_count;
  block.kv_heads_ = config.kv_head_count;
  block.head_dim_ = dim;
  block.window_ = traits.window;
  HF_ASSIGN(block.norm_, vector("input_norm.weight", names.input_norm, hidden));
  HF_ASSIGN(block.qkv_, define_linear(registry, config, {.name = slot + "attention.qkv",
                                                 .parts = qkv_parts(names, q, kv),
                                                 .inputs = hidden,
                                                 .bias = traits.bias}));
  HF_TRY(define_cache_scales(registry, config, names, slot));
  if (traits.head_norm) {
    HF_ASSIGN(block.query_norm_, vector("attention.query_norm.weight", names.query_norm, dim));
    HF_ASSIGN(block.key_norm_, vector("attention.key_norm.weight", names.key_norm, dim));
  }
  if (traits.sinks) {
    HF_ASSIGN(block.sinks_, vector("attention.sinks", names.sinks, config.query_head_count));
  }
  HF_ASSIGN(block.out_, define_linear(registry, config, {.name = slot + "attention.out",
                                                 .parts = {{names.attention_out, hidden}},
                                                 .inputs = q,
                                                 .bias = traits.bias}));
  HF_ASSIGN(block.key_pages_, define_working(registry, slot + "kv.keys", SlotClass::kState,
                                             DType::kF32, pages));
  HF_ASSIGN(block.value_pages_, define_working(registry, slot + "kv.values", SlotClass::kState,
                                               DType::kF32, pages));
  return block;
}

// Projects, rotates and stores. The ops in turn where heads are normalised between two of them, or
// where somebody wants to see what is between them.
Status AttentionBlock::project(const Step& step, const AttentionTables& tables) const {
  const TensorView hidden = step.rows_of(step.act.hidden);
  const TensorView normed = step.rows_of(step.act.normed);
  const TensorView qkv = step.rows_of(step.act.qkv);
  const ops::QkvArgs args{
      .norm = step.norm(hidden, norm_, normed),
      .linear = step.linear(normed, qkv_, {}, qkv),
      .rope = {.x = qkv,
               .positions = step.rows_of(step.slots.positions),
               .cos_table = step.view(tables.rope_cos),
               .sin_table = step.view(tables.rope_sin),
               .active_rows = step.active(),
               .head_count = query_heads_ + kv_heads_,
               .head_dim = head_dim_},
      .write = {.qkv = qkv,
                .slot_mapping = step.rows_of(step.slots.slot_mapping),
                .key_pages = step.view(key_pages_),
                .value_pages = step.view(value_pages_),
                .active_rows = step.active()}};
  if (query_norm_ || step.tap) return project_in_parts(step, args);
  return ops::qkv(step.context, args);
}

Status AttentionBlock::project_in_parts(const Step& step, const ops::QkvArgs& args) const {
  HF_TRY(ops::rms_norm(step.context, args.norm));
  step.show(layer_, "input_layernorm_out", args.norm.out);
  HF_TRY(ops::linear(step.context, args.linear));
  step.show(layer_, "qkv_proj_out", args.linear.out);
  if (query_norm_) {
    HF_TRY(ops::head_norm(step.context, {.x = args.linear.out,
                                         .query_weight = step.view(*query_norm_),
                                         .key_weight = step.view(*key_norm_),
                                         .active_rows = step.active(),
                                         .query_head_count = query_heads_,
                                         .key_head_count = kv_heads_,
                                         .eps = step.eps}));
    step.show(layer_, "qkv_norm_out", args.linear.out);
  }
  HF_TRY(ops::rope(step.context, args.rope));
  step.show(layer_, "qkv_rope", args.rope.x);
  return ops::kv_write(step.context, args.write);
}

Status AttentionBlock::step(const Step& step, const AttentionTables& tables) const {
  HF_TRY(project(step, tables));
  const TensorView heads = step.rows_of(step.act.heads);
  HF_TRY(ops::paged_attention(
      step.context, {.qkv = step.rows_of(step.act.qkv),
                     .positions = step.rows_of(step.slots.positions),
                     .row_sequence = step.rows_of(step.slots.row_sequence),
                     .block_tables = step.view(step.slots.block_tables),
                     .key_pages = step.view(key_pages_),
                     .value_pages = step.view(value_pages_),
                     .sinks = step.view(sinks_ ? sinks_ : tables.no_sinks),
                     .out = heads,
                     .active_rows = step.active(),
                     .window = window_,
                     .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_))}));
  step.show(layer_, "attn_heads_out", heads);
  const TensorView hidden = step.rows_of(step.act.hidden);
  HF_TRY(ops::linear(step.context, step.linear(heads, out_, hidden, hidden)));
  step.show(layer_, "after_attn_residual", hidden);
  return {};
}

}  // namespace holdfast::model
