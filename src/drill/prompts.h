// The drill's own prompts: of different lengths, so that prefill runs in several chunks and a
// sliding window is left behind. Constants; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace holdfast::drill {

inline constexpr std::size_t kMaxPrompts = 64;

std::vector<std::string> built_in_prompts();
// The same for a model without a tokenizer: ids below `vocab_size`, spread over all of them.
std::vector<std::vector<std::int32_t>> built_in_ids(std::int64_t vocab_size);

}  // namespace holdfast::drill
