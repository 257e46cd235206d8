#include "config/kept_modules.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "config/expert_tensors.h"
#include "config/linear_modules.h"

namespace holdfast::config {

Status KeptModules::add(const JsonFields& fields, std::string_view pattern) {
  return add({.list = fields.name(), .stated = pattern, .pattern = pattern});
}

Status KeptModules::add(const Entry& entry) {
  if (kept_.size() == kMaxKeptPatterns) {
    return make_error(ErrorCode::kUnsupported, "{}: more than {} patterns of modules", entry.list,
                      kMaxKeptPatterns);
  }
  auto parsed = NamePattern::parse(entry.pattern);
  if (!parsed.ok()) return parsed.error().with_context(entry.list);
  kept_.push_back({std::move(*parsed), entry.list, std::string(entry.stated)});
  return {};
}

Status KeptModules::add_list(const JsonFields& fields, std::string_view key) {
  HF_ASSIGN(const auto list, fields.optional_array(key));
  if (!list) return {};
  for (const simdjson::dom::element element : *list) {
    std::string_view text;
    if (element.get(text)) return fields.wrong(key, *fields.find(key), "a list of texts");
    HF_TRY(add({.list = fmt::format("{}: {}", fields.name(), key),
                .stated = text,
                .pattern = text}));
  }
  return {};
}

bool KeptModules::covers(std::string_view module) const {
  return std::any_of(kept_.begin(), kept_.end(),
                     [module](const Kept& kept) { return kept.pattern.matches(module); });
}

Status KeptModules::check_experts(const ModelConfig& config) const {
  const NameFamily experts = expert_modules(config);
  for (const Kept& kept : kept_) {
    if (const auto found = kept.pattern.match_of(experts)) {
      return make_error(ErrorCode::kUnsupported,
                        "{}: \"{}\" leaves {} as it was; this engine knows experts that are all "
                        "quantised alike",
                        kept.list, kept.stated, *found);
    }
  }
  return {};
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
