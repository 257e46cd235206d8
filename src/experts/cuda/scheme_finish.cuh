// What the products of experts read besides the matrices and x, and what is done to a sum: scales,
// bias, SwiGLU. Device code only; see scheme_product.cuh.
#pragma once

#include "experts/cuda/scheme_kernels.h"
#include "experts/cuda/scheme_matrices.cuh"
#include "ops/cuda/mma.cuh"

namespace holdfast::experts::cuda {

constexpr int kSchemeThreads = 256;
constexpr int kSchemeWarps = kSchemeThreads / 32;

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

// What a row's sums become: times the scales of the row and of the matrix, then the bias; 1 and 0
// where there is none. Read before the sums are there.
template <int kParts>
struct RowTerms {
  float scale[kParts], alpha[kParts], bias[kParts];
  float swiglu_alpha, swiglu_beta, swiglu_limit;

  __device__ RowTerms(const ProductKernel& k, int expert, std::int64_t row) {
    row = row < k.rows ? row : k.rows - 1;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const SchemeMatrix& m = k.part[p];
      const std::int64_t at = expert * m.rows + row * m.row_step + m.first_row;
      scale[p] = m.scheme == kFp8ChannelScheme ? plain_float(m.scales, m.scale_dtype, at) : 1.0f;
      alpha[p] = m.alpha != nullptr ? m.alpha[expert] : 1.0f;
      bias[p] = m.bias != nullptr ? cuda_kernels::bf16_bits_to_float(m.bias[at]) : 0.0f;
    }
    if constexpr (kParts == 2) {
      swiglu_alpha = k.swiglu_alpha[expert];
      swiglu_beta = k.swiglu_beta[expert];
      swiglu_limit = k.swiglu_limit[expert];
    }
  }
  __device__ float finish(const float (&sums)[kParts]) const {
    float value[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      value[p] = __fadd_rn(__fmul_rn(__fmul_rn(sums[p], scale[p]), alpha[p]), bias[p]);
    }
    if constexpr (kParts == 1) {
      return value[0];
    } else {
      return scheme_swiglu(value[0], value[1], swiglu_alpha, swiglu_beta, swiglu_limit);
    }
  }
};

}  // namespace holdfast::experts::cuda
