// In place of experts/cuda/cutlass in a build without CUTLASS.
#include "base/assert.h"
#include "experts/backends.h"

namespace holdfast::experts {

bool has_cutlass_gpu_backend() { return false; }

std::unique_ptr<ExpertsBackend> make_cutlass_gpu_backend() {
  HF_ASSERT(false, "a build without CUTLASS was asked for its backend");
  return nullptr;
}

}  // namespace holdfast::experts
