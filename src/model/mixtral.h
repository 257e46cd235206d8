// mixtral: the architecture of mistralai/Mixtral-8x7B and -8x22B as a Decoder (semantics.md 5.2).
#pragma once

#include <memory>

#include "model/decoder.h"

namespace holdfast::model {

// As define_decoder; `config` is a mixtral config and `options` are in range.
Result<std::unique_ptr<Decoder>> define_mixtral(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const DecoderOptions& options);

}  // namespace holdfast::model
