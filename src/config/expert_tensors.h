// ExpertTensor: the published tensors of one layer's experts, by projection and role. The one place
// that knows their names, dtypes and shapes: the checkpoint's account expects them, the experts
// backends bind them. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "config/name_pattern.h"
#include "holdfast/result.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace holdfast::config {

enum class Projection : std::uint8_t {
  kGate,    // [I, H]
  kUp,      // [I, H]
  kGateUp,  // fused, rows alternate gate and up: [2 I, H]
  kDown,    // [H, I]
};
enum class TensorRole : std::uint8_t {
  kWeight,       // values or codes
  kScale,        // of groups, blocks, rows, or the whole
  kGlobalScale,  // nvfp4: of the whole
  kInputScale,   // of activations
  kZeros,        // int4
  kGroupIndex,   // int4 with act-order
  kShape,        // compressed-tensors: [rows, columns], checked and not used
  kBias,
};
const char* projection_name(Projection projection);  // "gate", "up", "gate_up", "down"
const char* tensor_role_name(TensorRole role);       // "weight", "scale", ...

struct ExpertTensor {
  Projection projection = Projection::kGateUp;
  TensorRole role = TensorRole::kWeight;
  // Under the layer's experts ("model.layers.3.mlp.experts."). With per_expert no publisher has it:
  // it is the name for all experts together, and expert 7's own tensor is called "7." + name.
  std::string name = {};
  bool per_expert = false;  // published as one tensor for each expert
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::Shape shape = {};  // of one expert's; rank 0 or [1] for a scalar, as published
  bool input_major = false;  // [in, out] instead of [out, in]

  // Of expert `expert`: "7.gate_proj.weight". Only with per_expert.
  std::string part_name(std::int64_t expert) const;
};

// Whether a source may have it as bf16, f16 or f32, of which it is rounded once to its bf16, as all
// that is not quantised: a bias.
bool is_any_float(const ExpertTensor& tensor);

// Every tensor of one layer's experts in `config`'s format, in a fixed order: projections as in the
// enumeration, roles as in theirs. Errors: kUnsupported for a dialect and scheme that do not go
// together, kInvalidArgument for dimensions that the format cannot hold (naming both).
Result<std::vector<ExpertTensor>> expert_tensors(const ModelConfig& config);

// A matrix that is quantised as the experts are and belongs to none of them.
struct MatrixSpec {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
// Its tensors, of which there is one each, called NAME.weight_scale and so on; no bias. Errors: as
// expert_tensors; kUnsupported for a format that fuses the experts.
Result<std::vector<ExpertTensor>> quantized_matrix_tensors(const ModelConfig& config,
                                                           const MatrixSpec& matrix);

// "model.layers.3.mlp.experts" (gpt-oss, Qwen3-MoE), "model.layers.3.block_sparse_moe.experts"
// (Mixtral), "block.3.mlp" (OpenAI's own gpt-oss).
std::string experts_prefix(const ModelConfig& config, std::int64_t layer);

// The experts' matrices of all layers as modules: "model.layers.3.mlp.experts.7.gate_proj". Where
// the format fuses a layer's experts, its two matrices, and the module that holds them.
std::vector<NameFamily> expert_modules(const ModelConfig& config);

}  // namespace holdfast::config
