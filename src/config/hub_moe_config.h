// The qwen3_moe and mixtral fields of config.json (Hugging Face's Qwen3MoeConfig and MixtralConfig,
// and the published Qwen3-30B-A3B, Qwen3-235B-A22B, Mixtral 8x7B and 8x22B). Pure functions; any
// thread.
#pragma once

#include "config/json_fields.h"
#include "config/model_config.h"

namespace holdfast::config {

// All fields but the token ids. Errors as parse_model_config.
Result<ModelConfig> parse_qwen3_moe(const JsonFields& fields);
Result<ModelConfig> parse_mixtral(const JsonFields& fields);

}  // namespace holdfast::config
