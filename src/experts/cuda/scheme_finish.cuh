// What the products of experts read besides the matrices and x, and what is done to a sum: scales,
// bias, SwiGLU. Device code only; see scheme_product.cuh.
#pragma once

#include "experts/cuda/scheme_kernels.h"
#include "experts/cuda/scheme_matrices.cuh"
#include "ops/cuda/mma.cuh"

namespace holdfast::experts::cuda {

constexpr int kSchemeThreads = 256;
constexpr int kSchemeWarps = kSchemeThreads / 32;
constexpr int kMostGroups = 4;
constexpr int kBlockPairs = 8 * kMostGroups;  // of the many kernel

struct ProductKernel {
  SchemeMatrix part[2];
  const float* input;
  const int4* work;
  const std::int32_t* group_pairs;
  const std::int32_t* ids;     // of the only row, in place of work and group_pairs
  const float* swiglu_alpha;
  const float* swiglu_beta;
  const float* swiglu_limit;
  float* out;                  // f32 [pairs, rows]
  std::int64_t experts, rows;  // rows: of the product
  std::int64_t pairs_per_row;  // of the input
};

// What the blocks with this blockIdx.y work on: expert, and which pairs.
__device__ inline int4 scheme_work(const ProductKernel& k) {
  const auto y = static_cast<int>(blockIdx.y);
  if (k.ids == nullptr) return k.work[y];
  const std::int32_t id = k.ids[y];
  return make_int4(id >= 0 && id < k.experts ? id : -1, y, y + 1, 0);
}
__device__ inline std::int64_t scheme_pair(const ProductKernel& k, int i) {
  return k.ids == nullptr ? k.group_pairs[i] : i;
}

// As moe_kernels.cu: no sum is contracted into a neighbour's product.
__device__ inline float scheme_swiglu(float g, float u, float alpha, float beta, float limit) {
  g = g > limit ? limit : g;
  u = u > limit ? limit : u < -limit ? -limit : u;
  const float power = __fmul_rn(-alpha, g);
  const float divisor = __fadd_rn(1.0f, expf(power < 88.0f ? power : 88.0f));
  return __fmul_rn(g / divisor, __fadd_rn(u, beta));
}

// The scales of the row and of the matrix, then the bias.
__device__ inline float finish_sum(const SchemeMatrix& m, int expert, std::int64_t row,
                                   float sum) {
  const std::int64_t at = expert * m.rows + row * m.row_step + m.first_row;
  if (m.scheme == kFp8ChannelScheme) {
    sum = __fmul_rn(sum, plain_float(m.scales, m.scale_dtype, at));
  }
  if (m.alpha != nullptr) sum = __fmul_rn(sum, m.alpha[expert]);
  if (m.bias == nullptr) return sum;
  return __fadd_rn(sum, cuda_kernels::bf16_bits_to_float(m.bias[at]));
}

template <int kParts>
__device__ void finish_product(const ProductKernel& k, int expert, std::int64_t row,
                               std::int64_t pair, const float (&sums)[kParts]) {
  float value = finish_sum(k.part[0], expert, row, sums[0]);
  if constexpr (kParts == 2) {
    value = scheme_swiglu(value, finish_sum(k.part[1], expert, row, sums[1]),
                          k.swiglu_alpha[expert], k.swiglu_beta[expert], k.swiglu_limit[expert]);
  }
  k.out[pair * k.rows + row] = value;
}

}  // namespace holdfast::experts::cuda
