// The quantization_config of compressed-tensors (llm-compressor): one group of config_groups that
// targets all linear layers. Pure; any thread. Errors as parse_expert_format.
#pragma once

#include "config/json_fields.h"
#include "config/model_config.h"

namespace holdfast::config {

Result<ExpertFormat> parse_compressed_tensors(const JsonFields& fields, const ModelConfig& config);

}  // namespace holdfast::config
