#include "config/common_fields.h"

#include "base/error.h"
#include "config/expert_tensors.h"

namespace holdfast::config {

Status read_ints(const JsonFields& fields, std::span<const IntField> table, ModelConfig& config) {
  for (const IntField& field : table) {
    HF_ASSIGN(config.*field.member, fields.required_int(field.key, field.range));
  }
  return {};
}

Error unsupported(const JsonFields& fields, std::string_view key, std::string_view value,
                  std::string_view known) {
  return make_error(ErrorCode::kUnsupported, "{}: {} is {}; this engine knows {}", fields.name(),
                    key, value, known);
}

Status check_divides(const JsonFields& fields, std::pair<std::string_view, std::int64_t> whole,
                     std::pair<std::string_view, std::int64_t> part) {
  if (whole.second % part.second == 0) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: {} is {}, expected a multiple of {} {}",
                    fields.name(), whole.first, whole.second, part.first, part.second);
}

Status check_dimensions(const JsonFields& fields, const ModelConfig& config,
                        std::string_view experts_key) {
  HF_TRY(check_divides(fields, {"num_attention_heads", config.query_head_count},
                       {"num_key_value_heads", config.kv_head_count}));
  HF_TRY(check_divides(fields, {"head_dim", config.head_dim}, {"the rotated halves,", 2}));
  if (config.experts_per_token > config.expert_count) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: num_experts_per_tok is {}, {} is only {}", fields.name(),
                      config.experts_per_token, experts_key, config.expert_count);
  }
  const auto experts = expert_tensors(config);
  if (!experts.ok()) return experts.error().with_context(fields.name());
  return {};
}

Status require_switch(const JsonFields& fields, std::string_view key, bool wanted,
                      bool otherwise) {
  HF_ASSIGN(const bool value, fields.boolean(key, otherwise));
  if (value == wanted) return {};
  return unsupported(fields, key, value ? "true" : "false", wanted ? "true" : "false");
}

Status require_silu(const JsonFields& fields) {
  HF_ASSIGN(const auto activation, fields.optional_text("hidden_act"));
  if (!activation || *activation == "silu") return {};
  return unsupported(fields, "hidden_act", *activation, "silu");
}

}  // namespace holdfast::config
