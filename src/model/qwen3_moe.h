// qwen3_moe: the architecture of Qwen/Qwen3-30B-A3B and -235B-A22B as a Decoder (semantics.md 5.1).
#pragma once

#include <memory>

#include "model/decoder.h"

namespace holdfast::model {

// As define_decoder; `config` is a qwen3_moe config and `options` are in range.
Result<std::unique_ptr<Decoder>> define_qwen3_moe(storage::Registry& registry,
                                                  const config::ModelConfig& config,
                                                  const DecoderOptions& options);

}  // namespace holdfast::model
