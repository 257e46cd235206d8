// What config.json leaves open of the weights' format and the files show. Pure; any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace holdfast::checkpoint {

// The header's entry of a tensor, or nullptr.
using FindEntry = std::function<const TensorEntry*(const std::string& name)>;

// `config`'s expert format with what the first layer with experts shows: the dtype of plain weights
// (bf16, f16 or f32) and of scales that are plain floats, and the shape of its scalars, [] or [1].
// What does not fit at all is left to the account.
config::ExpertFormat observe_format(const config::ModelConfig& config, const FindEntry& find);

// bf16, f16 and f32.
bool is_plain_float(tensor::DType dtype);

// The dtype of the embedding, for what is neither quantised nor an expert's; bf16 when it has none
// that is known. Each tensor may have another.
tensor::DType observe_plain_dtype(const config::ModelConfig& config, const FindEntry& find);

// `config`'s scales of a cache as the files have them, or none where they have none.
config::CacheScales observe_cache_scales(const config::ModelConfig& config, const FindEntry& find);

// Of `config`'s quantised modules those that the files do not have as plain values: what a
// quantiser leaves alone of itself (routers, lm_head), not every config.json lists.
std::vector<std::string> observe_quantized_modules(const config::ModelConfig& config,
                                                   const FindEntry& find);

}  // namespace holdfast::checkpoint
