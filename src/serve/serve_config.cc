// The options of `holdfast serve` from texts: values, the environment, and the TOML file.
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "serve/serve_options.h"
#include "serve/server.h"

namespace holdfast::serve {
namespace {

constexpr std::uintmax_t kMaxConfigBytes = 1 << 20;

// "raw_logprobs" and "processed_logprobs" are vLLM's words.
std::string without_vllm_suffix(const ServeOption& option, std::string text) {
  constexpr std::string_view kSuffix = "_logprobs";
  if (option.name == "logprobs-mode" && text.ends_with(kSuffix)) {
    text.resize(text.size() - kSuffix.size());
  }
  return text;
}

std::string kind_of(const OptionValue& value) {
  static constexpr const char* kKinds[] = {"true or false", "an integer", "a text",
                                           "a list of texts"};
  return kKinds[value.index()];
}

bool holds_zero_byte(const OptionValue& value) {
  const auto holds = [](const std::string& text) { return text.find('\0') != std::string::npos; };
  if (const auto* text = std::get_if<std::string>(&value)) return holds(*text);
  const auto* texts = std::get_if<std::vector<std::string>>(&value);
  return texts != nullptr && std::any_of(texts->begin(), texts->end(), holds);
}

// A client that means it as its key sends something else: blanks around it go on the way, and the
// header of a request ends at a line end. An empty one is none.
Status check_token(std::string_view name, const std::string& token) {
  const auto unusable = [](unsigned char c) { return c <= ' ' || c == 0x7F; };
  if (std::none_of(token.begin(), token.end(), unusable)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "{} holds a blank or a control character, which no bearer token may: give one "
                    "of visible characters", name);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// How many letters must change to turn one into the other. (Levenshtein 1966)
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string nearest_names(std::string_view name) {
  std::vector<std::pair<std::size_t, std::string>> names;
  for (const ServeOption& option : serve_options()) {
    names.emplace_back(edit_distance(name.substr(0, 64), option.name), option.name);
  }
  std::sort(names.begin(), names.end());
  return fmt::format("{}, {}, {}", names[0].second, names[1].second, names[2].second);
}

// The library reports by exceptions; they end here.
Result<toml::table> parse_toml(const std::string& path) {
  try {
    return toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    return make_error(ErrorCode::kCorrupt, "{}:{}:{}: {}", path, at.line, at.column,
                      error.description());
  }
}

Result<OptionValue> to_value(const toml::node& node, const std::string& where) {
  if (const auto* value = node.as_boolean()) return OptionValue(value->get());
  if (const auto* value = node.as_integer()) return OptionValue(value->get());
  if (const auto* value = node.as_string()) return OptionValue(value->get());
  if (const auto* array = node.as_array()) {
    std::vector<std::string> texts;
    for (const toml::node& element : *array) {
      if (!element.is_string()) {
        return make_error(ErrorCode::kInvalidArgument, "{}: the list holds what is no text", where);
      }
      texts.push_back(element.as_string()->get());
    }
    return OptionValue(std::move(texts));
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "{} is neither true or false, an integer, a text nor a list (there are no "
                    "sections)", where);
}

}  // namespace

Status set_serve_option(ServeOptions& options, const ServeOption& option, OptionValue value,
                        std::string_view where) {
  const OptionValue now = option.get(options);
  if (value.index() != now.index()) {
    return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected {}", where, kind_of(value),
                      kind_of(now));
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    if (*integer < option.least || *integer > option.most) {
      return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected an integer from {} to {}",
                        where, *integer, option.least, option.most);
    }
  }
  if (holds_zero_byte(value)) {
    return make_error(ErrorCode::kInvalidArgument, "{} holds a zero byte, which no text here may",
                      where);
  }
  if (auto* text = std::get_if<std::string>(&value)) {
    *text = without_vllm_suffix(option, std::move(*text));
    const auto& choices = option.choices;
    if (!choices.empty() && std::find(choices.begin(), choices.end(), *text) == choices.end()) {
      const bool may_lack = choices.front().empty();
      return make_error(ErrorCode::kInvalidArgument, "{} is \"{}\", expected one of {}{}", where,
                        *text, fmt::join(choices.begin() + (may_lack ? 1 : 0), choices.end(), ", "),
                        may_lack ? ", or nothing" : "");
    }
  }
  option.set(options, std::move(value));
  return {};
}

Status set_serve_option(ServeOptions& options, const ServeOption& option, const std::string& text,
                        std::string_view where) {
  const OptionValue now = option.get(options);
  if (std::holds_alternative<std::string>(now)) {
    return set_serve_option(options, option, OptionValue(text), where);
  }
  if (std::holds_alternative<std::vector<std::string>>(now)) {
    return set_serve_option(options, option, OptionValue(split(text)), where);
  }
  if (std::holds_alternative<bool>(now)) {
    const bool yes = text == "true" || text == "1" || text == "yes";
    if (yes || text == "false" || text == "0" || text == "no") {
      return set_serve_option(options, option, OptionValue(yes), where);
    }
    return make_error(ErrorCode::kInvalidArgument, "{} is \"{}\", expected true or false", where,
                      text);
  }
  std::int64_t integer = 0;
  const char* const end = text.data() + text.size();
  const auto [at, failure] = std::from_chars(text.data(), end, integer);
  if (failure != std::errc() || at != end) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is \"{}\", expected an integer from {} to {}", where, text, option.least,
                      option.most);
  }
  return set_serve_option(options, option, OptionValue(integer), where);
}

Status read_environment(const std::function<const char*(const char*)>& variable,
                        ServeOptions& options) {
  for (const ServeOption& option : serve_options()) {
    const std::string name = environment_name(option);
    const char* const text = variable(name.c_str());
    if (text != nullptr) HF_TRY(set_serve_option(options, option, std::string(text), name));
  }
  return {};
}

Status read_config_file(const std::string& path, ServeOptions& options) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    return make_error(ErrorCode::kNotFound, "the configuration file {} cannot be read: {}", path,
                      error.message());
  }
  if (bytes > kMaxConfigBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the configuration file {} has {} bytes, at most {} are read", path, bytes,
                      kMaxConfigBytes);
  }
  HF_ASSIGN(const toml::table table, parse_toml(path));
  for (const auto& [key, node] : table) {
    const std::string where =
        fmt::format("{}:{}: {}", path, node.source().begin.line, key.str());
    const ServeOption* const option = find_serve_option(key.str());
    if (option == nullptr) {
      return make_error(ErrorCode::kInvalidArgument, "{} is no option; the nearest are {}", where,
                        nearest_names(key.str()));
    }
    HF_ASSIGN(OptionValue value, to_value(node, where));
    HF_TRY(set_serve_option(options, *option, std::move(value), where));
  }
  return {};
}

std::string config_text(const ServeOptions& options) {
  std::string text, group;
  for (const ServeOption& option : serve_options()) {
    if (option.group != group) {
      text += fmt::format("{}# {}\n", group.empty() ? "" : "\n", option.group);
      group = option.group;
    }
    const OptionValue value = option.get(options);
    if (option.secret) {
      text += fmt::format("# {} is {}\n", option.name,
                          std::get<std::string>(value).empty() ? "not set" : "set, and not shown");
      continue;
    }
    toml::table line;
    std::visit(
        [&](const auto& held) {
          if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::vector<std::string>>) {
            toml::array array;
            for (const std::string& element : held) array.push_back(element);
            line.insert(option.name, std::move(array));
          } else {
            line.insert(option.name, held);
          }
        },
        value);
    std::ostringstream out;
    out << line;
    text += out.str() + "\n";
  }
  return text;
}

Status check_serve_options(const ServeOptions& options) {
  if (options.engine.model_directory.empty()) {
    return Error(ErrorCode::kInvalidArgument,
                 "no model is named: holdfast serve MODEL, HOLDFAST_MODEL, or model in the "
                 "configuration file");
  }
  const bool shared = options.port != 0 && options.port == options.control_port;
  if (shared && options.host != options.control_host) {
    return make_error(ErrorCode::kInvalidArgument,
                      "port and control-port are both {}, but host is {} and control-host is {}: "
                      "one listener has one address", options.port, options.host,
                      options.control_host);
  }
  HF_TRY(check_token("api-key", options.api_key));
  HF_TRY(check_token("control-token", options.control_token));
  if (!is_loopback(options.control_host) && options.control_token.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "control-host is {}, which others can reach, and there is no control-token: "
                      "whoever reaches it could replace the weights. Give a token, or 127.0.0.1",
                      options.control_host);
  }
  for (const std::string& root : options.model_roots) {
    std::error_code error;
    if (!std::filesystem::is_directory(root, error)) {
      return make_error(ErrorCode::kInvalidArgument, "model-roots names {}, which is no directory",
                        root);
    }
  }
  return {};
}

}  // namespace holdfast::serve
