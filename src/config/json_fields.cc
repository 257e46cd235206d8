#include "config/json_fields.h"

#include <unordered_set>

#include "base/error.h"

namespace holdfast::config {
namespace {

constexpr std::size_t kBriefBytes = 60;

Result<std::int64_t> to_int(const JsonFields& fields, std::string_view key,
                            simdjson::dom::element value, IntRange range) {
  std::int64_t number = 0;
  if (!value.is_int64() || value.get(number) != simdjson::SUCCESS || number < range.least ||
      number > range.most) {
    return fields.wrong(key, value,
                        fmt::format("an integer from {} to {}", range.least, range.most));
  }
  return number;
}

Result<double> to_real(const JsonFields& fields, std::string_view key,
                       simdjson::dom::element value, RealRange range) {
  double number = 0;
  if (!value.is_number() || value.get(number) != simdjson::SUCCESS || !(number > range.above) ||
      !(number <= range.most)) {
    return fields.wrong(key, value,
                        fmt::format("a number above {}, at most {}", range.above, range.most));
  }
  return number;
}

}  // namespace

std::string brief_json(simdjson::dom::element value) {
  std::string text = simdjson::minify(value);
  if (text.size() <= kBriefBytes) return text;
  std::size_t end = kBriefBytes;
  // Not in the middle of a UTF-8 sequence: step back over continuation bytes.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return text.substr(0, end) + "...";
}

Result<JsonFields> JsonFields::parse(simdjson::dom::parser& parser, std::string_view text,
                                     std::string name, Limits limits) {
  if (text.size() > limits.max_bytes) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes long, the most is {}", name, text.size(),
                      limits.max_bytes);
  }
  simdjson::error_code error = parser.allocate(text.size(), limits.max_depth);
  simdjson::dom::element root;
  if (!error) error = parser.parse(text.data(), text.size()).get(root);
  if (error == simdjson::DEPTH_ERROR) {
    return make_error(ErrorCode::kCorrupt, "{}: JSON nested deeper than {} levels", name,
                      limits.max_depth);
  }
  if (error) {
    return make_error(ErrorCode::kCorrupt, "{}: not valid JSON: {}", name,
                      simdjson::error_message(error));
  }
  simdjson::dom::object object;
  if (root.get(object)) {
    return make_error(ErrorCode::kCorrupt, "{}: the top is {}, expected a JSON object", name,
                      brief_json(root));
  }
  return from_object(object, std::move(name));
}

Result<JsonFields> JsonFields::from_object(simdjson::dom::object object, std::string name) {
  std::unordered_set<std::string_view> seen;
  for (const auto field : object) {
    if (!seen.insert(field.key).second) {
      return make_error(ErrorCode::kCorrupt, "{}: key \"{}\" stands twice", name, field.key);
    }
  }
  return JsonFields(object, std::move(name));
}

std::optional<simdjson::dom::element> JsonFields::find(std::string_view key) const {
  simdjson::dom::element value;
  if (object_.at_key(key).get(value) || value.is_null()) return std::nullopt;
  return value;
}

Error JsonFields::wrong(std::string_view key, simdjson::dom::element value,
                        std::string_view expected) const {
  return make_error(ErrorCode::kInvalidArgument, "{}: {} is {}, expected {}", name_, key,
                    brief_json(value), expected);
}

Error JsonFields::missing(std::string_view key) const {
  return make_error(ErrorCode::kInvalidArgument, "{}: {} is missing", name_, key);
}

Result<std::int64_t> JsonFields::required_int(std::string_view key, IntRange range) const {
  HF_ASSIGN(const auto value, optional_int(key, range));
  if (!value) return missing(key);
  return *value;
}

Result<std::optional<std::int64_t>> JsonFields::optional_int(std::string_view key,
                                                             IntRange range) const {
  const auto value = find(key);
  if (!value) return std::optional<std::int64_t>();
  HF_ASSIGN(const std::int64_t number, to_int(*this, key, *value, range));
  return std::optional<std::int64_t>(number);
}

Result<double> JsonFields::required_real(std::string_view key, RealRange range) const {
  HF_ASSIGN(const auto value, optional_real(key, range));
  if (!value) return missing(key);
  return *value;
}

Result<std::optional<double>> JsonFields::optional_real(std::string_view key,
                                                        RealRange range) const {
  const auto value = find(key);
  if (!value) return std::optional<double>();
  HF_ASSIGN(const double number, to_real(*this, key, *value, range));
  return std::optional<double>(number);
}

Result<bool> JsonFields::boolean(std::string_view key, bool otherwise) const {
  const auto value = find(key);
  if (!value) return otherwise;
  bool truth = false;
  if (value->get(truth)) return wrong(key, *value, "true or false");
  return truth;
}

Result<std::optional<std::string_view>> JsonFields::optional_text(std::string_view key) const {
  const auto value = find(key);
  if (!value) return std::optional<std::string_view>();
  std::string_view text;
  if (value->get(text)) return wrong(key, *value, "a string");
  return std::optional<std::string_view>(text);
}

Result<std::optional<JsonFields>> JsonFields::optional_object(std::string_view key) const {
  const auto value = find(key);
  if (!value) return std::optional<JsonFields>();
  simdjson::dom::object object;
  if (value->get(object)) return wrong(key, *value, "an object");
  HF_ASSIGN(JsonFields fields, from_object(object, fmt::format("{}: {}", name_, key)));
  return std::optional<JsonFields>(std::move(fields));
}

Result<std::optional<simdjson::dom::array>> JsonFields::optional_array(std::string_view key) const {
  const auto value = find(key);
  if (!value) return std::optional<simdjson::dom::array>();
  simdjson::dom::array array;
  if (value->get(array)) return wrong(key, *value, "an array");
  return std::optional<simdjson::dom::array>(array);
}

}  // namespace holdfast::config
