// The kernels of scheme_kernels.cuh for MXFP4 and NVFP4.
#include "experts/cuda/scheme_e2m1.cuh"
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels mxfp4_kernels() { return kernels_of<E2m1Rows<false>>(); }
SchemeKernels nvfp4_kernels() { return kernels_of<E2m1Rows<true>>(); }

}  // namespace holdfast::experts::cuda
