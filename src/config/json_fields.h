// JsonFields: reads named fields of a JSON object with their accepted range, so that every error
// names the file, the field, its value and what is accepted. A view into a simdjson parser, which
// must outlive it; one thread.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "holdfast/result.h"

namespace holdfast::config {

struct IntRange {
  std::int64_t least;
  std::int64_t most;
};
// Open below, closed above: (above, most].
struct RealRange {
  double above;
  double most;
};

class JsonFields {
 public:
  // Parses `text` (at most `max_bytes` long and `max_depth` deep) into `parser`; the top must be an
  // object. `name` goes first in every message. Errors: kCorrupt.
  struct Limits {
    std::size_t max_bytes;
    std::size_t max_depth;
  };
  static Result<JsonFields> parse(simdjson::dom::parser& parser, std::string_view text,
                                  std::string name, Limits limits);
  // Errors: kCorrupt when a key stands twice (simdjson would silently give the first).
  static Result<JsonFields> from_object(simdjson::dom::object object, std::string name);

  const std::string& name() const { return name_; }
  // For walking over all fields.
  simdjson::dom::object object() const { return object_; }
  // Absent and null are the same: nullopt.
  std::optional<simdjson::dom::element> find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key).has_value(); }

  // Errors of all that follow: kInvalidArgument for a wrong type or a value out of range, and for a
  // required field that is missing.
  Result<std::int64_t> required_int(std::string_view key, IntRange range) const;
  Result<std::optional<std::int64_t>> optional_int(std::string_view key, IntRange range) const;
  Result<double> required_real(std::string_view key, RealRange range) const;
  Result<std::optional<double>> optional_real(std::string_view key, RealRange range) const;
  Result<bool> boolean(std::string_view key, bool otherwise) const;
  Result<std::optional<std::string_view>> optional_text(std::string_view key) const;
  Result<std::optional<JsonFields>> optional_object(std::string_view key) const;
  Result<std::optional<simdjson::dom::array>> optional_array(std::string_view key) const;

  // "config.json: num_hidden_layers is "x", expected an integer from 1 to 9", kInvalidArgument.
  Error wrong(std::string_view key, simdjson::dom::element value, std::string_view expected) const;
  Error missing(std::string_view key) const;

 private:
  JsonFields(simdjson::dom::object object, std::string name)
      : object_(object), name_(std::move(name)) {}

  simdjson::dom::object object_;
  std::string name_;
};

// The value as compact JSON, cut to a length that fits a message.
std::string brief_json(simdjson::dom::element value);

}  // namespace holdfast::config
