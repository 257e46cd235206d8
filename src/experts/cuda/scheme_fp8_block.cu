// The kernels of scheme_kernels.cuh for FP8 in blocks of 128 x 128.
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels fp8_block_kernels() { return kernels_of<E4m3Rows<CodeScale::kBlock>>(); }

}  // namespace holdfast::experts::cuda
