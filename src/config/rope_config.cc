// YaRN and its defaults, as files of all ages state it.
#include "base/error.h"
#include "config/common_fields.h"

namespace holdfast::config {
namespace {

constexpr RealRange kRopeTheta{1.0, 1e12};
constexpr RealRange kRopeFactor{0.0, 1e6};
constexpr RealRange kRopeBeta{0.0, 1e6};

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

}  // namespace

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

}  // namespace holdfast::config
