// TensorNames: what publishers call the tensors that are not of experts. With expert_tensors.h the
// one place that knows published names: the checkpoint account expects them, the model binds them.
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_config.h"

namespace holdfast::config {

struct TensorNames {
  std::string embedding;   // [vocab, H]
  std::string final_norm;  // [H]
  std::string head;        // [vocab, H]; of tied embeddings an alias that need not be there
};
TensorNames tensor_names(const ModelConfig& config);

// A linear layer NAME has NAME.weight [outputs, inputs] and, where the config says so, NAME.bias.
struct LayerNames {
  std::string input_norm, post_attention_norm;  // [H]
  // Linear layers whose outputs stand one after another as q, k, v: three, or one that has all.
  std::vector<std::string> qkv;
  std::string attention_out;                    // linear
  std::string sinks;                            // [query heads]
  std::string query_norm, key_norm;             // [head_dim]
  std::string key_scale, value_scale;           // of a quantised cache; empty without
  std::string router;                           // linear
  std::string gate, up, down;                   // linear, of a layer without experts
};
LayerNames layer_names(const ModelConfig& config, std::int64_t layer);

}  // namespace holdfast::config
