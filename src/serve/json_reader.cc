#include "serve/json_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "serve/json_writer.h"

namespace holdfast::serve {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;
static_assert(sizeof(element) == 16 && std::is_trivially_copyable_v<element>);

element as_element(const std::array<std::uint64_t, 2>& raw) { return std::bit_cast<element>(raw); }
JsonValue as_value(element e) {
  const auto raw = std::bit_cast<std::array<std::uint64_t, 2>>(e);
  return std::bit_cast<JsonValue>(raw);
}

constexpr std::size_t kBriefBytes = 48;

// Cut between two characters.
std::string shortened(std::string_view text) {
  if (text.size() <= kBriefBytes) return std::string(text);
  std::size_t end = kBriefBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string quoted(std::string_view text) {
  JsonWriter out;
  out.value(shortened(text));
  return out.take();
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

// ------------------------------------------------------------------------------ values

JsonKind JsonValue::kind() const {
  switch (as_element(raw_).type()) {
    case element_type::ARRAY: return JsonKind::kArray;
    case element_type::OBJECT: return JsonKind::kObject;
    case element_type::STRING: return JsonKind::kString;
    case element_type::BOOL: return JsonKind::kBoolean;
    case element_type::NULL_VALUE: return JsonKind::kNull;
    case element_type::INT64:
    case element_type::UINT64:
    case element_type::DOUBLE: break;
  }
  return JsonKind::kNumber;
}

std::optional<bool> JsonValue::boolean() const {
  bool truth = false;
  if (as_element(raw_).get(truth)) return std::nullopt;
  return truth;
}

std::optional<std::int64_t> JsonValue::integer() const {
  const element e = as_element(raw_);
  std::int64_t number = 0;
  if (!e.get(number)) return number;
  double real = 0;
  if (e.type() != element_type::DOUBLE || e.get(real)) return std::nullopt;
  // Beyond 2^53 a double no longer says which integer was meant.
  if (std::trunc(real) != real || std::abs(real) > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(real);
}

std::optional<std::uint64_t> JsonValue::natural() const {
  std::uint64_t number = 0;
  if (as_element(raw_).get(number)) return std::nullopt;
  return number;
}

std::optional<double> JsonValue::real() const {
  double number = 0;
  if (as_element(raw_).get(number)) return std::nullopt;
  return number;
}

std::optional<std::string_view> JsonValue::string() const {
  std::string_view text;
  if (as_element(raw_).get(text)) return std::nullopt;
  return text;
}

std::size_t JsonValue::size() const {
  const element e = as_element(raw_);
  // simdjson's own count saturates at 2^24 - 1.
  if (e.type() == element_type::ARRAY) {
    std::size_t count = 0;
    for ([[maybe_unused]] const element each : simdjson::dom::array(e)) ++count;
    return count;
  }
  return e.type() == element_type::OBJECT ? simdjson::dom::object(e).size() : 0;
}

std::optional<JsonValue> JsonValue::first() const {
  element each;
  if (as_element(raw_).at(0).get(each)) return std::nullopt;
  return as_value(each);
}

std::vector<JsonValue> JsonValue::elements() const {
  std::vector<JsonValue> all;
  simdjson::dom::array array;
  if (as_element(raw_).get(array)) return all;
  for (const element each : array) all.push_back(as_value(each));
  return all;
}

std::vector<std::pair<std::string_view, JsonValue>> JsonValue::members() const {
  std::vector<std::pair<std::string_view, JsonValue>> all;
  simdjson::dom::object object;
  if (as_element(raw_).get(object)) return all;
  for (const auto& [name, each] : object) all.emplace_back(name, as_value(each));
  return all;
}

std::optional<std::size_t> JsonValue::ids_into(std::vector<std::int32_t>& into,
                                               IntRange range) const {
  simdjson::dom::array array;
  if (as_element(raw_).get(array)) return 0;
  std::size_t index = 0;
  for (const element each : array) {
    const std::optional<std::int64_t> id = as_value(each).integer();
    if (!id || *id < range.low || *id > range.high) return index;
    into.push_back(static_cast<std::int32_t>(*id));
    ++index;
  }
  return std::nullopt;
}

std::string JsonValue::brief() const {
  switch (kind()) {
    case JsonKind::kString: return quoted(*string());
    case JsonKind::kArray: return fmt::format("an array of {}", size());
    case JsonKind::kObject: return fmt::format("an object of {}", size());
    case JsonKind::kNull:
    case JsonKind::kBoolean:
    case JsonKind::kNumber: break;
  }
  return text();
}

std::string JsonValue::text() const { return simdjson::minify(as_element(raw_)); }

// ------------------------------------------------------------------------------ document

struct JsonDocument::Parser {
  simdjson::dom::parser parser;
};

JsonDocument::JsonDocument() : parser_(std::make_unique<Parser>()) {}
JsonDocument::~JsonDocument() = default;

std::optional<ApiError> JsonDocument::parse(std::string_view body, JsonDocument& into) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return ApiError{.message = "the body is empty; expected a JSON object"};
  }
  simdjson::dom::parser& parser = into.parser_->parser;
  simdjson::error_code code = parser.allocate(body.size(), kMaxJsonDepth);
  element root;
  if (!code) code = parser.parse(body.data(), body.size()).get(root);
  if (code == simdjson::DEPTH_ERROR) {
    return ApiError{.message = fmt::format("the body is JSON deeper than {} levels, the most that "
                                           "are read",
                                           kMaxJsonDepth)};
  }
  if (code == simdjson::UTF8_ERROR) return ApiError{.message = "the body is not UTF-8"};
  if (code == simdjson::MEMALLOC || code == simdjson::CAPACITY) {
    return ApiError{.status = 413,
                    .message = fmt::format("the body of {} bytes is too large", body.size())};
  }
  if (code == simdjson::NUMBER_ERROR) {
    return ApiError{.message = "the body is not JSON as it is read here: a number is malformed, or "
                               "does not fit in 64 bits"};
  }
  if (code) {
    return ApiError{.message = fmt::format("the body is not JSON: {}",
                                           simdjson::error_message(code))};
  }
  into.root_ = as_value(root);
  return std::nullopt;
}

void RequestErrors::add(std::string param, std::string message) {
  add({.status = 400, .message = std::move(message), .param = std::move(param)});
}

void RequestErrors::add(ApiError error) {
  if (!first_) first_ = std::move(error);
}

// ------------------------------------------------------------------------------ fields

FieldReader::FieldReader(JsonValue object, std::string path, RequestErrors& errors)
    : path_(std::move(path)), errors_(errors) {
  const std::string who = path_.empty() ? "the body" : path_;
  if (object.kind() != JsonKind::kObject) {
    errors_.add(path_, fmt::format("{} is {}; expected an object", who, object.brief()));
    return;
  }
  const auto members = object.members();
  if (members.size() > kMaxJsonFields) {
    errors_.add(path_, fmt::format("{} has {} fields; at most {}", who, members.size(),
                                   kMaxJsonFields));
    return;
  }
  for (const auto& [name, value] : members) fields_.push_back({.name = name, .value = value});
  std::sort(fields_.begin(), fields_.end(),
            [](const Field& a, const Field& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(
      fields_.begin(), fields_.end(),
      [](const Field& a, const Field& b) { return a.name == b.name; });
  if (twice != fields_.end()) {
    errors_.add(path_of(twice->name), fmt::format("{} comes twice in {}; expected once",
                                                  shortened(twice->name), who));
  }
}

std::string FieldReader::path_of(std::string_view name) const {
  const std::string last = shortened(name);
  return path_.empty() ? last : path_ + "." + last;
}

FieldReader::Field* FieldReader::find(std::string_view name) {
  names_.push_back(name);
  const auto at = std::lower_bound(fields_.begin(), fields_.end(), name,
                                   [](const Field& f, std::string_view n) { return f.name < n; });
  if (at == fields_.end() || at->name != name) return nullptr;
  at->known = true;
  return at->value.is_null() || errors_.any() ? nullptr : &*at;
}

bool FieldReader::has(std::string_view name) const {
  const auto is_it = [name](const Field& f) { return f.name == name && !f.value.is_null(); };
  return std::any_of(fields_.begin(), fields_.end(), is_it);
}

std::optional<JsonValue> FieldReader::value(std::string_view name) {
  const Field* field = find(name);
  if (field == nullptr) return std::nullopt;
  return field->value;
}

void FieldReader::wrong(std::string_view name, const JsonValue& value, std::string_view expected) {
  const std::string path = path_of(name);
  errors_.add(path, fmt::format("{} is {}; expected {}", path, value.brief(), expected));
}

void FieldReader::fail(std::string_view name, const std::string& message) {
  errors_.add(path_of(name), message);
}

bool FieldReader::boolean(std::string_view name, bool& into) {
  const auto found = value(name);
  if (!found) return false;
  const auto truth = found->boolean();
  if (truth) into = *truth;
  if (!truth) wrong(name, *found, "true or false");
  return truth.has_value();
}

bool FieldReader::integer(std::string_view name, std::int64_t& into, IntRange range) {
  const auto found = value(name);
  if (!found) return false;
  const auto number = found->integer();
  const bool good = number && *number >= range.low && *number <= range.high;
  if (good) into = *number;
  if (!good) {
    wrong(name, *found,
          range.high == std::numeric_limits<std::int64_t>::max()
              ? fmt::format("an integer, {} or more", range.low)
              : fmt::format("an integer, {} to {}", range.low, range.high));
  }
  return good;
}

bool FieldReader::real(std::string_view name, float& into, RealRange range) {
  const auto found = value(name);
  if (!found) return false;
  const auto number = found->real();
  // What a float makes of it counts: a top_p of 1e-60 would be 0.
  const float rounded = number ? static_cast<float>(*number) : 0.0f;
  const bool good = number && *number >= range.low && *number <= range.high &&
                    !(range.low_excluded && static_cast<double>(rounded) <= range.low);
  if (good) into = rounded;
  if (!good) {
    wrong(name, *found, fmt::format("a number{} {} to {}", range.low_excluded ? " above" : ",",
                                    range.low, range.high));
  }
  return good;
}

bool FieldReader::string(std::string_view name, std::string& into, std::size_t max_bytes) {
  const auto found = value(name);
  if (!found) return false;
  const auto text = found->string();
  const bool good = text && text->size() <= max_bytes;
  if (good) into = *text;
  if (!text) wrong(name, *found, "a string");
  if (text && !good) {
    fail(name, fmt::format("{} has {} bytes; at most {}", path_of(name), text->size(), max_bytes));
  }
  return good;
}

bool FieldReader::one_of(std::string_view name, std::string& into,
                         std::initializer_list<std::string_view> accepted) {
  const auto found = value(name);
  if (!found) return false;
  const auto text = found->string();
  const bool good = text && std::find(accepted.begin(), accepted.end(), *text) != accepted.end();
  if (good) into = *text;
  if (!good) {
    std::string all;
    for (const std::string_view each : accepted) {
      all += (all.empty() ? "\"" : ", \"") + std::string(each) + "\"";
    }
    wrong(name, *found, "one of " + all);
  }
  return good;
}

bool FieldReader::strings(std::string_view name, std::vector<std::string>& into,
                          std::size_t max_count) {
  const auto found = value(name);
  if (!found) return false;
  constexpr std::string_view kExpected = "a string or an array of strings, none of them empty";
  std::vector<JsonValue> all = found->elements();
  if (found->kind() == JsonKind::kString) all = {*found};
  if (found->kind() != JsonKind::kString && found->kind() != JsonKind::kArray) {
    wrong(name, *found, kExpected);
    return false;
  }
  if (all.size() > max_count) {
    fail(name, fmt::format("{} has {} strings; at most {}", path_of(name), all.size(), max_count));
    return false;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto text = all[i].string();
    if (!text || text->empty()) {
      wrong(found->kind() == JsonKind::kArray ? fmt::format("{}[{}]", name, i) : std::string(name),
            all[i], kExpected);
      return false;
    }
    into.emplace_back(*text);
  }
  return true;
}

bool FieldReader::ids(std::string_view name, std::vector<std::int32_t>& into,
                      std::size_t max_count, IntRange range) {
  const auto found = value(name);
  if (!found) return false;
  if (found->kind() != JsonKind::kArray) {
    wrong(name, *found, "an array of integers");
    return false;
  }
  if (const std::size_t count = found->size(); count > max_count) {
    fail(name, fmt::format("{} has {} entries; at most {}", path_of(name), count, max_count));
    return false;
  }
  if (const auto bad = found->ids_into(into, range)) {
    wrong(fmt::format("{}[{}]", name, *bad), found->elements()[*bad],
          fmt::format("an integer, {} to {}", range.low, range.high));
    return false;
  }
  return true;
}

void FieldReader::ignore(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) find(name);
}

void FieldReader::refuse(std::string_view name, std::string_view why, double nothing) {
  const auto found = value(name);
  if (!found) return;
  bool asks = true;
  switch (found->kind()) {
    case JsonKind::kNull: asks = false; break;
    case JsonKind::kBoolean: asks = *found->boolean(); break;
    case JsonKind::kNumber: asks = *found->real() != 0 && *found->real() != nothing; break;
    case JsonKind::kString: asks = !found->string()->empty(); break;
    case JsonKind::kArray:
    case JsonKind::kObject: asks = found->size() != 0; break;
  }
  if (!asks) return;
  const std::string path = path_of(name);
  errors_.add(path, fmt::format("{} is {}; {}", path, found->brief(), why));
}

void FieldReader::finish() {
  if (errors_.any()) return;
  for (const Field& field : fields_) {
    if (field.known || field.value.is_null()) continue;
    std::string_view nearest;
    std::size_t least = 4;  // farther than three edits is not what was meant
    for (const std::string_view name : names_) {
      if (field.name.size() > 64) break;
      const std::size_t distance = edit_distance(field.name, name);
      if (distance < least) {
        least = distance;
        nearest = name;
      }
    }
    const std::string path = path_of(field.name);
    errors_.add(path, fmt::format("{} is not a field that is known here{}", path,
                                  nearest.empty() ? std::string()
                                                  : fmt::format("; did you mean {}?", nearest)));
    return;
  }
}

}  // namespace holdfast::serve
