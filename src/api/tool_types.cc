#include "api/tool_types.h"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace holdfast::api {
namespace {

namespace dom = simdjson::dom;

std::optional<dom::element> field(dom::element schema, std::string_view key) {
  dom::element value;
  if (schema[key].get(value) != simdjson::SUCCESS) return std::nullopt;
  return value;
}

std::optional<std::string_view> text_field(dom::element schema, std::string_view key) {
  std::string_view text;
  if (schema[key].get(text) != simdjson::SUCCESS) return std::nullopt;
  return text;
}

std::optional<dom::array> array_field(dom::element schema, std::string_view key) {
  dom::array array;
  if (schema[key].get(array) != simdjson::SUCCESS) return std::nullopt;
  return array;
}

std::vector<std::string_view> strings_of(std::optional<dom::array> array) {
  std::vector<std::string_view> strings;
  if (!array) return strings;
  for (const dom::element element : *array) {
    std::string_view text;
    if (element.get(text) == simdjson::SUCCESS) strings.push_back(text);
  }
  return strings;
}

bool is_nullable(dom::element schema) {
  bool nullable = false;
  return schema["nullable"].get(nullable) == simdjson::SUCCESS && nullable;
}

// Writes types at the end of a text. Depth is bounded by the parser (kMaxSchemaDepth).
class TypeWriter {
 public:
  explicit TypeWriter(std::string& out) : out_(out) {}

  // What begins on new lines stands at `indent`.
  void type(dom::element schema, const std::string& indent) {
    if (const auto variants = array_field(schema, "oneOf")) {
      for (const dom::element variant : *variants) {
        out_ += "\n" + indent + " | ";
        type_or_null(variant, indent + "   ");
        remark(text_field(variant, "description"), default_of(variant, false));
      }
      return;
    }
    if (const auto name = text_field(schema, "type")) return named_type(*name, schema, indent);
    std::string joined;
    for (const std::string_view name : strings_of(array_field(schema, "type"))) {
      joined += fmt::format("{}{}", joined.empty() ? "" : " | ",
                            name == "integer" ? "number" : name);
    }
    out_ += joined.empty() ? "any" : joined;
  }

 private:
  // A type that says "null" anywhere is taken to allow it already.
  void type_or_null(dom::element schema, const std::string& indent) {
    const std::size_t begin = out_.size();
    type(schema, indent);
    const bool says_null = out_.find("null", begin) != std::string::npos;
    if (is_nullable(schema) && !says_null) out_ += " | null";
  }

  void named_type(std::string_view name, dom::element schema, const std::string& indent) {
    if (name == "object") return object(schema, indent);
    if (name == "array") {
      const auto items = field(schema, "items");
      if (items) type(*items, indent);
      out_ += items ? "[]" : "Array<any>";
    } else if (name == "string") {
      std::string joined;
      for (const std::string_view value : strings_of(array_field(schema, "enum"))) {
        joined += fmt::format("{}\"{}\"", joined.empty() ? "" : " | ", value);
      }
      out_ += joined.empty() ? "string" : joined;
    } else if (name == "number" || name == "integer") {
      out_ += "number";
    } else {
      out_ += name == "boolean" ? "boolean" : "any";
    }
  }

  void object(dom::element schema, const std::string& indent) {
    if (const auto text = text_field(schema, "description")) comment(indent, *text);
    out_ += "{\n";
    dom::object properties;
    if (schema["properties"].get(properties) == simdjson::SUCCESS) {
      const auto required = strings_of(array_field(schema, "required"));
      for (const auto [key, value] : properties) {
        const bool needed = std::find(required.begin(), required.end(), key) != required.end();
        property(fmt::format("{}{}{}:", indent, key, needed ? "" : "?"), value, indent);
      }
    }
    out_ += indent + "}";
  }

  // `head`: the property's name and colon, indented.
  void property(const std::string& head, dom::element schema, const std::string& indent) {
    if (const auto title = text_field(schema, "title")) {
      comment(indent, *title);
      out_ += indent + "//\n";
    }
    const auto variants = array_field(schema, "oneOf");
    if (variants) return union_property(head, schema, *variants, indent);
    if (const auto text = text_field(schema, "description")) comment(indent, *text);
    examples(schema, indent);
    out_ += head + " ";
    type_or_null(schema, indent + "    ");
    out_ += ',';
    remark(std::nullopt, default_of(schema, true));
    out_ += '\n';
  }

  void union_property(const std::string& head, dom::element schema, dom::array variants,
                      const std::string& indent) {
    examples(schema, indent);
    const auto text = text_field(schema, "description");
    if (text && text != first_description(variants)) comment(indent, *text);
    if (const auto value = default_of(schema, true)) comment(indent, "default: " + *value);
    out_ += head;
    bool first = true;
    for (const dom::element variant : variants) {
      out_ += "\n" + indent + " | ";
      type_or_null(variant, indent + "   ");
      // The first variant's description gives way to that of the whole, and so do its equals.
      auto own = text_field(variant, "description");
      if (text && (first || own == text)) own.reset();
      remark(own, default_of(variant, true));
      first = false;
    }
    out_ += "\n" + indent + ",\n";
  }

  static std::optional<std::string_view> first_description(dom::array variants) {
    if (variants.size() == 0) return std::nullopt;
    return text_field(*variants.begin(), "description");
  }

  void comment(const std::string& indent, std::string_view text) {
    out_ += fmt::format("{}// {}\n", indent, text);
  }

  void remark(std::optional<std::string_view> text, const std::optional<std::string>& value) {
    if (!text && !value) return;
    out_ += " //";
    if (text) out_ += fmt::format(" {}", *text);
    if (value) out_ += " default: " + *value;
  }

  void examples(dom::element schema, const std::string& indent) {
    const auto all = array_field(schema, "examples");
    if (!all || all->size() == 0) return;
    comment(indent, "Examples:");
    for (const std::string_view example : strings_of(all)) {
      comment(indent, fmt::format("- \"{}\"", example));
    }
  }

  // A string of an enumeration stands without quotes, where `bare` allows it.
  static std::optional<std::string> default_of(dom::element schema, bool bare) {
    const auto value = field(schema, "default");
    if (!value) return std::nullopt;
    std::string_view text;
    if (value->get(text) != simdjson::SUCCESS) return std::string(simdjson::minify(*value));
    const auto values = array_field(schema, "enum");
    if (bare && values && values->size() > 0) return std::string(text);
    return fmt::format("\"{}\"", text);
  }

  std::string& out_;
};

Status check_tool(const ChatTool& tool, std::size_t index) {
  if (!is_tool_name(tool.name)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tools[{}].name is \"{}\", expected 1 to {} letters, digits, '_', '-' or '.'",
                      index, tool.name.substr(0, kMaxToolNameBytes), kMaxToolNameBytes);
  }
  if (const auto bad = tokenizer::find_invalid_utf8(tool.description); bad != std::string::npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tools[{}].description ({}) is not UTF-8 at byte {}", index, tool.name, bad);
  }
  return {};
}

void append_description(std::string_view text, std::string& out) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    out += fmt::format("// {}\n", line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

Status append_tool(const ChatTool& tool, std::size_t index, std::string& out) {
  HF_TRY(check_tool(tool, index));
  append_description(tool.description, out);
  if (tool.parameters.empty()) {
    out += fmt::format("type {} = () => any;\n\n", tool.name);
    return {};
  }
  dom::parser parser;
  dom::element schema;
  simdjson::error_code error = parser.allocate(tool.parameters.size(), kMaxSchemaDepth);
  if (error == simdjson::SUCCESS) error = parser.parse(tool.parameters).get(schema);
  if (error != simdjson::SUCCESS || !schema.is_object()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tools[{}].parameters ({}) is no JSON schema (an object at most {} deep): {}",
                      index, tool.name, kMaxSchemaDepth,
                      error == simdjson::SUCCESS ? "not an object" : error_message(error));
  }
  out += fmt::format("type {} = (_: ", tool.name);
  TypeWriter(out).type(schema, "");
  out += ") => any;\n\n";
  return {};
}

}  // namespace

bool is_tool_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), allowed);
}

Result<std::string> tools_section(std::span<const ChatTool> tools) {
  std::size_t bytes = 0;
  for (const ChatTool& tool : tools) bytes += tool.description.size() + tool.parameters.size();
  if (tools.size() > kMaxTools || bytes > kMaxToolBytes) {
    return make_error(ErrorCode::kResourceExhausted,
                      "{} tools with {} bytes of descriptions and schemas; at most {} with {} "
                      "bytes are allowed", tools.size(), bytes, kMaxTools, kMaxToolBytes);
  }
  std::string out = "# Tools\n\n## functions\n\nnamespace functions {\n\n";
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    HF_TRY(append_tool(tools[i], i, out));
    if (!names.insert(tools[i].name).second) {
      return make_error(ErrorCode::kInvalidArgument, "tools[{}].name is \"{}\", as another's", i,
                        tools[i].name);
    }
  }
  return out + "} // namespace functions";
}

}  // namespace holdfast::api
