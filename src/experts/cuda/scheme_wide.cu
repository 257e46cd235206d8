// The kernels of scheme_kernels.cuh for f16 and f32.
#include "experts/cuda/scheme_kernels.cuh"
#include "experts/cuda/scheme_wide.cuh"

namespace holdfast::experts::cuda {

SchemeKernels f16_kernels() { return kernels_of<WideRows<false>>(); }
SchemeKernels f32_kernels() { return kernels_of<WideRows<true>>(); }

}  // namespace holdfast::experts::cuda
