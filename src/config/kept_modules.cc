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
  if (parsed->is_name()) names_.emplace(entry.pattern);
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

// A name covers what has its parts in a row: looked up by every row of the module's.
bool KeptModules::covers(std::string_view module) const {
  std::vector<std::size_t> dots;  // with one before the name and one behind it, at -1 and its end
  for (std::size_t i = 0; i < module.size(); ++i) {
    if (module[i] == '.') dots.push_back(i);
  }
  dots.push_back(module.size());
  std::size_t begin = 0;
  for (std::size_t first = 0; first < dots.size() && !names_.empty(); ++first) {
    for (std::size_t last = first; last < dots.size(); ++last) {
      if (names_.contains(std::string(module.substr(begin, dots[last] - begin)))) return true;
    }
    begin = dots[first] + 1;
  }
  return !work_.spent() && std::any_of(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return !kept.pattern.is_name() && kept.pattern.matches(module, work_);
  });
}

Status KeptModules::check_work() const {
  if (!work_.spent()) return {};
  return make_error(ErrorCode::kUnsupported,
                    "{}: to match its {} patterns of modules against those of this model takes "
                    "more than {} steps; name the modules, or use fewer \"*\" and \"re:\"",
                    kept_.back().list, kept_.size(), kMaxMatchSteps);
}

Status KeptModules::check_experts(const ModelConfig& config) const {
  if (kept_.empty()) return {};
  for (const NameFamily& experts : expert_modules(config)) {
    for (const Kept& kept : kept_) {
      const auto found = kept.pattern.match_of(experts, work_);
      if (!found) continue;
      return make_error(ErrorCode::kUnsupported,
                        "{}: \"{}\" leaves {} as it was; this engine knows experts that are all "
                        "quantised alike",
                        kept.list, kept.stated, *found);
    }
  }
  return check_work();
}

Status KeptModules::check_lists_experts(const ModelConfig& config) const {
  const NameFamily all = expert_modules(config).back();
  // Most entries are of a block, whatever its number: what these leave out is looked up by layer.
  std::vector<std::string> rest{""};
  for (std::size_t part = 3; part < all.size(); ++part) {
    std::vector<std::string> longer;
    for (const std::string& begun : rest) {
      for (const std::string& text : all[part]) {
        std::string name = begun + (begun.empty() ? "" : ".") + text;
        if (!covers(name)) longer.push_back(std::move(name));
      }
    }
    rest = std::move(longer);
  }
  for (const std::string& layer : all[2]) {
    const std::string block = "model.layers." + layer;
    if (rest.empty() || covers(block) || covers(experts_prefix(config, std::stoll(layer)))) {
      continue;
    }
    for (const std::string& matrix : rest) {
      const std::string name = block + "." + matrix;
      if (covers(name)) continue;
      HF_TRY(check_work());
      const auto entry = std::ranges::find_if(kept_, [](const Kept& kept) {
        return kept.stated.find("experts") != std::string::npos;
      });
      return make_error(ErrorCode::kUnsupported,
                        "{}: \"{}\" is of experts, and no entry is of {}; this engine knows "
                        "experts that are all quantised alike",
                        (entry == kept_.end() ? kept_.front() : *entry).list,
                        (entry == kept_.end() ? kept_.front() : *entry).stated, name);
    }
  }
  return check_work();
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
