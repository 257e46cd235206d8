// The drill's own prompts: of different lengths, so that prefill runs in several chunks and a
// sliding window is left behind. Constants; any thread.
#pragma once

#include <string>
#include <vector>

namespace holdfast::drill {

inline constexpr std::size_t kMaxPrompts = 64;

std::vector<std::string> built_in_prompts();

}  // namespace holdfast::drill
