// The kernels around SchemeTile (scheme_product.cuh), for few and for many rows. Device code only.
#pragma once

#include "device/cuda/launch.cuh"
#include "experts/cuda/scheme_product.cuh"

namespace holdfast::experts::cuda {

// Up to 8 rows, so that an expert has at most 8 pairs.
template <typename Matrix, int kParts>
__global__ void __launch_bounds__(kSchemeThreads, 2) few_product_kernel(ProductKernel k) {
  __shared__ WarpSums<kParts, 1> sums;
  device::cuda::wait_for_inputs();
  const int4 work = scheme_work(k);
  if (work.x < 0) return;
  const int first_row = static_cast<int>(blockIdx.x) * 16;
  SchemeTile<Matrix, kParts, 1, 1, kParts == 2 ? 2 : Matrix::kAheadFew> tile;
  tile.run(k, work, first_row);
  tile.finish(k, work, first_row, &sums);
}

template <typename Matrix, int kParts, int kTiles, int kGroups>
__device__ void run_scheme_tile(const ProductKernel& k, int4 work, void* shared) {
  const int first_row = static_cast<int>(blockIdx.x) * 16 * kTiles;
  SchemeTile<Matrix, kParts, kTiles, kGroups, 1> tile;
  tile.run(k, work, first_row);
  tile.finish(k, work, first_row, shared);
}

template <typename Matrix, int kParts, int kTiles>
__global__ void __launch_bounds__(kSchemeThreads, 1) many_product_kernel(ProductKernel k) {
  __shared__ WarpSums<kParts, kMostGroups> sums;
  device::cuda::wait_for_inputs();
  int4 work = scheme_work(k);
  work.y += static_cast<int>(blockIdx.z) * kBlockPairs;
  if (work.x < 0 || work.y >= work.z) return;
  work.z = min(work.z, work.y + kBlockPairs);
  if (work.z - work.y <= 8) {
    run_scheme_tile<Matrix, kParts, kTiles, 1>(k, work, &sums);
  } else if (work.z - work.y <= 16) {
    run_scheme_tile<Matrix, kParts, kTiles, 2>(k, work, &sums);
  } else {
    run_scheme_tile<Matrix, kParts, kTiles, kMostGroups>(k, work, &sums);
  }
}

// The kernels of one Matrix; rows of a block of `many` in row tiles of 16.
struct SchemeKernels {
  void (*few_gate_up)(ProductKernel) = nullptr;
  void (*few_down)(ProductKernel) = nullptr;
  void (*many_gate_up)(ProductKernel) = nullptr;
  void (*many_down)(ProductKernel) = nullptr;
  int gate_up_tiles = 1;
  int down_tiles = 1;
};
template <typename Matrix>
SchemeKernels kernels_of() {
  return {few_product_kernel<Matrix, 2>, few_product_kernel<Matrix, 1>,
          many_product_kernel<Matrix, 2, Matrix::kManyTiles / 2>,
          many_product_kernel<Matrix, 1, Matrix::kManyTiles>, Matrix::kManyTiles / 2,
          Matrix::kManyTiles};
}

// Each in a file of its own, which all take long to compile.
SchemeKernels bf16_kernels();
SchemeKernels e4m3_kernels();        // fp8 per tensor and per channel
SchemeKernels mxfp8_kernels();
SchemeKernels fp8_block_kernels();
SchemeKernels mxfp4_kernels();
SchemeKernels nvfp4_kernels();
SchemeKernels int4_kernels();        // groups of a multiple of 32 inputs, without act-order
SchemeKernels any_kernels();         // everything

}  // namespace holdfast::experts::cuda
