// JsonDocument, JsonValue, FieldReader: a request's JSON body, read with types, ranges and names.
// What is wrong is one error that names the field, its value and what is accepted. A document
// belongs to one thread; values point into it.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/api_error.h"

namespace holdfast::serve {

inline constexpr std::size_t kMaxJsonDepth = 64;
inline constexpr std::size_t kMaxJsonFields = 1024;  // of one object that is read by FieldReader

struct IntRange {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
};
struct RealRange {
  double low, high;
  bool low_excluded = false;
};

enum class JsonKind : std::uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };

// One value of a document, without its name. Cheap to copy.
class JsonValue {
 public:
  JsonKind kind() const;
  bool is_null() const { return kind() == JsonKind::kNull; }
  // Each is empty when the value is of another kind. An integer may be written 16 or 16.0, not
  // 16.5, and must be exact.
  std::optional<bool> boolean() const;
  std::optional<std::int64_t> integer() const;
  std::optional<std::uint64_t> natural() const;
  std::optional<double> real() const;
  std::optional<std::string_view> string() const;
  std::size_t size() const;  // of an array or object, else 0
  std::optional<JsonValue> first() const;                                  // of an array
  std::vector<JsonValue> elements() const;                                 // of an array
  std::vector<std::pair<std::string_view, JsonValue>> members() const;     // of an object
  // All elements as integers in `range`; else the index of the first that is not.
  std::optional<std::size_t> ids_into(std::vector<std::int32_t>& into, IntRange range) const;
  std::string brief() const;  // for messages: at most a few dozen characters
  std::string text() const;   // as JSON, compact

 private:
  friend class JsonDocument;
  std::array<std::uint64_t, 2> raw_ = {};  // a simdjson::dom::element
};

class JsonDocument {
 public:
  // An error for what is not JSON, not UTF-8, or deeper than kMaxJsonDepth.
  static std::optional<ApiError> parse(std::string_view body, JsonDocument& into);
  JsonDocument();
  ~JsonDocument();
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;
  JsonValue root() const { return root_; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  JsonValue root_;
};

// The first thing that is wrong with a request; what comes later is not looked at.
class RequestErrors {
 public:
  void add(std::string param, std::string message);  // a 400
  void add(ApiError error);
  bool any() const { return first_.has_value(); }
  const std::optional<ApiError>& first() const { return first_; }

 private:
  std::optional<ApiError> first_;
};

// Reads the fields of one object by name. A field that is absent or null leaves `into` as it is and
// gives false; so does one that is wrong, which is added to `errors`. Names given to any function
// are known; finish() refuses the others.
class FieldReader {
 public:
  // `path`: the object's own name, empty for the body. Errors: not an object, a name that comes
  // twice, too many names.
  FieldReader(JsonValue object, std::string path, RequestErrors& errors);

  bool boolean(std::string_view name, bool& into);
  bool integer(std::string_view name, std::int64_t& into, IntRange range = {});
  bool real(std::string_view name, float& into, RealRange range);
  bool string(std::string_view name, std::string& into, std::size_t max_bytes = 1u << 20);
  bool one_of(std::string_view name, std::string& into,
              std::initializer_list<std::string_view> accepted);
  // A string, or an array of strings; none of them empty.
  bool strings(std::string_view name, std::vector<std::string>& into, std::size_t max_count);
  // An array of integers.
  bool ids(std::string_view name, std::vector<std::int32_t>& into, std::size_t max_count,
           IntRange range);
  // Any value that is there and not null.
  std::optional<JsonValue> value(std::string_view name);
  bool has(std::string_view name) const;  // and not null; leaves the name unknown

  // Known, and without an effect here, whatever it says.
  void ignore(std::initializer_list<std::string_view> names);
  // Known, and cannot be had: an error unless it asks for nothing (absent, null, false, 0, "", [],
  // {}, or the number `nothing`).
  void refuse(std::string_view name, std::string_view why, double nothing = 0);
  void fail(std::string_view name, const std::string& message);
  void finish();

  std::string path_of(std::string_view name) const;
  RequestErrors& errors() const { return errors_; }

 private:
  struct Field {
    std::string_view name;
    JsonValue value;
    bool known = false;
  };
  Field* find(std::string_view name);
  void wrong(std::string_view name, const JsonValue& value, std::string_view expected);

  std::string path_;
  RequestErrors& errors_;
  std::vector<Field> fields_;             // by name
  std::vector<std::string_view> names_;   // that were asked for
};

}  // namespace holdfast::serve
