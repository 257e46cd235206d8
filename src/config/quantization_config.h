// parse_quantization: what config.json's quantization_config says of the experts, and of the linear
// layers besides them. Pure; any thread.
#pragma once

#include "config/json_fields.h"
#include "config/model_config.h"

namespace holdfast::config {

// Sets `config`'s expert_format, quantized_modules and cache_scales. `fields` is config.json; of
// `config` all sizes, the layers and which of them are dense must be filled in. Without a
// quantization_config the experts are bf16, in the architecture's own layout. What the file does
// not say (dtypes of scales) is the publisher's habit; modules are quantised that are not said to
// have been kept.
// Errors: kUnsupported for a field that says what this engine does not know, naming the field, the
// value and what is known; kInvalidArgument for a field that is missing or of another type.
Status parse_quantization(const JsonFields& fields, ModelConfig& config);

}  // namespace holdfast::config
