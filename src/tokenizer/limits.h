// The maxima of the tokenizer: what a tokenizer.json and a text may be at most. Constants; any
// thread. Everything from outside is checked against them at the border, with an error that names
// the limit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::tokenizer {

inline constexpr std::size_t kMaxJsonBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxJsonDepth = 32;
inline constexpr std::int32_t kMaxTokenId = (1 << 22) - 1;
inline constexpr std::size_t kMaxMerges = std::size_t{1} << 23;
inline constexpr std::size_t kMaxTokenBytes = 4096;
inline constexpr std::size_t kMaxAddedTokens = std::size_t{1} << 16;
inline constexpr std::size_t kMaxAddedTokenBytes = 256;
inline constexpr std::size_t kMaxPatternBytes = 16384;
inline constexpr std::size_t kMaxSplitStages = 8;
// Regex steps (PCRE2 match limit) for one piece of text; a pattern that backtracks more is refused.
inline constexpr std::uint32_t kMaxRegexSteps = 50'000'000;
// One text given to encode. A long word costs about 30 bytes of scratch per byte of text.
inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

}  // namespace holdfast::tokenizer
