// The kernels of scheme_kernels.cuh for whatever the others do not take.
#include "experts/cuda/scheme_any.cuh"
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels any_kernels() { return kernels_of<AnyMatrix>(); }

}  // namespace holdfast::experts::cuda
