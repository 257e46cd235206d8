// LinearModule: the matrices of a model besides its experts': attention, router, dense MLPs,
// lm_head. Publishers leave them as they are or quantise them as the experts; the names of those
// that are quantised stand in ModelConfig::quantized_modules. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/expert_tensors.h"
#include "config/model_config.h"
#include "holdfast/result.h"

namespace holdfast::config {

struct LinearModule {
  std::string name;  // "model.layers.0.self_attn.q_proj", as published
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};
// All of the model, layer by layer, then lm_head where that is not the embedding.
std::vector<LinearModule> linear_modules(const ModelConfig& config);

struct LinearTensor {
  TensorRole role = TensorRole::kWeight;
  std::string name = {};  // "model.layers.0.self_attn.q_proj.weight_scale"
  tensor::DType dtype = tensor::DType::kBF16;
  tensor::Shape shape = {};
};
// The published tensors of one of them but its bias: NAME.weight, or those of the experts' format
// where the model has it quantised. Errors: kUnsupported for a format that fuses the experts;
// kInvalidArgument for a matrix that the format cannot hold, naming both.
Result<std::vector<LinearTensor>> linear_tensors(const ModelConfig& config,
                                                 const LinearModule& module);

// "lm_head; self_attn.q_proj, self_attn.v_proj of layers 0-47"; "none". Differs when the modules
// do.
std::string quantized_modules_text(const ModelConfig& config);

}  // namespace holdfast::config
