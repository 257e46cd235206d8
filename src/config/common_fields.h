// Fields of config.json that several architectures share, with the ranges that this engine accepts.
// Pure functions; any thread. Errors as parse_model_config.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "config/json_fields.h"
#include "config/model_config.h"

namespace holdfast::config {

// What a config may ask for. Far above every published model and far below what would overflow a
// size computation or exhaust memory before an error could be told.
inline constexpr IntRange kLayers{1, 1024};
inline constexpr IntRange kHiddenSize{1, 1 << 17};
inline constexpr IntRange kIntermediateSize{1, 1 << 18};
inline constexpr IntRange kHeads{1, 1024};
inline constexpr IntRange kHeadDim{2, 1024};
inline constexpr IntRange kVocabSize{1, 1 << 22};
inline constexpr IntRange kExperts{1, 4096};
inline constexpr IntRange kExpertsPerToken{1, 256};
inline constexpr IntRange kPositions{1, 1 << 24};
inline constexpr RealRange kRmsNormEps{0.0, 0.1};

struct IntField {
  std::string_view key;
  IntRange range;
  std::int64_t ModelConfig::*member;
};
// Reads each, all required.
Status read_ints(const JsonFields& fields, std::span<const IntField> table, ModelConfig& config);

// "config.json: KEY is VALUE; this engine knows KNOWN", kUnsupported.
Error unsupported(const JsonFields& fields, std::string_view key, std::string_view value,
                  std::string_view known);

// "config.json: WHOLE is 7, expected a multiple of PART 2" unless it is one.
Status check_divides(const JsonFields& fields, std::pair<std::string_view, std::int64_t> whole,
                     std::pair<std::string_view, std::int64_t> part);
// What every architecture asks: heads, rotated halves, experts per token, and dimensions that the
// experts' format can hold. `experts_key` is what config.json calls the number of experts.
Status check_dimensions(const JsonFields& fields, const ModelConfig& config,
                        std::string_view experts_key);

// A switch that this engine has in one position only; absent means `otherwise`.
Status require_switch(const JsonFields& fields, std::string_view key, bool wanted, bool otherwise);
// hidden_act, which must be silu or absent.
Status require_silu(const JsonFields& fields);

// rope_theta with rope_scaling (older files) or rope_parameters (newer): none, "default" or "yarn".
Result<RopeConfig> parse_rope(const JsonFields& fields);

}  // namespace holdfast::config
