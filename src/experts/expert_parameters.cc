#include "experts/expert_parameters.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::experts {

using config::ExpertTensor;
using config::Projection;
using config::TensorRole;

const ExpertTensor* find_tensor(const ExpertsSpec& spec, Projection projection, TensorRole role) {
  const auto found = std::ranges::find_if(spec.tensors, [&](const ExpertTensor& tensor) {
    return tensor.projection == projection && tensor.role == role;
  });
  return found == spec.tensors.end() ? nullptr : &*found;
}

Result<const ExpertTensor*> need_tensor(const ExpertsSpec& spec, Projection projection,
                                        TensorRole role) {
  if (const ExpertTensor* tensor = find_tensor(spec, projection, role)) return tensor;
  return make_error(ErrorCode::kInvalidArgument, "{}: no {} of projection {} among its {} tensors",
                    spec.slot_prefix, config::tensor_role_name(role),
                    config::projection_name(projection), spec.tensors.size());
}

bool is_fused(const ExpertsSpec& spec) {
  return find_tensor(spec, Projection::kGateUp, TensorRole::kWeight) != nullptr;
}

storage::ParameterSpec expert_parameter(const ExpertsSpec& spec, const ExpertTensor& tensor) {
  const std::int64_t experts = spec.shape.expert_count;
  std::vector<std::int64_t> dims{experts};
  dims.insert(dims.end(), tensor.shape.dims().begin(), tensor.shape.dims().end());
  const auto shape = tensor::Shape::from_dims(dims);
  HF_ASSERT(shape.ok(), "an expert's tensor of a possible shape");
  storage::ParameterSpec parameter{.name = spec.parameter_prefix + "." + tensor.name,
                                   .dtype = tensor.dtype,
                                   .shape = *shape,
                                   .expert_axis = true,
                                   .any_float = config::is_any_float(tensor)};
  if (!tensor.per_expert) return parameter;
  parameter.part_shape = tensor.shape;
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    parameter.part_names.push_back(spec.parameter_prefix + "." + tensor.part_name(expert));
  }
  return parameter;
}

Result<storage::ParameterId> bind_transient(storage::Registry& registry, const ExpertsSpec& spec,
                                            const ExpertTensor& tensor) {
  return registry.bind(expert_parameter(spec, tensor));
}

Result<storage::SlotId> define_resident(storage::Registry& registry, const ExpertsSpec& spec,
                                        const ExpertTensor& tensor) {
  storage::ParameterSpec parameter = expert_parameter(spec, tensor);
  HF_ASSIGN(const storage::SlotId slot,
            registry.define(storage::SlotSpec{.name = spec.slot_prefix + "." + tensor.name,
                                              .slot_class = storage::SlotClass::kWeight,
                                              .dtype = parameter.dtype,
                                              .shape = parameter.shape,
                                              .arena = {}}));
  parameter.slot = slot;
  HF_TRY(registry.bind(std::move(parameter)));
  return slot;
}

}  // namespace holdfast::experts
