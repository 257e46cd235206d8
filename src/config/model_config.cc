#include "config/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "config/gpt_oss_config.h"
#include "config/hub_moe_config.h"
#include "config/json_fields.h"
#include "config/linear_modules.h"

namespace holdfast::config {
namespace {

constexpr JsonFields::Limits kConfigLimits{kMaxConfigBytes, 32};
constexpr std::size_t kMaxEosTokens = 64;
constexpr std::int64_t kNoToken = -1;
constexpr std::string_view kKnownModelTypes = "gpt_oss, qwen3_moe, mixtral";

// A single id where -1 and absent both mean none.
Result<std::optional<std::int32_t>> parse_token(const JsonFields& fields, std::string_view key,
                                                std::int64_t vocab_size) {
  HF_ASSIGN(const auto id, fields.optional_int(key, {kNoToken, vocab_size - 1}));
  if (!id || *id == kNoToken) return std::optional<std::int32_t>();
  return std::optional<std::int32_t>(static_cast<std::int32_t>(*id));
}

// eos_token_id: an id or a list of ids. Empty when absent.
Result<std::vector<std::int32_t>> parse_eos(const JsonFields& fields, std::int64_t vocab_size) {
  constexpr std::string_view kKey = "eos_token_id";
  std::vector<std::int32_t> ids;
  const auto value = fields.find(kKey);
  if (!value) return ids;
  simdjson::dom::array array;
  if (value->get(array)) {
    HF_ASSIGN(const std::int64_t id, fields.required_int(kKey, {0, vocab_size - 1}));
    ids.push_back(static_cast<std::int32_t>(id));
    return ids;
  }
  for (const simdjson::dom::element element : array) {
    std::int64_t id = 0;
    if (!element.is_int64() || element.get(id) || id < 0 || id >= vocab_size) {
      return fields.wrong(kKey, *value, fmt::format("ids from 0 to {}", vocab_size - 1));
    }
    if (ids.size() == kMaxEosTokens) {
      return fields.wrong(kKey, *value, fmt::format("at most {} ids", kMaxEosTokens));
    }
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(static_cast<std::int32_t>(id));
    }
  }
  return ids;
}

// Overrides what `config` holds by what `fields` state.
Status apply_tokens(const JsonFields& fields, ModelConfig& config) {
  HF_ASSIGN(auto eos, parse_eos(fields, config.vocab_size));
  if (!eos.empty()) config.eos_token_ids = std::move(eos);
  HF_ASSIGN(const auto bos, parse_token(fields, "bos_token_id", config.vocab_size));
  config.bos_token_id = bos.value_or(config.bos_token_id);
  HF_ASSIGN(const auto pad, parse_token(fields, "pad_token_id", config.vocab_size));
  config.pad_token_id = pad.value_or(config.pad_token_id);
  return {};
}

// Every field that shapes storage, graphs or constants, as text that differs when the value does
// (fmt prints the shortest decimal that reads back as the same number).
std::vector<std::pair<std::string_view, std::string>> storage_fields(const ModelConfig& config) {
  std::vector<std::string_view> kinds;
  for (const AttentionKind kind : config.layer_kinds) kinds.push_back(attention_kind_name(kind));
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  return {
      {"model_type", config.model_type},
      {"architecture", text(architecture_name(config.architecture))},
      {"num_hidden_layers", text(config.layer_count)},
      {"hidden_size", text(config.hidden_size)},
      {"intermediate_size", text(config.intermediate_size)},
      {"dense intermediate_size", text(config.dense_intermediate_size)},
      {"num_attention_heads", text(config.query_head_count)},
      {"num_key_value_heads", text(config.kv_head_count)},
      {"head_dim", text(config.head_dim)},
      {"vocab_size", text(config.vocab_size)},
      {"num_local_experts", text(config.expert_count)},
      {"num_experts_per_tok", text(config.experts_per_token)},
      {"sliding_window", text(config.sliding_window)},
      {"max_position_embeddings", text(config.max_positions)},
      {"rms_norm_eps", text(config.rms_norm_eps)},
      {"rope_theta", text(config.rope.theta)},
      {"rope factor", text(config.rope.factor)},
      {"rope beta_fast", text(config.rope.beta_fast)},
      {"rope beta_slow", text(config.rope.beta_slow)},
      {"rope original_max_position_embeddings", text(config.rope.original_max_positions)},
      {"rope truncate", text(config.rope.truncate)},
      {"swiglu alpha", text(config.swiglu.alpha)},
      {"swiglu beta", text(config.swiglu.beta)},
      {"swiglu_limit", text(config.swiglu.limit)},
      {"expert scheme", text(expert_scheme_name(config.expert_format.scheme))},
      {"expert format", to_text(config.expert_format)},
      {"quantised modules", quantized_modules_text(config)},
      {"cache scales", to_text(config.cache_scales)},
      {"norm_topk_prob", text(config.renormalise)},
      {"tie_word_embeddings", text(config.tied_embeddings)},
      {"dense layers", fmt::format("[{}]", fmt::join(config.dense_layers, ", "))},
      {"layer_types", fmt::format("[{}]", fmt::join(kinds, ", "))},
  };
}

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGptOss: return "gpt_oss";
    case Architecture::kQwen3Moe: return "qwen3_moe";
    case Architecture::kMixtral: return "mixtral";
  }
  return "unknown";
}

std::string_view attention_kind_name(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kFull: return "full_attention";
    case AttentionKind::kSliding: return "sliding_attention";
  }
  return "unknown";
}

std::string to_text(const CacheScales& scales) {
  if (scales.place == CacheScales::Place::kNone) return "none";
  return fmt::format("of {}, {} {}",
                     scales.place == CacheScales::Place::kAttention ? "attention" : "projections",
                     tensor::dtype_name(scales.dtype), scales.have_axis ? "[1]" : "[]");
}

bool ModelConfig::is_dense(std::int64_t layer) const {
  return std::binary_search(dense_layers.begin(), dense_layers.end(), layer);
}

bool ModelConfig::is_quantized(std::string_view module) const {
  return std::binary_search(quantized_modules.begin(), quantized_modules.end(), module);
}

namespace {

Result<ModelConfig> parse_architecture(const JsonFields& fields) {
  HF_ASSIGN(const auto model_type, fields.optional_text("model_type"));
  if (is_gpt_oss_original(fields)) return parse_gpt_oss_original(fields);
  if (!model_type) return fields.missing("model_type");
  if (*model_type == architecture_name(Architecture::kGptOss)) return parse_gpt_oss(fields);
  if (*model_type == architecture_name(Architecture::kQwen3Moe)) return parse_qwen3_moe(fields);
  if (*model_type == architecture_name(Architecture::kMixtral)) return parse_mixtral(fields);
  return make_error(ErrorCode::kUnsupported, "{}: model_type is {}; this engine knows {}",
                    fields.name(), brief_json(*fields.find("model_type")), kKnownModelTypes);
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view config_json,
                                       std::string_view generation_json) {
  simdjson::dom::parser parser;
  HF_ASSIGN(const JsonFields fields,
            JsonFields::parse(parser, config_json, "config.json", kConfigLimits));
  HF_ASSIGN(ModelConfig config, parse_architecture(fields));
  HF_TRY(apply_tokens(fields, config));
  if (generation_json.empty()) return config;
  simdjson::dom::parser generation_parser;
  HF_ASSIGN(const JsonFields generation,
            JsonFields::parse(generation_parser, generation_json, "generation_config.json",
                              kConfigLimits));
  HF_TRY(apply_tokens(generation, config));
  return config;
}

std::vector<ConfigDifference> compare(const ModelConfig& live, const ModelConfig& next) {
  auto before = storage_fields(live);
  auto after = storage_fields(next);
  std::vector<ConfigDifference> differences;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i].second == after[i].second) continue;
    const std::string_view field = before[i].first;
    differences.push_back({.field = std::string(field),
                           .live = std::move(before[i].second),
                           .next = std::move(after[i].second),
                           .constants_only =
                               field.starts_with("rope") || field.starts_with("swiglu")});
  }
  return differences;
}

Status check_replaceable(const ModelConfig& live, const ModelConfig& next) {
  const auto differences = compare(live, next);
  if (differences.empty()) return {};
  const ConfigDifference& first = differences.front();
  return make_error(ErrorCode::kMismatch,
                    "{} is {} in the live model and {} in the next; weights can be replaced in "
                    "place only by weights of the same config",
                    first.field, first.live, first.next);
}

}  // namespace holdfast::config
