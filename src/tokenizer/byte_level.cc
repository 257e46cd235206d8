#include "tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "tokenizer/utf8.h"

namespace holdfast::tokenizer {
namespace {

constexpr std::size_t kAlphabetEnd = 0x100 + 68;

// Code point -> byte, or -1.
constexpr std::array<std::int16_t, kAlphabetEnd> make_alphabet() {
  std::array<std::int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  std::size_t next = 0x100;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    bytes[printable ? byte : next++] = static_cast<std::int16_t>(byte);
  }
  return bytes;
}

constexpr auto kAlphabet = make_alphabet();

}  // namespace

bool append_token_bytes(std::string_view token, std::string& out) {
  const std::size_t start = out.size();
  for (std::size_t i = 0; i < token.size();) {
    const Utf8Step step = next_utf8(token.substr(i));
    if (step.code_point >= kAlphabetEnd || kAlphabet[step.code_point] < 0) {
      out.resize(start);
      return false;
    }
    out.push_back(static_cast<char>(kAlphabet[step.code_point]));
    i += step.length;
  }
  return true;
}

}  // namespace holdfast::tokenizer
