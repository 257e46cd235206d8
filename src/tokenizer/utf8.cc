#include "tokenizer/utf8.h"

#include <simdjson.h>

namespace holdfast::tokenizer {
namespace {

struct LeadByte {
  std::uint8_t length = 0;        // 0: no code point begins with this byte
  std::uint8_t second_low = 0x80;  // the range of the second byte
  std::uint8_t second_high = 0xBF;
};

// Unicode 15, table 3-7 (well-formed UTF-8 byte sequences).
constexpr LeadByte lead_byte(std::uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  if (byte < 0xF4) return {4};
  return {};
}

}  // namespace

Utf8Step next_utf8(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const LeadByte lead = lead_byte(at(0));
  if (lead.length == 0) return {Utf8Kind::kIllFormed, 1, 0};
  if (lead.length == 1) return {Utf8Kind::kCharacter, 1, at(0)};
  char32_t code_point = at(0) & (0x7Fu >> lead.length);
  for (std::uint8_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i, 0};
    const std::uint8_t low = i == 1 ? lead.second_low : std::uint8_t{0x80};
    const std::uint8_t high = i == 1 ? lead.second_high : std::uint8_t{0xBF};
    if (at(i) < low || at(i) > high) return {Utf8Kind::kIllFormed, i, 0};
    code_point = (code_point << 6) | (at(i) & 0x3Fu);
  }
  return {Utf8Kind::kCharacter, lead.length, code_point};
}

std::size_t find_invalid_utf8(std::string_view bytes) {
  if (simdjson::validate_utf8(bytes.data(), bytes.size())) return std::string_view::npos;
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = next_utf8(bytes.substr(i));
    if (step.kind != Utf8Kind::kCharacter) return i;
    i += step.length;
  }
  return std::string_view::npos;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::size_t append_lossy_utf8(std::string_view bytes, bool at_end, std::string& out) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  if (simdjson::validate_utf8(bytes.data(), bytes.size())) {
    out.append(bytes);
    return bytes.size();
  }
  std::size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Step step = next_utf8(bytes.substr(i));
    if (step.kind == Utf8Kind::kIncomplete && !at_end) break;
    out.append(step.kind == Utf8Kind::kCharacter ? bytes.substr(i, step.length) : kReplacement);
    i += step.length;
  }
  return i;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

}  // namespace holdfast::tokenizer
