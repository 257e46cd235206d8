// The kernels of one Matrix, for few and for many pairs of an expert. Device code only.
#pragma once

#include "device/cuda/launch.cuh"
#include "experts/cuda/scheme_few.cuh"
#include "experts/cuda/scheme_many.cuh"

namespace holdfast::experts::cuda {

constexpr int kFewPairs = 16;

template <typename Matrix, int kParts, int kGroups>
__device__ void run_few(const ProductKernel& k, int4 work, void* shared) {
  const int first_row = static_cast<int>(blockIdx.x) * 16;
  extern __shared__ uint4 table_words[];
  FewTile<Matrix, kParts, kGroups> tile;
  tile.run(k, work, first_row, reinterpret_cast<std::byte*>(table_words));
  tile.finish(k, work, first_row, shared);
}

// Experts of at most kFewPairs pairs; kGroups 1: where no expert can have more than 8.
template <typename Matrix, int kParts, int kGroups>
__global__ void __launch_bounds__(kSchemeThreads, 2) few_product_kernel(ProductKernel k) {
  __shared__ WarpSums<kParts, kGroups> sums;
  device::cuda::wait_for_inputs();
  const int4 work = scheme_work(k);
  if (work.x < 0 || work.z - work.y > kFewPairs) return;
  if (kGroups == 1 || work.z - work.y <= 8) {
    run_few<Matrix, kParts, 1>(k, work, &sums);
  } else {
    run_few<Matrix, kParts, kGroups>(k, work, &sums);
  }
}

template <typename Matrix, int kParts, int kTiles, int kGroups>
__device__ void run_many(const ProductKernel& k, int4 work, std::byte* shared) {
  const int warp = static_cast<int>(blockIdx.x) * kSchemeWarps + static_cast<int>(threadIdx.x) / 32;
  ManyTile<Matrix, kParts, kTiles, kGroups> tile;
  tile.run(k, work, warp * 16 * kTiles, shared);
  tile.finish(k, work, warp * 16 * kTiles);
}

// Of a warp and part. A table for each takes too much of shared memory for two of one part.
template <typename Matrix, int kParts>
constexpr int kManyTiles = Matrix::kTile == Tile::kRows ? 1 : 2 / kParts;

// Experts of more.
template <typename Matrix, int kParts>
__global__ void __launch_bounds__(kSchemeThreads, 1) many_product_kernel(ProductKernel k) {
  extern __shared__ uint4 input_words[];
  auto* shared = reinterpret_cast<std::byte*>(input_words);
  device::cuda::wait_for_inputs();
  int4 work = scheme_work(k);
  if (work.x < 0 || work.z - work.y <= kFewPairs) return;
  work.y += static_cast<int>(blockIdx.z) * kBlockPairs;
  if (work.y >= work.z) return;
  work.z = min(work.z, work.y + kBlockPairs);
  if (work.z - work.y <= 32) {
    run_many<Matrix, kParts, kManyTiles<Matrix, kParts>, 4>(k, work, shared);
  } else {
    run_many<Matrix, kParts, kManyTiles<Matrix, kParts>, 8>(k, work, shared);
  }
}

struct ProductKernels {
  const char* names[2];  // of the launches for few and for many
  std::int64_t many_rows = 0;  // of a block of `many`
  // Shared memory for each of a matrix's groups, on top of what all have.
  std::int64_t few_bytes = 0, many_bytes = 0;
  void (*least)(ProductKernel) = nullptr;  // up to 8 rows
  void (*few)(ProductKernel) = nullptr;
  void (*many)(ProductKernel) = nullptr;
};
struct SchemeKernels {
  ProductKernels gate_up, down;
};
template <typename Matrix>
SchemeKernels kernels_of() {
  std::int64_t table = 0;
  if constexpr (Matrix::kTile == Tile::kRows) table = Matrix::table_bytes(1);
  return {{{"experts.gate_up", "experts.gate_up_many"},
           kSchemeWarps * 16,
           2 * table,
           2 * table * kSchemeWarps,
           few_product_kernel<Matrix, 2, 1>,
           few_product_kernel<Matrix, 2, 2>,
           many_product_kernel<Matrix, 2>},
          {{"experts.down", "experts.down_many"},
           kSchemeWarps * 16 * kManyTiles<Matrix, 1>,
           table,
           table * kSchemeWarps,
           few_product_kernel<Matrix, 1, 1>,
           few_product_kernel<Matrix, 1, 2>,
           many_product_kernel<Matrix, 1>}};
}

// Each in a file of its own, which all take long to compile.
SchemeKernels bf16_kernels();
SchemeKernels f16_kernels();
SchemeKernels f32_kernels();
SchemeKernels e4m3_kernels();       // fp8 per tensor and per channel
SchemeKernels mxfp8_kernels();
SchemeKernels fp8_block_kernels();
SchemeKernels mxfp4_kernels();
SchemeKernels nvfp4_kernels();
SchemeKernels input_major_kernels();  // bf16
SchemeKernels int4_kernels();       // groups of a multiple of 32 inputs
SchemeKernels int4_wide_kernels();  // of 128
SchemeKernels awq_kernels();        // of 32, in AWQ's order
SchemeKernels ordered_kernels();    // any, under act-order
SchemeKernels any_kernels();        // everything

}  // namespace holdfast::experts::cuda
