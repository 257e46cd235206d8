// The holdfast backend's slots of one matrix: which published tensors are packed into which, as
// cpu_packing.h lays them out, and what the kernels must know to read them. The thread that
// defines.
#pragma once

#include <optional>

#include "experts/cpu_kernels.h"
#include "experts/layer_parameters.h"

namespace holdfast::experts {

struct PackedMatrix {
  cpu::Codec codec = cpu::Codec::kBF16;
  cpu::GroupScale group_scale = cpu::GroupScale::kNone;
  std::int64_t group = 0;
  std::int64_t tile_step = 1;  // 2: gate and up alternate
  storage::SlotId weights;
  std::optional<storage::SlotId> scales = {}, zeros = {}, row_scales = {}, alpha = {}, bias = {};
};

// `<name>.packed` for each tensor of the projection; biases stay as published. Errors: of the
// registry; kInvalidArgument for tensors that the scheme needs and that are not there.
Result<PackedMatrix> define_packed_matrix(LayerParameters& layer, config::Projection projection,
                                          std::optional<storage::SlotId> input_scale);

}  // namespace holdfast::experts
