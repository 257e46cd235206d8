// UTF-8: checking, writing, and the replacement of ill-formed bytes by U+FFFD (one for each maximal
// subpart, Unicode 15 section 3.9, which is also what Hugging Face's decoder does). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::tokenizer {

enum class Utf8Kind : std::uint8_t {
  kCharacter,   // a complete code point
  kIllFormed,   // bytes that no code point begins with
  kIncomplete,  // the text ends inside what may become a code point
};

struct Utf8Step {
  Utf8Kind kind;
  std::uint8_t length;   // bytes, 1 to 4
  char32_t code_point;   // of kCharacter only
};

// What stands at the front of `bytes`, which must not be empty.
Utf8Step next_utf8(std::string_view bytes);

// The offset of the first byte that is not part of well-formed UTF-8, or npos.
std::size_t find_invalid_utf8(std::string_view bytes);

// `code_point` must be a Unicode scalar value.
void append_utf8(char32_t code_point, std::string& out);

// Appends `bytes` to `out` with every ill-formed part replaced by U+FFFD and returns how many bytes
// were consumed: all of them if `at_end`, else all but a trailing incomplete code point (0 to 3
// bytes).
std::size_t append_lossy_utf8(std::string_view bytes, bool at_end, std::string& out);

// The Unicode property White_Space.
bool is_white_space(char32_t code_point);

}  // namespace holdfast::tokenizer
