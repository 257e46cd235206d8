// HF_HOST_DEVICE: before a function that kernels call, too. Nothing where nvcc does not compile.
#pragma once

#ifdef __CUDACC__
#define HF_HOST_DEVICE __host__ __device__
#else
#define HF_HOST_DEVICE
#endif
