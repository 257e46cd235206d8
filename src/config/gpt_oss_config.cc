#include "config/gpt_oss_config.h"

#include <array>
#include <utility>

#include "base/error.h"
#include "tensor/codecs.h"

namespace holdfast::config {
namespace {

// What a config may ask for. Far above every published model and far below what would overflow a
// size computation or exhaust memory before an error could be told.
constexpr IntRange kLayers{1, 1024};
constexpr IntRange kHiddenSize{1, 1 << 17};
constexpr IntRange kIntermediateSize{1, 1 << 18};
constexpr IntRange kHeads{1, 1024};
constexpr IntRange kHeadDim{2, 1024};
constexpr IntRange kVocabSize{1, 1 << 22};
constexpr IntRange kExperts{1, 4096};
constexpr IntRange kExpertsPerToken{1, 256};
constexpr IntRange kPositions{1, 1 << 24};
constexpr RealRange kRmsNormEps{0.0, 0.1};
constexpr RealRange kRopeTheta{1.0, 1e12};
constexpr RealRange kRopeFactor{0.0, 1e6};
constexpr RealRange kRopeBeta{0.0, 1e6};
constexpr RealRange kSwigluLimit{0.0, 1e6};

struct IntField {
  std::string_view key;
  IntRange range;
  std::int64_t ModelConfig::*member;
};
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

Error unsupported(const JsonFields& fields, std::string_view key, std::string_view value,
                  std::string_view known) {
  return make_error(ErrorCode::kUnsupported, "{}: {} is {}; this engine knows {}", fields.name(),
                    key, value, known);
}

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

Result<std::vector<AttentionKind>> parse_layer_types(const JsonFields& fields,
                                                     std::int64_t layer_count) {
  std::vector<AttentionKind> kinds;
  HF_ASSIGN(const auto types, fields.optional_array("layer_types"));
  if (!types) {
    // The architecture's default: sliding and full by turns, beginning with sliding.
    for (std::int64_t i = 0; i < layer_count; ++i) {
      kinds.push_back(i % 2 == 0 ? AttentionKind::kSliding : AttentionKind::kFull);
    }
    return kinds;
  }
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

// Parts of YaRN that published gpt-oss files do not use; ignoring one would give wrong numbers.
Status refuse_unknown_rope(const JsonFields& rope) {
  for (const std::string_view key : {"attention_factor", "mscale", "mscale_all_dim"}) {
    if (const auto value = rope.find(key)) {
      return unsupported(rope, key, brief_json(*value), "YaRN without this field");
    }
  }
  HF_ASSIGN(const auto partial, rope.optional_real("partial_rotary_factor", {0.0, 1.0}));
  if (partial && *partial != 1.0) {
    return unsupported(rope, "partial_rotary_factor", fmt::format("{}", *partial), "1");
  }
  return {};
}

Status parse_yarn(const JsonFields& fields, const JsonFields& rope, RopeConfig& out) {
  HF_TRY(refuse_unknown_rope(rope));
  HF_ASSIGN(out.factor, rope.required_real("factor", kRopeFactor));
  HF_ASSIGN(const auto beta_fast, rope.optional_real("beta_fast", kRopeBeta));
  HF_ASSIGN(const auto beta_slow, rope.optional_real("beta_slow", kRopeBeta));
  out.beta_fast = beta_fast.value_or(out.beta_fast);
  out.beta_slow = beta_slow.value_or(out.beta_slow);
  HF_ASSIGN(out.truncate, rope.boolean("truncate", true));
  HF_ASSIGN(auto original, rope.optional_int("original_max_position_embeddings", kPositions));
  if (!original) {
    HF_ASSIGN(original, fields.optional_int("initial_context_length", kPositions));
  }
  if (!original) return rope.missing("original_max_position_embeddings");
  out.original_max_positions = *original;
  if (out.factor < 1.0) {
    return make_error(ErrorCode::kInvalidArgument, "{}: factor is {}, expected at least 1",
                      rope.name(), out.factor);
  }
  if (out.beta_fast <= out.beta_slow) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: beta_fast is {} and beta_slow is {}, expected beta_fast above beta_slow",
                      rope.name(), out.beta_fast, out.beta_slow);
  }
  return {};
}

// theta stands at the top in older files and beside the scaling in newer ones.
Result<double> parse_theta(const JsonFields& fields, const std::optional<JsonFields>& rope) {
  HF_ASSIGN(const auto outer, fields.optional_real("rope_theta", kRopeTheta));
  std::optional<double> inner;
  if (rope) {
    HF_ASSIGN(inner, rope->optional_real("rope_theta", kRopeTheta));
  }
  if (outer && inner && *outer != *inner) {
    return make_error(ErrorCode::kInvalidArgument, "{}: rope_theta is {} and {} says {}",
                      fields.name(), *outer, rope->name(), *inner);
  }
  if (!outer && !inner) return fields.missing("rope_theta");
  return inner ? *inner : *outer;
}

Result<RopeConfig> parse_rope_from(const JsonFields& fields,
                                   const std::optional<JsonFields>& rope) {
  RopeConfig out;
  HF_ASSIGN(out.theta, parse_theta(fields, rope));
  if (!rope) return out;
  HF_ASSIGN(auto type, rope->optional_text("rope_type"));
  if (!type) {
    HF_ASSIGN(type, rope->optional_text("type"));
  }
  if (!type) return rope->missing("rope_type");
  if (*type == "yarn") {
    HF_TRY(parse_yarn(fields, *rope, out));
  } else if (*type != "default") {
    return unsupported(*rope, "rope_type", *type, "yarn, default");
  }
  return out;
}

Result<RopeConfig> parse_rope(const JsonFields& fields) {
  HF_ASSIGN(const auto newer, fields.optional_object("rope_parameters"));
  HF_ASSIGN(const auto older, fields.optional_object("rope_scaling"));
  HF_ASSIGN(const RopeConfig rope, parse_rope_from(fields, newer ? newer : older));
  if (newer && older) {
    HF_ASSIGN(const RopeConfig other, parse_rope_from(fields, older));
    if (rope != other) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: rope_parameters and rope_scaling say different things; keep one",
                        fields.name());
    }
  }
  return rope;
}

Result<ExpertScheme> parse_scheme(const JsonFields& fields) {
  HF_ASSIGN(const auto quantization, fields.optional_object("quantization_config"));
  if (!quantization) return ExpertScheme::kBF16;
  HF_ASSIGN(const auto method, quantization->optional_text("quant_method"));
  if (!method) return quantization->missing("quant_method");
  if (*method != "mxfp4") return unsupported(*quantization, "quant_method", *method, "mxfp4");
  return ExpertScheme::kMxfp4;
}

// Switches that the architecture leaves open in the file and this engine does not.
Status check_fixed_options(const JsonFields& fields) {
  HF_ASSIGN(const bool bias, fields.boolean("attention_bias", true));
  if (!bias) return unsupported(fields, "attention_bias", "false", "true");
  HF_ASSIGN(const bool tied, fields.boolean("tie_word_embeddings", false));
  if (tied) return unsupported(fields, "tie_word_embeddings", "true", "false");
  HF_ASSIGN(const auto activation, fields.optional_text("hidden_act"));
  if (activation && *activation != "silu") {
    return unsupported(fields, "hidden_act", *activation, "silu");
  }
  return {};
}

Status check_divides(const JsonFields& fields, std::pair<std::string_view, std::int64_t> whole,
                     std::pair<std::string_view, std::int64_t> part) {
  if (whole.second % part.second == 0) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: {} is {}, expected a multiple of {} {}",
                    fields.name(), whole.first, whole.second, part.first, part.second);
}

Status cross_check(const JsonFields& fields, const ModelConfig& config) {
  HF_TRY(check_divides(fields, {"num_attention_heads", config.query_head_count},
                       {"num_key_value_heads", config.kv_head_count}));
  HF_TRY(check_divides(fields, {"head_dim", config.head_dim}, {"the rotated halves,", 2}));
  if (config.expert_format.scheme == ExpertScheme::kMxfp4) {
    constexpr std::string_view kBlock = "the MXFP4 block,";
    HF_TRY(check_divides(fields, {"hidden_size", config.hidden_size}, {kBlock, tensor::kMxBlock}));
    HF_TRY(check_divides(fields, {"intermediate_size", config.intermediate_size},
                         {kBlock, tensor::kMxBlock}));
  }
  if (config.experts_per_token > config.expert_count) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: num_experts_per_tok is {}, num_local_experts is only {}", fields.name(),
                      config.experts_per_token, config.expert_count);
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_gpt_oss(const JsonFields& fields) {
  ModelConfig config;
  config.architecture = Architecture::kGptOss;
  config.model_type = architecture_name(config.architecture);
  for (const IntField& field : kIntFields) {
    HF_ASSIGN(config.*field.member, fields.required_int(field.key, field.range));
  }
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
  HF_ASSIGN(config.expert_format.scheme, parse_scheme(fields));
  HF_TRY(check_fixed_options(fields));
  HF_TRY(cross_check(fields, config));
  return config;
}

}  // namespace holdfast::config
