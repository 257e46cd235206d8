// The kernels of scheme_kernels.cuh for INT4.
#include "experts/cuda/scheme_int4.cuh"
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels int4_kernels() { return kernels_of<Int4Rows<false>>(); }
SchemeKernels awq_kernels() { return kernels_of<AwqRows>(); }

}  // namespace holdfast::experts::cuda
