// JsonWriter: appends JSON (RFC 8259) to one string, compactly and in the order of the calls. The
// caller pairs begin and end, and writes a key before each value of an object. One thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace holdfast::serve {

class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  // Escapes what must be, and puts U+FFFD for what is not UTF-8.
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool truth) { return raw(truth ? "true" : "false"); }
  JsonWriter& null() { return raw("null"); }
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  JsonWriter& value(T number) {
    if constexpr (std::is_signed_v<T>) {
      return integer(static_cast<std::int64_t>(number));
    } else {
      return natural(static_cast<std::uint64_t>(number));
    }
  }
  // The shortest decimal that reads back as the same float (or double); always with a point or an
  // exponent. JSON has no NaN and no infinity: null.
  JsonWriter& value(float number);
  JsonWriter& value(double number);
  // As value, but -infinity is -9999.0, which clients of vLLM expect.
  JsonWriter& logprob(float natural_log);
  // JSON text as it is.
  JsonWriter& raw(std::string_view json);

  template <typename T>
  JsonWriter& field(std::string_view name, const T& content) {
    return key(name).value(content);
  }
  template <typename Range>
  JsonWriter& array(std::string_view name, const Range& range) {
    key(name).begin_array();
    for (const auto& element : range) value(element);
    return end_array();
  }

  const std::string& text() const { return text_; }
  std::string take() { return std::exchange(text_, {}); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  JsonWriter& integer(std::int64_t number);
  JsonWriter& natural(std::uint64_t number);
  void separate();

  std::string text_;
  bool needs_comma_ = false;
};

// RFC 4648, section 4.
std::string base64(std::string_view bytes);
// The number of code points; what is not UTF-8 counts by byte.
std::size_t count_characters(std::string_view utf8);
// The length of the well-formed UTF-8 sequence that `text` begins with; 0: there is none.
std::size_t utf8_sequence(std::string_view text);

}  // namespace holdfast::serve
