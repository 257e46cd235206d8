// The kernels of scheme_kernels.cuh for INT4 under act-order.
#include "experts/cuda/scheme_kernels.cuh"
#include "experts/cuda/scheme_ordered.cuh"

namespace holdfast::experts::cuda {

SchemeKernels ordered_kernels() { return kernels_of<OrderedRows>(); }

}  // namespace holdfast::experts::cuda
