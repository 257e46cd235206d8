#include "serve/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>

namespace holdfast::serve {
namespace {

constexpr float kLogOfNothing = -9999.0f;

template <typename Real>
std::string_view write_real(Real number, std::array<char, 64>& buffer) {
  if (!std::isfinite(number)) return "null";
  char* end = std::to_chars(buffer.data(), buffer.data() + buffer.size() - 2, number).ptr;
  const std::string_view digits(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  if (digits.find_first_of(".e") == std::string_view::npos) {
    *end++ = '.';
    *end++ = '0';
  }
  return {buffer.data(), static_cast<std::size_t>(end - buffer.data())};
}

void append_escaped(std::string& text, unsigned char byte) {
  constexpr std::string_view kHex = "0123456789abcdef";
  switch (byte) {
    case '"': text += "\\\""; return;
    case '\\': text += "\\\\"; return;
    case '\n': text += "\\n"; return;
    case '\r': text += "\\r"; return;
    case '\t': text += "\\t"; return;
    default: break;
  }
  text += "\\u00";
  text += kHex[byte >> 4];
  text += kHex[byte & 15];
}

}  // namespace

// Table 3-7 of the Unicode standard: which second bytes may follow which first.
std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [text](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const auto follows = [&byte](std::size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned first = byte(0);
  if (text.empty()) return 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1, 0x80, 0xBF) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool second = follows(1, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return second && follows(2, 0x80, 0xBF) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool second = follows(1, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
    return second && follows(2, 0x80, 0xBF) && follows(3, 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::size_t count_characters(std::string_view utf8) {
  std::size_t count = 0;
  while (!utf8.empty()) {
    const std::size_t length = utf8_sequence(utf8);
    utf8.remove_prefix(length == 0 ? 1 : length);
    ++count;
  }
  return count;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  needs_comma_ = true;
  return *this;
}

void JsonWriter::separate() {
  if (needs_comma_) text_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  value(name);
  text_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  text_ += '"';
  std::size_t plain = 0;  // what has been looked at and is copied as it is
  const auto flush = [&] {
    text_.append(text.substr(0, plain));
    text.remove_prefix(plain);
    plain = 0;
  };
  while (plain < text.size()) {
    const auto byte = static_cast<unsigned char>(text[plain]);
    if (byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\') {
      ++plain;
      continue;
    }
    const std::size_t length = utf8_sequence(text.substr(plain));
    if (length > 1) {
      plain += length;
      continue;
    }
    flush();
    if (length == 0) {
      text_ += "\xEF\xBF\xBD";
    } else {
      append_escaped(text_, byte);
    }
    text.remove_prefix(1);
  }
  flush();
  text_ += '"';
  return *this;
}

JsonWriter& JsonWriter::value(float number) {
  std::array<char, 64> buffer;
  return raw(write_real(number, buffer));
}

JsonWriter& JsonWriter::value(double number) {
  std::array<char, 64> buffer;
  return raw(write_real(number, buffer));
}

JsonWriter& JsonWriter::logprob(float natural_log) {
  return value(std::isinf(natural_log) && natural_log < 0 ? kLogOfNothing : natural_log);
}

JsonWriter& JsonWriter::integer(std::int64_t number) {
  std::array<char, 24> buffer;
  const char* end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  return raw({buffer.data(), static_cast<std::size_t>(end - buffer.data())});
}

JsonWriter& JsonWriter::natural(std::uint64_t number) {
  std::array<char, 24> buffer;
  const char* end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  return raw({buffer.data(), static_cast<std::size_t>(end - buffer.data())});
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  text_ += json;
  return *this;
}

}  // namespace holdfast::serve
