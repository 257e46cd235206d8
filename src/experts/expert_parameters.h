// The experts' published tensors as parameters [E, ...]: resident in a slot as they are, or
// transient, for derivations. Pure apart from the registry; the thread that defines.
#pragma once

#include <string>

#include "config/expert_tensors.h"
#include "experts/experts.h"
#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::experts {

// The layer's tensor of this projection and role; null when it has none.
const config::ExpertTensor* find_tensor(const ExpertsSpec& spec, config::Projection projection,
                                        config::TensorRole role);
// Errors: kInvalidArgument naming the layer, projection and role when it has none.
Result<const config::ExpertTensor*> need_tensor(const ExpertsSpec& spec,
                                                config::Projection projection,
                                                config::TensorRole role);
// Gate and up are one tensor.
bool is_fused(const ExpertsSpec& spec);

// `<parameter_prefix>.<name>` of shape [E, ...], sliced by expert; with its parts' names where
// every expert's is published by itself.
storage::ParameterSpec expert_parameter(const ExpertsSpec& spec,
                                        const config::ExpertTensor& tensor);
// It passes through staging and feeds derivations.
Result<storage::ParameterId> bind_transient(storage::Registry& registry, const ExpertsSpec& spec,
                                            const config::ExpertTensor& tensor);
// A weight slot `<slot_prefix>.<name>` that holds it as published.
Result<storage::SlotId> define_resident(storage::Registry& registry, const ExpertsSpec& spec,
                                        const config::ExpertTensor& tensor);

}  // namespace holdfast::experts
