#include "config/gpt_oss_config.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "config/common_fields.h"
#include "config/quantization_config.h"

namespace holdfast::config {
namespace {

constexpr RealRange kSwigluLimit{0.0, 1e6};

constexpr std::array<IntField, 9> kIntFields = {{
    {"num_hidden_layers", kLayers, &ModelConfig::layer_count},
    {"hidden_size", kHiddenSize, &ModelConfig::hidden_size},
    {"intermediate_size", kIntermediateSize, &ModelConfig::intermediate_size},
    {"num_attention_heads", kHeads, &ModelConfig::query_head_count},
    {"num_key_value_heads", kHeads, &ModelConfig::kv_head_count},
    {"head_dim", kHeadDim, &ModelConfig::head_dim},
    {"vocab_size", kVocabSize, &ModelConfig::vocab_size},
    {"num_local_experts", kExperts, &ModelConfig::expert_count},
    {"max_position_embeddings", kPositions, &ModelConfig::max_positions},
}};

// Named as in OpenAI's own file.
constexpr std::array<IntField, 10> kOriginalFields = {{
    {"num_hidden_layers", kLayers, &ModelConfig::layer_count},
    {"hidden_size", kHiddenSize, &ModelConfig::hidden_size},
    {"intermediate_size", kIntermediateSize, &ModelConfig::intermediate_size},
    {"num_attention_heads", kHeads, &ModelConfig::query_head_count},
    {"num_key_value_heads", kHeads, &ModelConfig::kv_head_count},
    {"head_dim", kHeadDim, &ModelConfig::head_dim},
    {"vocab_size", kVocabSize, &ModelConfig::vocab_size},
    {"num_experts", kExperts, &ModelConfig::expert_count},
    {"experts_per_token", kExpertsPerToken, &ModelConfig::experts_per_token},
    {"sliding_window", kPositions, &ModelConfig::sliding_window},
}};
constexpr RealRange kRopeTheta{1.0, 1e12};
constexpr RealRange kRopeFactor{0.0, 1e6};
constexpr RealRange kRopeBeta{0.0, 1e6};

// The published files state it under both names; older ones under one.
Result<std::int64_t> parse_experts_per_token(const JsonFields& fields) {
  HF_ASSIGN(const auto newer, fields.optional_int("num_experts_per_tok", kExpertsPerToken));
  HF_ASSIGN(const auto older, fields.optional_int("experts_per_token", kExpertsPerToken));
  if (!newer && !older) return fields.missing("num_experts_per_tok");
  if (newer && older && *newer != *older) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: num_experts_per_tok is {} and experts_per_token is {}, expected equal",
                      fields.name(), *newer, *older);
  }
  return newer ? *newer : *older;
}

// The architecture's default: sliding and full by turns, beginning with sliding.
std::vector<AttentionKind> alternating_kinds(std::int64_t layer_count) {
  std::vector<AttentionKind> kinds;
  for (std::int64_t i = 0; i < layer_count; ++i) {
    kinds.push_back(i % 2 == 0 ? AttentionKind::kSliding : AttentionKind::kFull);
  }
  return kinds;
}

Result<std::vector<AttentionKind>> parse_layer_types(const JsonFields& fields,
                                                     std::int64_t layer_count) {
  HF_ASSIGN(const auto types, fields.optional_array("layer_types"));
  if (!types) return alternating_kinds(layer_count);
  std::vector<AttentionKind> kinds;
  for (const simdjson::dom::element element : *types) {
    std::string_view text;
    const bool is_text = !element.get(text);
    if (is_text && text == attention_kind_name(AttentionKind::kSliding)) {
      kinds.push_back(AttentionKind::kSliding);
    } else if (is_text && text == attention_kind_name(AttentionKind::kFull)) {
      kinds.push_back(AttentionKind::kFull);
    } else {
      return unsupported(fields, fmt::format("layer_types[{}]", kinds.size()), brief_json(element),
                         "sliding_attention, full_attention");
    }
  }
  if (static_cast<std::int64_t>(kinds.size()) != layer_count) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: layer_types has {} entries, num_hidden_layers is {}", fields.name(),
                      kinds.size(), layer_count);
  }
  return kinds;
}

}  // namespace

Result<ModelConfig> parse_gpt_oss(const JsonFields& fields) {
  ModelConfig config;  // whose defaults are this architecture's
  config.architecture = Architecture::kGptOss;
  config.model_type = architecture_name(config.architecture);
  HF_TRY(read_ints(fields, kIntFields, config));
  HF_ASSIGN(config.experts_per_token, parse_experts_per_token(fields));
  HF_ASSIGN(config.layer_kinds, parse_layer_types(fields, config.layer_count));
  HF_ASSIGN(const auto window, fields.optional_int("sliding_window", kPositions));
  for (const AttentionKind kind : config.layer_kinds) {
    if (kind == AttentionKind::kSliding && !window) return fields.missing("sliding_window");
  }
  config.sliding_window = window.value_or(0);
  HF_ASSIGN(config.rms_norm_eps, fields.required_real("rms_norm_eps", kRmsNormEps));
  HF_ASSIGN(config.rope, parse_rope(fields));
  HF_ASSIGN(const auto limit, fields.optional_real("swiglu_limit", kSwigluLimit));
  if (limit) config.swiglu.limit = static_cast<float>(*limit);
  HF_TRY(parse_quantization(fields, config));
  HF_TRY(require_switch(fields, "attention_bias", true, true));
  HF_TRY(require_switch(fields, "tie_word_embeddings", false, false));
  HF_TRY(require_silu(fields));
  HF_TRY(check_dimensions(fields, config, "num_local_experts"));
  return config;
}

bool is_gpt_oss_original(const JsonFields& fields) {
  return !fields.has("model_type") && fields.has("num_experts") && fields.has("rope_ntk_alpha");
}

Result<ModelConfig> parse_gpt_oss_original(const JsonFields& fields) {
  ModelConfig config;
  config.architecture = Architecture::kGptOss;
  config.model_type = architecture_name(config.architecture);
  HF_TRY(read_ints(fields, kOriginalFields, config));
  config.layer_kinds = alternating_kinds(config.layer_count);
  HF_ASSIGN(const auto limit, fields.optional_real("swiglu_limit", kSwigluLimit));
  if (limit) config.swiglu.limit = static_cast<float>(*limit);
  RopeConfig& rope = config.rope;
  rope.truncate = false;
  HF_ASSIGN(rope.theta, fields.required_real("rope_theta", kRopeTheta));
  HF_ASSIGN(rope.factor, fields.required_real("rope_scaling_factor", kRopeFactor));
  HF_ASSIGN(rope.beta_slow, fields.required_real("rope_ntk_alpha", kRopeBeta));
  HF_ASSIGN(rope.beta_fast, fields.required_real("rope_ntk_beta", kRopeBeta));
  HF_ASSIGN(rope.original_max_positions,
            fields.required_int("initial_context_length", kPositions));
  // What the scaling is for, within what any config may ask.
  const double positions = static_cast<double>(rope.original_max_positions) * rope.factor;
  config.max_positions = std::min(static_cast<std::int64_t>(positions), kPositions.most);
  if (rope.factor < 1.0 || rope.beta_fast <= rope.beta_slow) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: rope_scaling_factor is {}, rope_ntk_alpha {} and rope_ntk_beta {}; "
                      "expected a factor of at least 1 and beta above alpha",
                      fields.name(), rope.factor, rope.beta_slow, rope.beta_fast);
  }
  config.expert_format = {.scheme = ExpertScheme::kMxfp4,
                          .dialect = ExpertDialect::kGptOssOriginal};
  HF_TRY(check_dimensions(fields, config, "num_experts"));
  return config;
}

}  // namespace holdfast::config
