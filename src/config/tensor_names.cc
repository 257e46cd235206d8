#include "config/tensor_names.h"

#include <fmt/format.h>

namespace holdfast::config {
namespace {

bool is_original(const ModelConfig& config) {
  return config.expert_format.dialect == ExpertDialect::kGptOssOriginal;
}

// OpenAI's own names (openai/gpt-oss, the folder "original").
LayerNames original_names(std::int64_t layer) {
  const std::string attention = fmt::format("block.{}.attn.", layer);
  const std::string mlp = fmt::format("block.{}.mlp.", layer);
  LayerNames names;
  names.input_norm = attention + "norm.scale";
  names.post_attention_norm = mlp + "norm.scale";
  names.qkv = {attention + "qkv"};
  names.attention_out = attention + "out";
  names.sinks = attention + "sinks";
  names.router = mlp + "gate";
  return names;
}

const char* router_name(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGptOss: return "mlp.router";
    case Architecture::kQwen3Moe: return "mlp.gate";
    case Architecture::kMixtral: return "block_sparse_moe.gate";
  }
  return "";
}

}  // namespace

TensorNames tensor_names(const ModelConfig& config) {
  if (is_original(config)) {
    return {.embedding = "embedding.weight", .final_norm = "norm.scale",
            .head = "unembedding.weight"};
  }
  return {.embedding = "model.embed_tokens.weight", .final_norm = "model.norm.weight",
          .head = "lm_head.weight"};
}

LayerNames layer_names(const ModelConfig& config, std::int64_t layer) {
  if (is_original(config)) return original_names(layer);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  LayerNames names;
  names.input_norm = prefix + "input_layernorm.weight";
  names.post_attention_norm = prefix + "post_attention_layernorm.weight";
  names.qkv = {attention + "q_proj", attention + "k_proj", attention + "v_proj"};
  names.attention_out = attention + "o_proj";
  names.sinks = attention + "sinks";
  names.query_norm = attention + "q_norm.weight";
  names.key_norm = attention + "k_norm.weight";
  if (config.cache_scales.place != CacheScales::Place::kNone) {
    const bool projections = config.cache_scales.place == CacheScales::Place::kProjections;
    names.key_scale = attention + (projections ? "k_proj.k_scale" : "k_scale");
    names.value_scale = attention + (projections ? "v_proj.v_scale" : "v_scale");
  }
  names.router = prefix + router_name(config.architecture);
  names.gate = prefix + "mlp.gate_proj";
  names.up = prefix + "mlp.up_proj";
  names.down = prefix + "mlp.down_proj";
  return names;
}

}  // namespace holdfast::config
