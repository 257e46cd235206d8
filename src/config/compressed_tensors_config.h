// The quantization_config of compressed-tensors (llm-compressor): one group of config_groups that
// targets all linear layers. Pure; any thread. Errors as parse_quantization.
#pragma once

#include "config/json_fields.h"
#include "config/kept_modules.h"
#include "config/model_config.h"

namespace holdfast::config {

// Adds to `kept` what the group left alone.
Result<ExpertFormat> parse_compressed_tensors(const JsonFields& fields, KeptModules& kept);

}  // namespace holdfast::config
