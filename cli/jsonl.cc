#include "cli/jsonl.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr std::size_t kMaxShownBytes = 60;

// Cut at a character's border; for messages.
std::string shorten(std::string text) {
  if (text.size() <= kMaxShownBytes) return text;
  std::size_t end = kMaxShownBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text + "...";
}

std::string show(const FieldValue& value) {
  struct Visitor {
    std::string operator()(Null) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(std::int64_t n) const { return std::to_string(n); }
    std::string operator()(std::uint64_t n) const { return std::to_string(n); }
    std::string operator()(double x) const { return fmt::format("{}", x); }
    std::string operator()(const std::string& s) const { return json_quote(shorten(s)); }
    std::string operator()(const Ids& ids) const {
      return fmt::format("an array of {} integers", ids.size());
    }
  };
  return shorten(std::visit(Visitor{}, value));
}

// nlohmann's messages begin with "[json.exception.parse_error.101] ".
std::string plain_message(const nlohmann::json::exception& error) {
  std::string_view text = error.what();
  if (const std::size_t end = text.find("] "); end != text.npos) text.remove_prefix(end + 2);
  return std::string(text);
}

// Collects one flat object while the parser runs, and stops it at the first thing that does not
// belong. `message` says why.
class FlatObjectReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<std::pair<std::string, FieldValue>> fields;
  std::string message;

  bool null() override { return scalar(Null{}); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return number(static_cast<std::int64_t>(value));
    }
    return scalar(std::uint64_t{value});
  }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t&) override { return stop("binary data"); }

  bool start_object(std::size_t) override {
    if (depth_ > 0) return stop(where() + " is an object, expected a value or an array");
    ++depth_;
    return true;
  }
  bool key(string_t& name) override {
    for (const auto& [known, value] : fields) {
      if (known == name) return stop("field " + json_quote(shorten(name)) + " stands twice");
    }
    if (fields.size() >= kMaxFields) return stop(fmt::format("more than {} fields", kMaxFields));
    fields.emplace_back(std::move(name), Null{});
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return stop("an array; expected an object");
    if (depth_ >= kMaxJsonDepth) return stop(where() + " is an array in an array");
    ++depth_;
    fields.back().second = Ids{};
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    return stop(fmt::format("not JSON at byte {}: {}", position, plain_message(error)));
  }

 private:
  std::string where() const { return fields.empty() ? "the line" : fields.back().first; }
  bool stop(std::string why) {
    message = std::move(why);
    return false;
  }
  bool number(std::int64_t value) {
    if (depth_ < kMaxJsonDepth) return scalar(value);
    Ids& ids = std::get<Ids>(fields.back().second);
    if (ids.size() >= kMaxArrayItems) {
      return stop(fmt::format("{} holds more than {} items", where(), kMaxArrayItems));
    }
    ids.push_back(value);
    return true;
  }
  bool scalar(FieldValue value) {
    if (depth_ == 0) return stop(show(value) + "; expected an object");
    if (depth_ >= kMaxJsonDepth) {
      const std::size_t index = std::get<Ids>(fields.back().second).size();
      return stop(fmt::format("{}[{}] is {}, expected an integer", where(), index, show(value)));
    }
    fields.back().second = std::move(value);
    return true;
  }
  int depth_ = 0;
};

Result<std::string> read_all(const std::string& path) {
  const bool is_stdin = path == "-";
  const int fd = is_stdin ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return format_error(ErrorCode::kIo, "{}: {}", path, std::strerror(errno));
  std::string text;
  std::vector<char> block(256 << 10);
  int failure = 0;
  for (;;) {
    const ssize_t n = ::read(fd, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failure = errno;
    if (n <= 0) break;
    text.append(block.data(), static_cast<std::size_t>(n));
    if (text.size() > kMaxInputBytes) break;
  }
  if (!is_stdin) ::close(fd);
  if (failure != 0) return format_error(ErrorCode::kIo, "{}: {}", path, std::strerror(failure));
  if (text.size() > kMaxInputBytes) {
    return format_error(ErrorCode::kResourceExhausted, "{}: more than {} bytes; split the input",
                        path, kMaxInputBytes);
  }
  return text;
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

const FieldValue* LineObject::find(std::string_view name) const {
  for (const auto& [field, value] : fields_) {
    if (field == name) return std::holds_alternative<Null>(value) ? nullptr : &value;
  }
  return nullptr;
}

Error LineObject::error(std::string_view message) const {
  return format_error(ErrorCode::kInvalidArgument, "{}: {}", place_, message);
}

Error LineObject::wrong(std::string_view name, std::string_view expected) const {
  const FieldValue* value = find(name);
  return error(fmt::format("{} is {}, expected {}", name, value ? show(*value) : "missing",
                           expected));
}

Status LineObject::allow_only(std::span<const std::string_view> known) const {
  for (const auto& [field, value] : fields_) {
    if (std::find(known.begin(), known.end(), field) != known.end()) continue;
    return error(fmt::format("unknown field {}; known are {}", json_quote(shorten(field)),
                             fmt::join(known, ", ")));
  }
  return {};
}

Result<std::optional<std::string>> LineObject::text(std::string_view name) const {
  const FieldValue* value = find(name);
  if (value == nullptr) return std::optional<std::string>{};
  if (const auto* text = std::get_if<std::string>(value)) return std::optional(*text);
  return wrong(name, "a string");
}

Result<std::optional<bool>> LineObject::boolean(std::string_view name) const {
  const FieldValue* value = find(name);
  if (value == nullptr) return std::optional<bool>{};
  if (const auto* flag = std::get_if<bool>(value)) return std::optional(*flag);
  return wrong(name, "true or false");
}

Result<std::optional<std::int64_t>> LineObject::integer(std::string_view name,
                                                        IntRange range) const {
  const FieldValue* value = find(name);
  if (value == nullptr) return std::optional<std::int64_t>{};
  const auto* number = std::get_if<std::int64_t>(value);
  if (number != nullptr && *number >= range.least && *number <= range.most) {
    return std::optional(*number);
  }
  return wrong(name, fmt::format("an integer from {} to {}", range.least, range.most));
}

Result<std::optional<std::uint64_t>> LineObject::unsigned_integer(std::string_view name) const {
  const FieldValue* value = find(name);
  if (value == nullptr) return std::optional<std::uint64_t>{};
  if (const auto* large = std::get_if<std::uint64_t>(value)) return std::optional(*large);
  const auto* number = std::get_if<std::int64_t>(value);
  if (number != nullptr && *number >= 0) return std::optional(static_cast<std::uint64_t>(*number));
  return wrong(name, "an integer from 0 to 18446744073709551615");
}

Result<std::optional<double>> LineObject::real(std::string_view name) const {
  const FieldValue* value = find(name);
  if (value == nullptr) return std::optional<double>{};
  if (const auto* x = std::get_if<double>(value)) return std::optional(*x);
  if (const auto* n = std::get_if<std::int64_t>(value)) {
    return std::optional(static_cast<double>(*n));
  }
  if (const auto* n = std::get_if<std::uint64_t>(value)) {
    return std::optional(static_cast<double>(*n));
  }
  return wrong(name, "a number");
}

Result<std::optional<std::vector<std::int32_t>>> LineObject::token_ids(
    std::string_view name) const {
  const FieldValue* value = find(name);
  if (value == nullptr) return std::optional<std::vector<std::int32_t>>{};
  const auto* ids = std::get_if<Ids>(value);
  if (ids == nullptr) return wrong(name, "an array of token ids");
  std::vector<std::int32_t> result;
  result.reserve(ids->size());
  for (std::size_t i = 0; i < ids->size(); ++i) {
    const std::int64_t id = (*ids)[i];
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
      return error(fmt::format("{}[{}] is {}, expected a token id (0 or more)", name, i, id));
    }
    result.push_back(static_cast<std::int32_t>(id));
  }
  return std::optional(std::move(result));
}

Result<std::optional<std::string>> LineObject::label(std::string_view name) const {
  const FieldValue* value = find(name);
  if (value == nullptr) return std::optional<std::string>{};
  if (const auto* text = std::get_if<std::string>(value)) return std::optional(json_quote(*text));
  if (const auto* n = std::get_if<std::int64_t>(value)) return std::optional(std::to_string(*n));
  return wrong(name, "a string or an integer");
}

Result<LineObject> parse_json_line(std::string_view text, std::string place) {
  FlatObjectReader reader;
  const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  if (!parsed || !reader.message.empty()) {
    return format_error(ErrorCode::kInvalidArgument, "{}: {}", place, reader.message);
  }
  return LineObject(std::move(place), std::move(reader.fields));
}

Result<std::vector<LineObject>> read_json_lines(const std::string& path) {
  HF_ASSIGN(const std::string all, read_all(path));
  const std::string name = path == "-" ? "stdin" : path;
  std::string_view rest = all;
  std::vector<LineObject> lines;
  for (std::size_t number = 1; !is_blank(rest); ++number) {
    const std::string_view text = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), text.size() + 1));
    std::string place = fmt::format("{}:{}", name, number);
    if (number > kMaxLines) {
      return format_error(ErrorCode::kResourceExhausted, "{}: more than {} lines; split the input",
                          place, kMaxLines);
    }
    if (text.size() > kMaxLineBytes) {
      return format_error(ErrorCode::kResourceExhausted, "{}: {} bytes in one line, at most {}",
                          place, text.size(), kMaxLineBytes);
    }
    if (is_blank(text)) {
      return format_error(ErrorCode::kInvalidArgument,
                          "{}: an empty line; each line holds one JSON object", place);
    }
    HF_ASSIGN(LineObject object, parse_json_line(text, std::move(place)));
    lines.push_back(std::move(object));
  }
  if (lines.empty()) {
    return format_error(ErrorCode::kInvalidArgument, "{}: no lines in it", name);
  }
  return lines;
}

std::string json_quote(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

namespace {

template <typename Number>
void append_number(std::string& out, Number value) {
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) {
      out += "null";
      return;
    }
  }
  char digits[64];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  (void)error;  // 64 characters hold every number
  out.append(digits, end);
}

template <typename Number>
void append_numbers(std::string& out, std::span<const Number> values) {
  out += '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, values[i]);
  }
  out += ']';
}

}  // namespace

std::string& JsonObject::key(std::string_view name) {
  if (text_.size() > 1) text_ += ',';
  text_ += json_quote(name);
  text_ += ':';
  return text_;
}

JsonObject& JsonObject::add(std::string_view name, std::string_view text) {
  key(name) += json_quote(text);
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, const char* text) {
  return add(name, std::string_view(text));
}
JsonObject& JsonObject::add(std::string_view name, bool value) {
  key(name) += value ? "true" : "false";
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::int64_t value) {
  append_number(key(name), value);
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::uint64_t value) {
  append_number(key(name), value);
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, double value) {
  append_number(key(name), value);
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::span<const std::int32_t> values) {
  append_numbers(key(name), values);
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::span<const std::uint64_t> values) {
  append_numbers(key(name), values);
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::span<const float> values) {
  append_numbers(key(name), values);
  return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::span<const std::string> texts) {
  std::string& out = key(name);
  out += '[';
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out += ',';
    out += json_quote(texts[i]);
  }
  out += ']';
  return *this;
}
JsonObject& JsonObject::add_raw(std::string_view name, std::string_view json) {
  key(name) += json;
  return *this;
}

std::string JsonObject::take() {
  text_ += '}';
  return std::move(text_);
}

}  // namespace holdfast::cli
