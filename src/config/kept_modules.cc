#include "config/kept_modules.h"

#include <algorithm>

#include "base/error.h"
#include "config/linear_modules.h"

namespace holdfast::config {

Status KeptModules::add(const JsonFields& fields, std::string_view pattern) {
  if (patterns_.size() == kMaxKeptPatterns) {
    return make_error(ErrorCode::kUnsupported, "{}: more than {} patterns of modules",
                      fields.name(), kMaxKeptPatterns);
  }
  auto parsed = NamePattern::parse(pattern);
  if (!parsed.ok()) return parsed.error().with_context(fields.name());
  patterns_.push_back(std::move(*parsed));
  return {};
}

Status KeptModules::add_list(const JsonFields& fields, std::string_view key) {
  HF_ASSIGN(const auto list, fields.optional_array(key));
  if (!list) return {};
  for (const simdjson::dom::element element : *list) {
    std::string_view text;
    if (element.get(text)) return fields.wrong(key, *fields.find(key), "a list of texts");
    HF_TRY(add(fields, text));
  }
  return {};
}

bool KeptModules::covers(std::string_view module) const {
  return std::any_of(patterns_.begin(), patterns_.end(),
                     [module](const NamePattern& pattern) { return pattern.matches(module); });
}

std::vector<std::string> KeptModules::others(const ModelConfig& config) const {
  std::vector<std::string> names;
  for (LinearModule& module : linear_modules(config)) {
    if (!covers(module.name)) names.push_back(std::move(module.name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace holdfast::config
