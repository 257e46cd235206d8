// ModelConfig: what a model is, read from config.json and validated. Names no file and no device.
// A value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/expert_format.h"
#include "holdfast/result.h"

namespace holdfast::config {

enum class Architecture : std::uint8_t { kGptOss, kQwen3Moe, kMixtral };
enum class AttentionKind : std::uint8_t { kFull, kSliding };

// "gpt_oss", "qwen3_moe", "mixtral", as in config.json's model_type.
std::string_view architecture_name(Architecture architecture);
// "sliding_attention", "full_attention", as in config.json's layer_types.
std::string_view attention_kind_name(AttentionKind kind);

// YaRN (semantics.md 4.4). factor 1 means no scaling.
struct RopeConfig {
  double theta = 10000.0;
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::int64_t original_max_positions = 0;
  bool truncate = true;

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Clamped SwiGLU (semantics.md 3.7): out = g * sigmoid(alpha g) * (u + beta) with g and u clamped
// at the limit; alpha 1, beta 0 and no limit make it silu(g) * u.
struct SwigluConfig {
  float alpha = 1.702f;
  float beta = 1.0f;
  float limit = 7.0f;

  friend bool operator==(const SwigluConfig&, const SwigluConfig&) = default;
};

// Scales of an FP8 cache that a publisher stores for each layer. This engine's cache is float32: it
// keeps them as they are and does not use them.
struct CacheScales {
  enum class Place : std::uint8_t {
    kNone,
    kProjections,  // self_attn.k_proj.k_scale, self_attn.v_proj.v_scale (ModelOpt)
    kAttention,    // self_attn.k_scale, self_attn.v_scale (compressed-tensors)
  };
  Place place = Place::kNone;
  // What the files show (checkpoint/observed_format.h).
  tensor::DType dtype = tensor::DType::kF32;
  bool have_axis = false;  // shape [1] instead of []

  friend bool operator==(const CacheScales&, const CacheScales&) = default;
};
// "none", "of projections, f32 []"
std::string to_text(const CacheScales& scales);

struct ModelConfig {
  Architecture architecture = Architecture::kGptOss;
  std::string model_type;  // as published, "gpt_oss"
  // What the architecture has.
  bool attention_bias = true;    // of q, k, v and out
  bool attention_sinks = true;
  bool query_key_norm = false;   // RMSNorm of each head of q and k, before rope
  bool router_bias = true;
  bool renormalise = true;       // the chosen experts' weights sum to 1
  bool tied_embeddings = false;  // lm_head is the embedding
  std::int64_t layer_count = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;        // of one expert
  std::int64_t dense_intermediate_size = 0;  // of a layer without experts
  std::int64_t query_head_count = 0;
  std::int64_t kv_head_count = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;
  std::int64_t expert_count = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t sliding_window = 0;
  std::int64_t max_positions = 0;
  double rms_norm_eps = 1e-5;
  RopeConfig rope;
  SwigluConfig swiglu;
  ExpertFormat expert_format;
  // The linear layers besides the experts that are stored in the experts' format, too, ascending
  // (config/linear_modules.h).
  std::vector<std::string> quantized_modules;
  CacheScales cache_scales;
  // How the files have what is bf16 here: f16 and f32 are rounded once as they come.
  tensor::DType plain_dtype = tensor::DType::kBF16;
  std::vector<AttentionKind> layer_kinds;  // one per layer
  std::vector<std::int64_t> dense_layers;  // with one MLP in place of experts, ascending
  // Of generation_config.json where it states them, else of config.json; below vocab_size.
  std::vector<std::int32_t> eos_token_ids;
  std::int32_t bos_token_id = -1;  // -1: none
  std::int32_t pad_token_id = -1;

  bool is_dense(std::int64_t layer) const;
  bool is_quantized(std::string_view module) const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// The most bytes of a config.json or generation_config.json.
inline constexpr std::size_t kMaxConfigBytes = 1u << 20;

// `config_json` is config.json's text; `generation_json` may be empty.
// Errors name the field, its value and the accepted range: kUnsupported for an unknown model_type
// (listing the known ones) or an option this engine lacks, kCorrupt for JSON that does not parse,
// kInvalidArgument for a missing or absurd field. Named maxima are in common_fields.h.
Result<ModelConfig> parse_model_config(std::string_view config_json,
                                       std::string_view generation_json = {});

// A field that two configs do not agree on.
struct ConfigDifference {
  std::string field;  // as in config.json where it has one name there
  std::string live;
  std::string next;
  // It decides only what constant slots hold (rope tables, SwiGLU's numbers); otherwise it shapes
  // storage or captured code.
  bool constants_only = false;
};
// Every difference in what shapes storage, graphs or constants; token ids are not compared.
std::vector<ConfigDifference> compare(const ModelConfig& live, const ModelConfig& next);

// Whether weights of `next` can replace weights of `live` in place: everything that shapes storage,
// graphs or constants must be equal. Errors: kMismatch naming the field and both values.
Status check_replaceable(const ModelConfig& live, const ModelConfig& next);

}  // namespace holdfast::config
