// The weight of a linear layer whose checkpoint has it quantised: the published tensors pass
// through staging, and the slot's bf16 is derived from them. Called while the registry is building;
// one thread. Errors are the registry's and those of config::linear_tensors.
#pragma once

#include "config/model_config.h"
#include "model/slots.h"

namespace holdfast::model {

// Whether any of its parts is quantised.
bool is_quantized(const config::ModelConfig& config, const LinearSpec& spec);

// `<name>.weight` [sum of rows, inputs]: each part decoded by decode_matrix, or copied where it is
// bf16. All parts are one unit of a reload.
Result<storage::SlotId> define_quantized_weight(storage::Registry& registry,
                                                const config::ModelConfig& config,
                                                const LinearSpec& spec);

}  // namespace holdfast::model
