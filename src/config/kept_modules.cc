#include "config/kept_modules.h"

#include <algorithm>

#include "base/error.h"

namespace holdfast::config {
namespace {

// Every module but the experts that holds a matrix which publishers quantise.
std::vector<std::string> dense_modules(const ModelConfig& config) {
  std::string_view router = "mlp.gate";
  if (config.architecture == Architecture::kGptOss) router = "mlp.router";
  if (config.architecture == Architecture::kMixtral) router = "block_sparse_moe.gate";
  std::vector<std::string> names;
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      names.push_back(fmt::format("model.layers.{}.self_attn.{}", layer, part));
    }
    if (!config.is_dense(layer)) {
      names.push_back(fmt::format("model.layers.{}.{}", layer, router));
      continue;
    }
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      names.push_back(fmt::format("model.layers.{}.mlp.{}", layer, part));
    }
  }
  names.push_back("lm_head");
  return names;
}

}  // namespace

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

Status KeptModules::check(const JsonFields& fields, std::string_view where,
                          const ModelConfig& config) const {
  std::vector<std::string> quantised;
  for (std::string& name : dense_modules(config)) {
    if (!covers(name)) quantised.push_back(std::move(name));
  }
  if (quantised.empty()) return {};
  return make_error(ErrorCode::kUnsupported,
                    "{}: {} does not keep {} (and {} more modules): this engine reads quantised "
                    "experts, and attention, router, dense MLPs and lm_head as bf16",
                    fields.name(), where, quantised.front(), quantised.size() - 1);
}

}  // namespace holdfast::config
