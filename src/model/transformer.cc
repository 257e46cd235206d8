#include "model/transformer.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "base/assert.h"
#include "base/error.h"
#include "config/tensor_names.h"
#include "model/mlp_block.h"
#include "model/rope_table.h"

namespace holdfast::model {

using ops::TensorView;
using storage::SlotId;
using tensor::Shape;

class Transformer final : public Decoder {
 public:
  Transformer(const storage::Registry& registry, const config::ModelConfig& model_config)
      : config(model_config), registry_(registry) {}

  const DecoderSlots& slots() const override { return inputs; }
  const experts::ExpertsChoice& experts_choice() const override { return choice; }

  std::vector<std::string> experts_constant_slots() const override {
    std::vector<std::string> names;
    for (const Layer& layer : layers) {
      const auto* moe = std::get_if<MoeBlock>(&layer.mlp);
      if (moe == nullptr) continue;
      for (std::string& name : moe->constant_slots()) names.push_back(std::move(name));
    }
    return names;
  }

  Status step(const ops::OpContext& context, std::int64_t rows, const Tap& tap) const override {
    const Step step{.registry = registry_,
                    .context = context,
                    .rows = rows,
                    .tap = tap,
                    .slots = inputs,
                    .act = act,
                    .eps = static_cast<float>(config.rms_norm_eps)};
    const TensorView hidden = step.rows_of(act.hidden);
    HF_TRY(ops::embedding(context, {.ids = step.rows_of(inputs.token_ids),
                                    .table = step.view(embedding),
                                    .out = hidden,
                                    .active_rows = step.active()}));
    step.show("embed_out", hidden);
    for (const Layer& layer : layers) {
      HF_TRY(layer.attention.step(step, tables));
      HF_TRY(std::visit([&step](const auto& mlp) { return mlp.step(step); }, layer.mlp));
    }
    return head(step);
  }

  struct Layer {
    AttentionBlock attention;
    std::variant<MoeBlock, MlpBlock> mlp;
  };
  config::ModelConfig config;
  DecoderSlots inputs;
  Activations act;
  AttentionTables tables;
  SlotId embedding, final_norm;
  LinearSlots lm_head;
  std::vector<Layer> layers;
  std::optional<MlpScratch> mlp_scratch;
  experts::ExpertsChoice choice;
  std::unique_ptr<experts::ExpertsBackend> backend;
  experts::ExpertsSpec experts_spec;  // of every layer, without names

 private:
  // logits = lm_head(norm(the wanted rows of hidden)), and a token of each
  Status head(const Step& step) const {
    const TensorView wanted = step.view(inputs.logit_count);
    const TensorView last = step.rows_of(act.last);
    ops::HeadArgs args{.gather = {.x = step.rows_of(act.hidden),
                                  .rows = step.rows_of(inputs.logit_rows),
                                  .out = last,
                                  .active_rows = wanted},
                       .norm = step.norm(last, final_norm, last),
                       .linear = step.linear(last, lm_head, {}, step.rows_of(inputs.logits))};
    args.norm.active_rows = wanted;
    args.linear.active_rows = wanted;
    if (step.tap) {
      HF_TRY(ops::gather_rows(step.context, args.gather));
      HF_TRY(ops::rms_norm(step.context, args.norm));
      step.show("final_norm_out", last);
      HF_TRY(ops::linear(step.context, args.linear));
    } else {
      HF_TRY(ops::head(step.context, args));
    }
    step.show("logits", args.linear.out);
    if (!inputs.choices) return {};
    return ops::choose(step.context, {.logits = args.linear.out,
                                      .temperatures = step.rows_of(inputs.choices->temperatures),
                                      .draws = step.rows_of(inputs.choices->draws),
                                      .scratch = step.rows_of(inputs.choices->scratch),
                                      .choices = step.rows_of(inputs.choices->choices),
                                      .active_rows = wanted});
  }

  const storage::Registry& registry_;
};

namespace {

experts::ExpertsShape experts_shape(const config::ModelConfig& config, std::int64_t max_rows) {
  return {.expert_count = config.expert_count,
          .experts_per_token = config.experts_per_token,
          .hidden_size = config.hidden_size,
          .intermediate_size = config.intermediate_size,
          .max_rows = max_rows};
}

// What is served, and where it is quantised on arrival, what comes.
Status set_format(const config::ModelConfig& config, const DecoderOptions& options,
                  experts::ExpertsSpec& spec) {
  config::ModelConfig served = config;
  if (options.quantize_experts) {
    HF_ASSIGN(served.expert_format, config::quantized_format(config, *options.quantize_experts));
    HF_ASSIGN(spec.source_tensors, config::expert_tensors(config));
  }
  spec.format = served.expert_format;
  spec.format.activations = options.expert_activations.value_or(spec.format.activations);
  HF_ASSIGN(spec.tensors, config::expert_tensors(served));
  const bool has_input_scale =
      std::any_of(spec.tensors.begin(), spec.tensors.end(), [](const config::ExpertTensor& tensor) {
        return tensor.role == config::TensorRole::kInputScale;
      });
  if (!has_input_scale || spec.format.activations == served.expert_format.activations) return {};
  return make_error(ErrorCode::kUnsupported,
                    "expert_activations {}: this checkpoint has the input_scale tensors of its own "
                    "activations ({}), which would be left over; leave the option at published",
                    config::activation_scheme_name(spec.format.activations),
                    config::activation_scheme_name(served.expert_format.activations));
}

Status define_tables(storage::Registry& registry, const DecoderOptions& options,
                     Transformer& made) {
  const config::ModelConfig& config = made.config;
  const RopeTables rope = make_rope_tables(config.rope, config.head_dim, options.max_context);
  const Shape angles{options.max_context, config.head_dim / 2};
  HF_ASSIGN(made.tables.rope_cos, define_table(registry, "rope.cos", angles, rope.cos));
  HF_ASSIGN(made.tables.rope_sin, define_table(registry, "rope.sin", angles, rope.sin));
  return {};
}

}  // namespace

TransformerBuilder::TransformerBuilder(storage::Registry& registry, const DecoderOptions& options,
                                       std::unique_ptr<Transformer> made)
    : registry_(registry), options_(options), made_(std::move(made)) {}
TransformerBuilder::TransformerBuilder(TransformerBuilder&&) noexcept = default;
TransformerBuilder::~TransformerBuilder() = default;

Result<TransformerBuilder> TransformerBuilder::begin(storage::Registry& registry,
                                                     const config::ModelConfig& config,
                                                     const DecoderOptions& options) {
  auto made = std::make_unique<Transformer>(registry, config);
  experts::ExpertsSpec& spec = made->experts_spec;
  HF_TRY(set_format(config, options, spec));
  spec.shape = experts_shape(config, options.max_rows);
  spec.swiglu = config.swiglu;
  HF_ASSIGN(made->choice, experts::choose_experts_backend({.device = options.device,
                                                           .format = spec.format,
                                                           .shape = spec.shape,
                                                           .requested = options.experts_backend}));
  made->backend = experts::make_experts_backend(made->choice.kind, options.device);
  HF_TRY(made->backend->define_workspace(registry, spec.shape));
  HF_ASSIGN(made->inputs, define_inputs(registry, config, options));
  HF_ASSIGN(made->act, define_activations(registry, config, options.max_rows));
  HF_ASSIGN(made->embedding,
            define_weight(registry, "embedding.weight",
                          Shape{config.vocab_size, config.hidden_size},
                          {{config::tensor_names(config).embedding, config.vocab_size}}));
  HF_TRY(define_tables(registry, options, *made));
  return TransformerBuilder(registry, options, std::move(made));
}

Status TransformerBuilder::attention(std::int64_t layer, const AttentionTraits& traits) {
  HF_ASSERT(layer == std::ssize(made_->layers), "layers are declared in order");
  if (!traits.sinks && !made_->tables.no_sinks) {
    const std::int64_t heads = made_->config.query_head_count;
    const std::vector<float> none(static_cast<std::size_t>(heads),
                                  -std::numeric_limits<float>::infinity());
    HF_ASSIGN(made_->tables.no_sinks,
              define_table(registry_, "attention.no_sinks", Shape{heads}, none));
  }
  HF_ASSIGN(AttentionBlock block,
            AttentionBlock::define(registry_, made_->config, options_, layer, traits));
  made_->layers.push_back({std::move(block), {}});
  return {};
}

Status TransformerBuilder::experts(std::int64_t layer, const RouterTraits& traits) {
  HF_ASSIGN(MoeBlock block, MoeBlock::define(registry_, made_->config, layer, traits));
  HF_TRY(block.define_experts(registry_, *made_->backend, made_->config, made_->experts_spec));
  made_->layers.back().mlp = std::move(block);
  return {};
}

Status TransformerBuilder::dense_mlp(std::int64_t layer) {
  if (!made_->mlp_scratch) {
    HF_ASSIGN(made_->mlp_scratch,
              define_mlp_scratch(registry_, made_->config, options_.max_rows));
  }
  HF_ASSIGN(MlpBlock block, MlpBlock::define(registry_, made_->config, layer, *made_->mlp_scratch));
  made_->layers.back().mlp = std::move(block);
  return {};
}

Result<std::unique_ptr<Decoder>> TransformerBuilder::finish() {
  const config::ModelConfig& config = made_->config;
  const config::TensorNames names = config::tensor_names(config);
  HF_ASSIGN(made_->final_norm,
            define_weight(registry_, "final_norm.weight", Shape{config.hidden_size},
                          {{names.final_norm, config.hidden_size}}));
  if (config.tied_embeddings) {
    made_->lm_head.weight = made_->embedding;
    HF_TRY(registry_.bind_alias(names.head, *registry_.find_parameter(names.embedding)));
  } else {
    const std::string head = names.head.substr(0, names.head.rfind(".weight"));
    HF_ASSIGN(made_->lm_head, define_linear(registry_, config,
                                            {.name = "lm_head",
                                             .parts = {{head, config.vocab_size}},
                                             .inputs = config.hidden_size}));
  }
  return std::unique_ptr<Decoder>(std::move(made_));
}

}  // namespace holdfast::model
