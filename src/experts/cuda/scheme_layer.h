// One layer's experts on CUDA in any scheme: its slots, and the order of its kernels. Weights,
// group scales and zeros are resident as published; what is derived (on the host, a slice at a
// time) is the chain of scales, and checked copies of a group index and a stated shape. The thread
// that defines.
#pragma once

#include <memory>
#include <optional>

#include "experts/experts.h"
#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::experts {

// Shared by all layers of a backend on CUDA.
struct CudaWorkspace {
  storage::SlotId work, group_pairs, split, activation, down_out;
  std::optional<storage::SlotId> inputs = {};  // rounded; defined by the first layer that rounds
  ExpertsShape shape = {};
};

// Errors: kInvalidArgument for tensors that the scheme needs and that are not there; those of the
// registry.
Result<std::unique_ptr<ExpertsLayer>> define_scheme_layer(storage::Registry& registry,
                                                          const ExpertsSpec& spec,
                                                          CudaWorkspace& workspace);

}  // namespace holdfast::experts
