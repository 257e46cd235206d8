// In place of ops/cuda in a build without CUDA, where no GPU device can be made.
#include "base/assert.h"
#include "ops/ops.h"

namespace holdfast::ops {

std::unique_ptr<Kernels> make_cuda_kernels() {
  HF_ASSERT(false, "a build without CUDA has no GPU to run kernels on");
  return nullptr;
}

}  // namespace holdfast::ops
