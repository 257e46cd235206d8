// gpt_oss: the architecture of openai/gpt-oss-20b and -120b as a Decoder (semantics.md 4).
#pragma once

#include <memory>

#include "model/decoder.h"

namespace holdfast::model {

// As define_decoder; `config` is a gpt_oss config and `options` are in range.
Result<std::unique_ptr<Decoder>> define_gpt_oss(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const DecoderOptions& options);

}  // namespace holdfast::model
