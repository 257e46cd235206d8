// The gpt_oss fields of config.json (Hugging Face's GptOssConfig and the published
// openai/gpt-oss-20b and -120b). Pure functions; any thread.
#pragma once

#include "config/json_fields.h"
#include "config/model_config.h"

namespace holdfast::config {

// All fields but the token ids. Errors as parse_model_config.
Result<ModelConfig> parse_gpt_oss(const JsonFields& fields);

// OpenAI's own config.json beside the original layout, which has no model_type. Whether it is one.
bool is_gpt_oss_original(const JsonFields& fields);
// All of it: MXFP4 experts in ExpertDialect::kGptOssOriginal, no token ids. Errors as above.
Result<ModelConfig> parse_gpt_oss_original(const JsonFields& fields);

}  // namespace holdfast::config
