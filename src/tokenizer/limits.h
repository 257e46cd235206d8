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
// Splitting a text of n bytes may look at bytes and backtrack kSplitWork + n * kSplitWorkPerByte
// times beyond what each piece has free (pattern.cc); a pattern that wants more is an error.
inline constexpr std::uint64_t kSplitWork = std::uint64_t{1} << 26;
inline constexpr std::uint64_t kSplitWorkPerByte = 128;
// One text given to encode. A long word costs about 30 bytes of scratch per byte of text.
inline constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

}  // namespace holdfast::tokenizer
