#include "config/hub_moe_config.h"

#include <array>
#include <limits>
#include <set>

#include "base/error.h"
#include "config/common_fields.h"
#include "config/quantization_config.h"

namespace holdfast::config {
namespace {

constexpr std::array<IntField, 7> kSharedFields = {{
    {"num_hidden_layers", kLayers, &ModelConfig::layer_count},
    {"hidden_size", kHiddenSize, &ModelConfig::hidden_size},
    {"num_attention_heads", kHeads, &ModelConfig::query_head_count},
    {"num_key_value_heads", kHeads, &ModelConfig::kv_head_count},
    {"vocab_size", kVocabSize, &ModelConfig::vocab_size},
    {"num_experts_per_tok", kExpertsPerToken, &ModelConfig::experts_per_token},
    {"max_position_embeddings", kPositions, &ModelConfig::max_positions},
}};
constexpr std::array<IntField, 4> kQwen3Fields = {{
    {"head_dim", kHeadDim, &ModelConfig::head_dim},
    {"num_experts", kExperts, &ModelConfig::expert_count},
    {"moe_intermediate_size", kIntermediateSize, &ModelConfig::intermediate_size},
    {"intermediate_size", kIntermediateSize, &ModelConfig::dense_intermediate_size},
}};
constexpr std::array<IntField, 2> kMixtralFields = {{
    {"num_local_experts", kExperts, &ModelConfig::expert_count},
    {"intermediate_size", kIntermediateSize, &ModelConfig::intermediate_size},
}};

// What both architectures have whatever the file says, and the fields that both have.
Result<ModelConfig> parse_shared(const JsonFields& fields, Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.model_type = architecture_name(architecture);
  config.attention_bias = false;
  config.attention_sinks = false;
  config.router_bias = false;
  // silu(gate) * up
  config.swiglu = {.alpha = 1.0f, .beta = 0.0f, .limit = std::numeric_limits<float>::infinity()};
  HF_TRY(read_ints(fields, kSharedFields, config));
  config.layer_kinds.assign(static_cast<std::size_t>(config.layer_count), AttentionKind::kFull);
  HF_ASSIGN(config.rms_norm_eps, fields.required_real("rms_norm_eps", kRmsNormEps));
  HF_ASSIGN(config.rope, parse_rope(fields));
  HF_ASSIGN(config.tied_embeddings, fields.boolean("tie_word_embeddings", false));
  HF_TRY(require_silu(fields));
  HF_TRY(require_switch(fields, "attention_bias", false, false));
  return config;
}

// Layer i has experts iff it is not in mlp_only_layers and (i + 1) % decoder_sparse_step == 0.
// Returns those that have none.
Result<std::vector<std::int64_t>> parse_dense_layers(const JsonFields& fields,
                                                     std::int64_t layer_count) {
  HF_ASSIGN(const auto step, fields.optional_int("decoder_sparse_step", kLayers));
  HF_ASSIGN(const auto listed, fields.optional_array("mlp_only_layers"));
  std::set<std::int64_t> dense;
  for (std::int64_t i = 0; i < layer_count; ++i) {
    if ((i + 1) % step.value_or(1) != 0) dense.insert(i);
  }
  if (listed) {
    for (const simdjson::dom::element element : *listed) {
      std::int64_t layer = 0;
      if (!element.is_int64() || element.get(layer) || layer < 0 || layer >= layer_count) {
        return fields.wrong("mlp_only_layers", *fields.find("mlp_only_layers"),
                            fmt::format("layers from 0 to {}", layer_count - 1));
      }
      dense.insert(layer);
    }
  }
  if (std::ssize(dense) == layer_count) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: decoder_sparse_step {} and mlp_only_layers leave none of {} layers with "
                      "experts; this engine knows models that have some",
                      fields.name(), step.value_or(1), layer_count);
  }
  return std::vector<std::int64_t>(dense.begin(), dense.end());
}

}  // namespace

Result<ModelConfig> parse_qwen3_moe(const JsonFields& fields) {
  HF_ASSIGN(ModelConfig config, parse_shared(fields, Architecture::kQwen3Moe));
  HF_TRY(read_ints(fields, kQwen3Fields, config));
  config.query_key_norm = true;
  // The class's default is false; the published files say true.
  HF_ASSIGN(config.renormalise, fields.boolean("norm_topk_prob", false));
  HF_ASSIGN(config.dense_layers, parse_dense_layers(fields, config.layer_count));
  HF_TRY(require_switch(fields, "use_sliding_window", false, false));
  HF_TRY(parse_quantization(fields, config));
  HF_TRY(check_dimensions(fields, config, "num_experts"));
  return config;
}

Result<ModelConfig> parse_mixtral(const JsonFields& fields) {
  HF_ASSIGN(ModelConfig config, parse_shared(fields, Architecture::kMixtral));
  HF_TRY(read_ints(fields, kMixtralFields, config));
  HF_ASSIGN(const auto head_dim, fields.optional_int("head_dim", kHeadDim));
  if (!head_dim) {
    HF_TRY(check_divides(fields, {"hidden_size", config.hidden_size},
                         {"num_attention_heads", config.query_head_count}));
  }
  config.head_dim = head_dim.value_or(config.hidden_size / config.query_head_count);
  HF_ASSIGN(const auto window, fields.optional_int("sliding_window", kPositions));
  if (window) {
    config.sliding_window = *window;
    config.layer_kinds.assign(config.layer_kinds.size(), AttentionKind::kSliding);
  }
  HF_TRY(parse_quantization(fields, config));
  HF_TRY(check_dimensions(fields, config, "num_local_experts"));
  return config;
}

}  // namespace holdfast::config
