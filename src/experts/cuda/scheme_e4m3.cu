// The kernels of scheme_kernels.cuh for FP8 per tensor and per channel, and MXFP8.
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels e4m3_kernels() { return kernels_of<E4m3Rows<CodeScale::kNone>>(); }
SchemeKernels mxfp8_kernels() { return kernels_of<E4m3Rows<CodeScale::kE8M0>>(); }

}  // namespace holdfast::experts::cuda
