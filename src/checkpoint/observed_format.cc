#include "checkpoint/observed_format.h"

#include "config/expert_tensors.h"
#include "config/tensor_names.h"

namespace holdfast::checkpoint {
namespace {

using config::TensorRole;
using tensor::DType;

bool is_scale(TensorRole role) {
  return role == TensorRole::kScale || role == TensorRole::kGlobalScale ||
         role == TensorRole::kInputScale;
}

config::ExpertScheme scheme_of(DType dtype) {
  if (dtype == DType::kF16) return config::ExpertScheme::kF16;
  return dtype == DType::kF32 ? config::ExpertScheme::kF32 : config::ExpertScheme::kBF16;
}

bool is_scalar(const tensor::Shape& shape) {
  return shape.rank() == 0 || (shape.rank() == 1 && shape[0] == 1);
}

}  // namespace

bool is_plain_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

config::ExpertFormat observe_format(const config::ModelConfig& config, const FindEntry& find) {
  config::ExpertFormat format = config.expert_format;
  std::int64_t layer = 0;
  while (config.is_dense(layer)) ++layer;
  const auto tensors = config::expert_tensors(config);
  if (!tensors.ok()) return format;
  const std::string prefix = config::experts_prefix(config, layer) + ".";
  for (const config::ExpertTensor& tensor : *tensors) {
    const bool weight = tensor.role == TensorRole::kWeight;
    const bool scale = tensor.per_expert && is_scale(tensor.role);
    if ((!weight && !scale) || !is_plain_float(tensor.dtype)) continue;
    const TensorEntry* entry =
        find(prefix + (tensor.per_expert ? tensor.part_name(0) : tensor.name));
    if (entry == nullptr || !is_plain_float(entry->dtype)) continue;
    if (weight) {
      format.scheme = scheme_of(entry->dtype);
      continue;
    }
    (tensor.role == TensorRole::kScale ? format.scale_dtype : format.scalar_dtype) = entry->dtype;
    if (is_scalar(tensor.shape) && is_scalar(entry->shape)) {
      format.scalars_have_axis = entry->shape.rank() == 1;
    }
  }
  return format;
}

DType observe_plain_dtype(const config::ModelConfig& config, const FindEntry& find) {
  const TensorEntry* entry = find(config::tensor_names(config).embedding);
  return entry != nullptr && is_plain_float(entry->dtype) ? entry->dtype : DType::kBF16;
}

config::CacheScales observe_cache_scales(const config::ModelConfig& config, const FindEntry& find) {
  config::CacheScales scales = config.cache_scales;
  if (scales.place == config::CacheScales::Place::kNone) return scales;
  const TensorEntry* entry = find(config::layer_names(config, 0).key_scale);
  if (entry == nullptr) return {};
  if (is_plain_float(entry->dtype)) scales.dtype = entry->dtype;
  scales.have_axis = entry->shape.rank() == 1;
  return scales;
}

std::vector<std::string> observe_quantized_modules(const config::ModelConfig& config,
                                                   const FindEntry& find) {
  std::vector<std::string> modules = config.quantized_modules;
  std::erase_if(modules, [&](const std::string& name) {
    const TensorEntry* entry = find(name + ".weight");
    return entry != nullptr && is_plain_float(entry->dtype);
  });
  return modules;
}

}  // namespace holdfast::checkpoint
