// JSON Lines in: a file (or stdin) of one flat object a line, read whole and checked whole before
// anything runs. Objects hold text, numbers, booleans, null and arrays of integers; nothing else
// is ever asked for, so nothing deeper is accepted. Values; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::cli {

inline constexpr std::size_t kMaxInputBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxLines = std::size_t{1} << 18;
inline constexpr int kMaxJsonDepth = 2;  // an object, and arrays in it
inline constexpr std::size_t kMaxFields = 64;
inline constexpr std::size_t kMaxArrayItems = std::size_t{1} << 24;

// What a field holds.
struct Null {};
using Ids = std::vector<std::int64_t>;
using FieldValue =
    std::variant<Null, bool, std::int64_t, std::uint64_t, double, std::string, Ids>;

// The object of one line. Errors of the getters: kInvalidArgument, "FILE:LINE: FIELD is VALUE,
// expected ..."; a field that is absent or null is nullopt.
class LineObject {
 public:
  LineObject(std::string place, std::vector<std::pair<std::string, FieldValue>> fields)
      : place_(std::move(place)), fields_(std::move(fields)) {}

  const std::string& place() const { return place_; }  // "FILE:LINE"
  const FieldValue* find(std::string_view name) const;

  // An error naming the first field that is not in `known`, and those that are.
  Status allow_only(std::span<const std::string_view> known) const;
  Result<std::optional<std::string>> text(std::string_view name) const;
  Result<std::optional<bool>> boolean(std::string_view name) const;
  struct IntRange {
    std::int64_t least, most;
  };
  Result<std::optional<std::int64_t>> integer(std::string_view name, IntRange range) const;
  Result<std::optional<std::uint64_t>> unsigned_integer(std::string_view name) const;
  Result<std::optional<double>> real(std::string_view name) const;
  // Token ids: integers that fit int32 and are not negative.
  Result<std::optional<std::vector<std::int32_t>>> token_ids(std::string_view name) const;
  // A text or an integer, as JSON text; for the caller's own name of a line.
  Result<std::optional<std::string>> label(std::string_view name) const;

  Error wrong(std::string_view name, std::string_view expected) const;
  Error error(std::string_view message) const;

 private:
  std::string place_;
  std::vector<std::pair<std::string, FieldValue>> fields_;
};

// Reads `path` ("-": stdin) and parses every line. Errors: kIo, kResourceExhausted over a limit
// above (naming it), kInvalidArgument for a line that is not such an object: "FILE:LINE: ...".
Result<std::vector<LineObject>> read_json_lines(const std::string& path);

// One line; `place` goes first in every message.
Result<LineObject> parse_json_line(std::string_view text, std::string place);

// `text` as a JSON string with its quotes; ill-formed UTF-8 becomes U+FFFD.
std::string json_quote(std::string_view text);

// Builds one JSON object from left to right. Numbers are written shortest: a float32 comes back as
// the same float32. What is not finite becomes null.
class JsonObject {
 public:
  JsonObject& add(std::string_view name, std::string_view text);
  JsonObject& add(std::string_view name, const char* text);
  JsonObject& add(std::string_view name, bool value);
  JsonObject& add(std::string_view name, std::int64_t value);
  JsonObject& add(std::string_view name, std::uint64_t value);
  JsonObject& add(std::string_view name, double value);
  JsonObject& add(std::string_view name, std::span<const std::int32_t> values);
  JsonObject& add(std::string_view name, std::span<const std::uint64_t> values);
  JsonObject& add(std::string_view name, std::span<const float> values);
  JsonObject& add(std::string_view name, std::span<const std::string> texts);
  // `json` as it is.
  JsonObject& add_raw(std::string_view name, std::string_view json);
  // The object's text.
  std::string take();

 private:
  std::string& key(std::string_view name);
  std::string text_ = "{";
};

}  // namespace holdfast::cli
