// The byte-level alphabet of GPT-2's tokenizer: each of the 256 bytes is written as one printable
// code point in tokenizer.json. Bytes '!'..'~', 0xA1..0xAC and 0xAE..0xFF stand for themselves; the
// other 68, in order, are U+0100 and up. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::tokenizer {

// Appends the bytes that the token text stands for. False, with `out` as it was, if `token` holds a
// code point outside the alphabet. `token` must be well-formed UTF-8.
bool append_token_bytes(std::string_view token, std::string& out);

}  // namespace holdfast::tokenizer
