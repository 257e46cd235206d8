// The kernels of scheme_kernels.cuh for INT4 in groups of whole units.
#include "experts/cuda/scheme_int4.cuh"
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels int4_wide_kernels() { return kernels_of<Int4Rows<true>>(); }

}  // namespace holdfast::experts::cuda
