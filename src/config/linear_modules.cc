#include "config/linear_modules.h"

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "config/tensor_names.h"

namespace holdfast::config {
namespace {

constexpr std::string_view kLayers = "model.layers.";
constexpr std::string_view kWeight = ".weight";

void add_layer(const ModelConfig& config, std::int64_t layer, std::vector<LinearModule>& out) {
  const LayerNames names = layer_names(config, layer);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query = config.query_head_count * config.head_dim;
  const std::int64_t kv = config.kv_head_count * config.head_dim;
  if (names.qkv.size() == 1) {
    out.push_back({names.qkv[0], query + 2 * kv, hidden});
  } else {
    for (std::size_t i = 0; i < names.qkv.size(); ++i) {
      out.push_back({names.qkv[i], i == 0 ? query : kv, hidden});
    }
  }
  out.push_back({names.attention_out, hidden, query});
  if (!config.is_dense(layer)) {
    out.push_back({names.router, config.expert_count, hidden});
    return;
  }
  const std::int64_t inner = config.dense_intermediate_size;
  out.push_back({names.gate, inner, hidden});
  out.push_back({names.up, inner, hidden});
  out.push_back({names.down, hidden, inner});
}

// A module's place among the layers: 3 and "self_attn.q_proj", or -1 and its name.
std::pair<std::int64_t, std::string> parse_layer(std::string_view name) {
  if (!name.starts_with(kLayers)) return {-1, std::string(name)};
  const std::string_view rest = name.substr(kLayers.size());
  std::int64_t layer = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  if (error != std::errc{} || end == rest.data() + rest.size()) return {-1, std::string(name)};
  return {layer, std::string(end + 1, rest.data() + rest.size())};
}

// "0-3, 5"
std::string ranges_text(const std::vector<std::int64_t>& ascending) {
  std::string text;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ascending[i]);
    if (last > i) text += fmt::format("-{}", ascending[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

std::vector<LinearModule> linear_modules(const ModelConfig& config) {
  std::vector<LinearModule> modules;
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer) {
    add_layer(config, layer, modules);
  }
  if (config.tied_embeddings) return modules;
  std::string head = tensor_names(config).head;
  head.resize(head.size() - kWeight.size());
  modules.push_back({std::move(head), config.vocab_size, config.hidden_size});
  return modules;
}

Result<std::vector<LinearTensor>> linear_tensors(const ModelConfig& config,
                                                 const LinearModule& module) {
  std::vector<LinearTensor> tensors;
  if (!config.is_quantized(module.name)) {
    tensors.push_back({.name = module.name + std::string(kWeight),
                       .shape = {module.rows, module.columns}});
    return tensors;
  }
  HF_ASSIGN(const auto published,
            quantized_matrix_tensors(config, {module.name, module.rows, module.columns}));
  for (const ExpertTensor& tensor : published) {
    tensors.push_back({tensor.role, tensor.name, tensor.dtype, tensor.shape});
  }
  return tensors;
}

std::string quantized_modules_text(const ModelConfig& config) {
  std::map<std::string, std::vector<std::int64_t>> layers_of;
  for (const std::string& name : config.quantized_modules) {
    const auto [layer, part] = parse_layer(name);
    layers_of[part].push_back(layer);
  }
  std::map<std::vector<std::int64_t>, std::string> parts_of;
  for (auto& [part, layers] : layers_of) {
    std::sort(layers.begin(), layers.end());
    std::string& parts = parts_of[layers];
    parts += fmt::format("{}{}", parts.empty() ? "" : ", ", part);
  }
  std::string text;
  for (const auto& [layers, parts] : parts_of) {
    text += fmt::format("{}{}", text.empty() ? "" : "; ", parts);
    if (layers.front() >= 0) text += fmt::format(" of layers {}", ranges_text(layers));
  }
  return text.empty() ? "none" : text;
}

}  // namespace holdfast::config
