// The kernels of scheme_kernels.cuh for INT4.
#include "experts/cuda/scheme_kernels.cuh"
#include "experts/cuda/scheme_values.cuh"

namespace holdfast::experts::cuda {

SchemeKernels int4_kernels() { return kernels_of<Int4Rows>(); }
SchemeKernels awq_kernels() { return kernels_of<AwqRows>(); }

}  // namespace holdfast::experts::cuda
