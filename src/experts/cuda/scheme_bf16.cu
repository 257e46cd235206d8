// The kernels of scheme_kernels.cuh for bf16 in rows.
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels bf16_kernels() { return kernels_of<Bf16Rows>(); }

}  // namespace holdfast::experts::cuda
