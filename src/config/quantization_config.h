// parse_expert_format: what config.json's quantization_config says of the experts. Pure; any
// thread.
#pragma once

#include "config/json_fields.h"
#include "config/model_config.h"

namespace holdfast::config {

// `fields` is config.json; of `config` the architecture, the layers and which of them are dense
// must be filled in. Without a quantization_config the experts are bf16, in the architecture's own
// layout. What the file does not say (dtypes of scales) is the publisher's habit.
// Errors: kUnsupported for a field that says what this engine does not know, naming the field, the
// value and what is known, also when modules besides the experts would have to be quantised;
// kInvalidArgument for a field that is missing or of another type.
Result<ExpertFormat> parse_expert_format(const JsonFields& fields, const ModelConfig& config);

}  // namespace holdfast::config
