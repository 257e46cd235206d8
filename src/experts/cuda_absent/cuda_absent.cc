// In place of experts/cuda in a build without CUDA, where no GPU device can be made.
#include "base/assert.h"
#include "experts/backends.h"

namespace holdfast::experts {

std::unique_ptr<ExpertsBackend> make_gpu_backend() {
  HF_ASSERT(false, "a build without CUDA has no GPU to choose a backend for");
  return nullptr;
}

}  // namespace holdfast::experts
