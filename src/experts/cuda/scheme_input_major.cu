// The kernels of scheme_kernels.cuh for bf16 with the inputs first.
#include "experts/cuda/scheme_input_major.cuh"
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {

SchemeKernels input_major_kernels() { return kernels_of<InputMajorRows>(); }

}  // namespace holdfast::experts::cuda
