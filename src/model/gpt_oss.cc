#include "model/gpt_oss.h"

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "model/rope_table.h"

namespace holdfast::model {

namespace {

using ops::TensorView;
using storage::SlotClass;
using storage::SlotId;
using storage::SlotSpec;
using tensor::DType;
using tensor::Shape;

struct Attention {
  SlotId norm, qkv_weight, qkv_bias, sinks, out_weight, out_bias;
  SlotId key_pages, value_pages;
  std::int64_t window = 0;  // 0: full
};

struct Layer {
  Attention attention;
  SlotId moe_norm, router_weight, router_bias;
  std::unique_ptr<experts::ExpertsLayer> experts;
};

// Of one step; shared by all layers.
struct Activations {
  SlotId hidden;          // f32 [n, H]: the residual stream
  SlotId normed;          // f32 [n, H]
  SlotId qkv;             // f32 [n, (Hq + 2 Hkv) d]
  SlotId heads;           // f32 [n, Hq d]
  SlotId router_logits;   // f32 [n, E]
  SlotId expert_weights;  // f32 [n, K]
  SlotId last;            // f32 [n, H]: the rows whose logits are wanted
};

class GptOss final : public Decoder {
 public:
  explicit GptOss(const storage::Registry& registry, const config::ModelConfig& config)
      : registry_(registry), config_(config) {}

  Status define(storage::Registry& registry, const DecoderOptions& options);

  const DecoderSlots& slots() const override { return slots_; }
  const experts::ExpertsChoice& experts_choice() const override { return choice_; }
  std::vector<std::string> experts_constant_slots() const override;
  Status step(const ops::OpContext& context, std::int64_t rows, const Tap& tap) const override;

 private:
  // What a step's ops share.
  struct Step {
    const ops::OpContext& context;
    std::int64_t rows;
    const Tap& tap;
    TensorView active, positions, hidden, normed;
    void show(std::string_view name, const TensorView& view) const {
      if (tap) tap(name, view);
    }
    void show(std::size_t layer, const char* name, const TensorView& view) const {
      if (tap) tap(fmt::format("layers.{}.{}", layer, name), view);
    }
  };

  Status attention(const Step& step, std::size_t index) const;
  Status moe(const Step& step, std::size_t index) const;
  Status head(const Step& step) const;

  TensorView view(SlotId id) const { return registry_.view(id); }
  TensorView view(SlotId id, std::int64_t rows) const { return registry_.view(id).rows(0, rows); }

  const storage::Registry& registry_;
  config::ModelConfig config_;
  DecoderSlots slots_;
  Activations act_;
  SlotId embedding_, rope_cos_, rope_sin_, final_norm_, lm_head_;
  std::vector<Layer> layers_;
  experts::ExpertsChoice choice_;
  std::unique_ptr<experts::ExpertsBackend> backend_;
};

// ------------------------------------------------------------------------------------- one step

Status GptOss::step(const ops::OpContext& context, std::int64_t rows, const Tap& tap) const {
  const Step step{.context = context,
                  .rows = rows,
                  .tap = tap,
                  .active = view(slots_.row_count),
                  .positions = view(slots_.positions, rows),
                  .hidden = view(act_.hidden, rows),
                  .normed = view(act_.normed, rows)};
  HF_TRY(ops::embedding(context, {.ids = view(slots_.token_ids, rows),
                                  .table = view(embedding_),
                                  .out = step.hidden,
                                  .active_rows = step.active}));
  step.show("embed_out", step.hidden);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    HF_TRY(attention(step, i));
    HF_TRY(moe(step, i));
  }
  return head(step);
}

// hidden += out(attention(rope(qkv(norm(hidden)))))
Status GptOss::attention(const Step& step, std::size_t index) const {
  const Attention& layer = layers_[index].attention;
  const ops::OpContext& context = step.context;
  const TensorView active = step.active;
  const TensorView qkv = view(act_.qkv, step.rows);
  const TensorView heads = view(act_.heads, step.rows);
  const TensorView keys = view(layer.key_pages);
  const TensorView values = view(layer.value_pages);

  HF_TRY(ops::qkv(context,
                  {.norm = {.x = step.hidden,
                            .weight = view(layer.norm),
                            .out = step.normed,
                            .active_rows = active,
                            .eps = static_cast<float>(config_.rms_norm_eps)},
                   .linear = {.x = step.normed,
                              .weight = view(layer.qkv_weight),
                              .bias = view(layer.qkv_bias),
                              .residual = {},
                              .out = qkv,
                              .active_rows = active},
                   .rope = {.x = qkv,
                            .positions = step.positions,
                            .cos_table = view(rope_cos_),
                            .sin_table = view(rope_sin_),
                            .active_rows = active,
                            .head_count = config_.query_head_count + config_.kv_head_count,
                            .head_dim = config_.head_dim},
                   .write = {.qkv = qkv,
                             .slot_mapping = view(slots_.slot_mapping, step.rows),
                             .key_pages = keys,
                             .value_pages = values,
                             .active_rows = active}}));
  step.show(index, "qkv_rope", qkv);
  HF_TRY(ops::paged_attention(
      context, {.qkv = qkv,
                .positions = step.positions,
                .row_sequence = view(slots_.row_sequence, step.rows),
                .block_tables = view(slots_.block_tables),
                .key_pages = keys,
                .value_pages = values,
                .sinks = view(layer.sinks),
                .out = heads,
                .active_rows = active,
                .window = layer.window,
                .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))}));
  step.show(index, "attn_heads_out", heads);
  HF_TRY(ops::linear(context, {.x = heads,
                               .weight = view(layer.out_weight),
                               .bias = view(layer.out_bias),
                               .residual = step.hidden,
                               .out = step.hidden,
                               .active_rows = active}));
  step.show(index, "after_attn_residual", step.hidden);
  return {};
}

// hidden += experts(top_k(router(norm(hidden))))
Status GptOss::moe(const Step& step, std::size_t index) const {
  const Layer& layer = layers_[index];
  const TensorView logits = view(act_.router_logits, step.rows);
  const TensorView ids = view(slots_.expert_ids)
                             .row(static_cast<std::int64_t>(index))
                             .rows(0, step.rows);
  const TensorView weights = view(act_.expert_weights, step.rows);

  HF_TRY(ops::route(step.context, {.norm = {.x = step.hidden,
                                            .weight = view(layer.moe_norm),
                                            .out = step.normed,
                                            .active_rows = step.active,
                                            .eps = static_cast<float>(config_.rms_norm_eps)},
                                   .linear = {.x = step.normed,
                                              .weight = view(layer.router_weight),
                                              .bias = view(layer.router_bias),
                                              .residual = {},
                                              .out = logits,
                                              .active_rows = step.active},
                                   .top_k = {.logits = logits,
                                             .ids = ids,
                                             .weights = weights,
                                             .active_rows = step.active}}));
  step.show(index, "post_attention_layernorm_out", step.normed);
  step.show(index, "topk_ids", ids);
  step.show(index, "topk_weights", weights);
  HF_TRY(layer.experts->forward(step.context, {.x = step.normed,
                                               .ids = ids,
                                               .weights = weights,
                                               .residual = step.hidden,
                                               .out = step.hidden,
                                               .active_rows = step.active}));
  step.show(index, "layer_out", step.hidden);
  return {};
}

// logits = lm_head(norm(the wanted rows of hidden))
Status GptOss::head(const Step& step) const {
  const TensorView wanted = view(slots_.logit_count);
  const TensorView last = view(act_.last, step.rows);
  const TensorView logits = view(slots_.logits, step.rows);
  HF_TRY(ops::head(step.context, {.gather = {.x = step.hidden,
                                             .rows = view(slots_.logit_rows, step.rows),
                                             .out = last,
                                             .active_rows = wanted},
                                  .norm = {.x = last,
                                           .weight = view(final_norm_),
                                           .out = last,
                                           .active_rows = wanted,
                                           .eps = static_cast<float>(config_.rms_norm_eps)},
                                  .linear = {.x = last,
                                             .weight = view(lm_head_),
                                             .bias = {},
                                             .residual = {},
                                             .out = logits,
                                             .active_rows = wanted}}));
  step.show("logits", logits);
  return {};
}

std::vector<std::string> GptOss::experts_constant_slots() const {
  std::vector<std::string> names;
  for (const Layer& layer : layers_) {
    for (std::string& name : layer.experts->constant_slots()) names.push_back(std::move(name));
  }
  return names;
}

// ------------------------------------------------------------------------------------- storage

// A published tensor and its first dimension within the slot that it shares.
struct Part {
  std::string parameter;
  std::int64_t rows;
};

// A bf16 weight slot filled by `parts`, stacked along the first axis.
Result<SlotId> define_weight(storage::Registry& registry, std::string name, const Shape& shape,
                             std::initializer_list<Part> parts) {
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
                          .offset_bytes = offset_bytes}));
    HF_ASSIGN(const std::size_t bytes, tensor::byte_size(DType::kBF16, part_shape));
    offset_bytes += bytes;
  }
  return slot;
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
  return slots;
}

Result<Activations> define_activations(storage::Registry& registry,
                                       const config::ModelConfig& config, std::int64_t n) {
  const auto scratch = [&registry, n](const char* name, std::int64_t width,
                                      DType dtype = DType::kF32) {
    return define_working(registry, name, SlotClass::kScratch, dtype, Shape{n, width});
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

Result<Attention> define_attention(storage::Registry& registry, const config::ModelConfig& config,
                                   const DecoderOptions& options, std::size_t index) {
  const std::string slot = fmt::format("layers.{}.", index);
  const std::string published = fmt::format("model.layers.{}.", index);
  const std::string self = published + "self_attn.";
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q = config.query_head_count * config.head_dim;
  const std::int64_t kv = config.kv_head_count * config.head_dim;
  const Shape pages{options.page_count, options.page_size, config.kv_head_count, config.head_dim};

  Attention layer;
  layer.window =
      config.layer_kinds[index] == config::AttentionKind::kSliding ? config.sliding_window : 0;
  HF_ASSIGN(layer.norm, define_weight(registry, slot + "input_norm.weight", Shape{hidden},
                                      {{published + "input_layernorm.weight", hidden}}));
  HF_ASSIGN(layer.qkv_weight,
            define_weight(registry, slot + "attention.qkv.weight", Shape{q + 2 * kv, hidden},
                          {{self + "q_proj.weight", q},
                           {self + "k_proj.weight", kv},
                           {self + "v_proj.weight", kv}}));
  HF_ASSIGN(layer.qkv_bias,
            define_weight(registry, slot + "attention.qkv.bias", Shape{q + 2 * kv},
                          {{self + "q_proj.bias", q},
                           {self + "k_proj.bias", kv},
                           {self + "v_proj.bias", kv}}));
  HF_ASSIGN(layer.sinks,
            define_weight(registry, slot + "attention.sinks", Shape{config.query_head_count},
                          {{self + "sinks", config.query_head_count}}));
  HF_ASSIGN(layer.out_weight,
            define_weight(registry, slot + "attention.out.weight", Shape{hidden, q},
                          {{self + "o_proj.weight", hidden}}));
  HF_ASSIGN(layer.out_bias, define_weight(registry, slot + "attention.out.bias", Shape{hidden},
                                          {{self + "o_proj.bias", hidden}}));
  HF_ASSIGN(layer.key_pages, define_working(registry, slot + "kv.keys", SlotClass::kState,
                                            DType::kF32, pages));
  HF_ASSIGN(layer.value_pages, define_working(registry, slot + "kv.values", SlotClass::kState,
                                              DType::kF32, pages));
  return layer;
}

experts::ExpertsShape experts_shape(const config::ModelConfig& config, std::int64_t max_rows) {
  return {.expert_count = config.expert_count,
          .experts_per_token = config.experts_per_token,
          .hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .max_rows = max_rows};
}

Result<Layer> define_layer(storage::Registry& registry, const config::ModelConfig& config,
                           const DecoderOptions& options, std::size_t index) {
  const std::string slot = fmt::format("layers.{}.", index);
  const std::string published = fmt::format("model.layers.{}.", index);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t experts = config.expert_count;
  Layer layer;
  HF_ASSIGN(layer.attention, define_attention(registry, config, options, index));
  HF_ASSIGN(layer.moe_norm,
            define_weight(registry, slot + "post_attention_norm.weight", Shape{hidden},
                          {{published + "post_attention_layernorm.weight", hidden}}));
  HF_ASSIGN(layer.router_weight,
            define_weight(registry, slot + "router.weight", Shape{experts, hidden},
                          {{published + "mlp.router.weight", experts}}));
  HF_ASSIGN(layer.router_bias, define_weight(registry, slot + "router.bias", Shape{experts},
                                             {{published + "mlp.router.bias", experts}}));
  return layer;
}

Status GptOss::define(storage::Registry& registry, const DecoderOptions& options) {
  const experts::ExpertsShape shape = experts_shape(config_, options.max_rows);
  HF_ASSIGN(choice_, experts::choose_experts_backend({.device = options.device,
                                                      .format = config_.expert_format,
                                                      .shape = shape,
                                                      .requested = options.experts_backend}));
  backend_ = experts::make_experts_backend(choice_.kind, options.device);
  HF_TRY(backend_->define_workspace(registry, shape));
  HF_ASSIGN(slots_, define_inputs(registry, config_, options));
  HF_ASSIGN(act_, define_activations(registry, config_, options.max_rows));

  const Shape vocabulary{config_.vocab_size, config_.hidden_size};
  HF_ASSIGN(embedding_, define_weight(registry, "embedding.weight", vocabulary,
                                      {{"model.embed_tokens.weight", config_.vocab_size}}));
  const RopeTables rope = make_rope_tables(config_.rope, config_.head_dim, options.max_context);
  const Shape angles{options.max_context, config_.head_dim / 2};
  HF_ASSIGN(rope_cos_, define_table(registry, "rope.cos", angles, rope.cos));
  HF_ASSIGN(rope_sin_, define_table(registry, "rope.sin", angles, rope.sin));
  HF_ASSIGN(const std::vector<config::ExpertTensor> tensors, config::expert_tensors(config_));
  for (std::size_t i = 0; i < config_.layer_kinds.size(); ++i) {
    HF_ASSIGN(Layer layer, define_layer(registry, config_, options, i));
    HF_ASSIGN(layer.experts,
              backend_->define(registry,
                               {.slot_prefix = fmt::format("layers.{}.experts", i),
                                .parameter_prefix = fmt::format("model.layers.{}.mlp.experts", i),
                                .format = config_.expert_format,
                                .tensors = tensors,
                                .shape = shape,
                                .swiglu = config_.swiglu}));
    layers_.push_back(std::move(layer));
  }
  HF_ASSIGN(final_norm_, define_weight(registry, "final_norm.weight", Shape{config_.hidden_size},
                                       {{"model.norm.weight", config_.hidden_size}}));
  HF_ASSIGN(lm_head_, define_weight(registry, "lm_head.weight", vocabulary,
                                    {{"lm_head.weight", config_.vocab_size}}));
  return {};
}

}  // namespace

Result<std::unique_ptr<Decoder>> define_gpt_oss(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const DecoderOptions& options) {
  auto decoder = std::make_unique<GptOss>(registry, config);
  HF_TRY(decoder->define(registry, options));
  return std::unique_ptr<Decoder>(std::move(decoder));
}

}  // namespace holdfast::model
