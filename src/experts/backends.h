// The experts backends of this build. Each is made by experts.cc and owned by the model.
#pragma once

#include <memory>

#include "experts/experts.h"

namespace holdfast::experts {

// Weights as the checkpoint holds them, scalar loops: the formula.
std::unique_ptr<ExpertsBackend> make_reference_backend();
// Weights packed in tiles of 16 rows, one row to a lane, Highway on all workers.
std::unique_ptr<ExpertsBackend> make_holdfast_backend();
// As the field's kernels keep them; each file says how. CPU.
std::unique_ptr<ExpertsBackend> make_cutlass_backend();
std::unique_ptr<ExpertsBackend> make_trtllm_backend();
std::unique_ptr<ExpertsBackend> make_marlin_backend();
std::unique_ptr<ExpertsBackend> make_machete_backend();
std::unique_ptr<ExpertsBackend> make_unquantised_backend();
// `cutlass` on CUDA, where this build has CUTLASS. Asserts that it has.
bool has_cutlass_gpu_backend();
std::unique_ptr<ExpertsBackend> make_cutlass_gpu_backend();
// Weights as the checkpoint holds them, tensor cores. Asserts that the build has CUDA.
std::unique_ptr<ExpertsBackend> make_gpu_backend();

}  // namespace holdfast::experts
