// The MXFP4 matrices of a layer's experts as the kernels of moe_kernels.cu read them: what a
// product gets, which expert a block works on, and how codes and scales become bf16. Device code
// only.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/matrix.cuh"

namespace holdfast::experts::cuda {

using cuda_kernels::Mxfp4Order;

struct MatrixKernel {
  const uint4* codes;
  const std::uint8_t* scales;
  const std::uint16_t* bias;
  const float* input;
  const int4* work;
  const std::int32_t* group_pairs;
  const std::int32_t* ids;     // of the only row, in place of work and group_pairs
  std::int64_t experts;
  std::int64_t rows, blocks;   // of the matrix: rows, K / 32
  std::int64_t pairs_per_row;  // of the input: experts_per_token, or 1 where a pair has a row
  std::int64_t tiles_of_block;
};

// A block's scale, 2^(s - 127), as two factors: a code's bits taken for a bf16 are its value times
// 2^-126, so the first is 2^(min(s, 128) - 1), twice in a word; the second, for larger scales only,
// the rest.
__device__ inline std::uint32_t first_factor(std::uint32_t s) {
  return min(s, 128u) * 0x00800080u + 126u * 0x00800080u;
}
__device__ inline std::uint32_t rest_factor(std::uint32_t s) {
  return (max(s, 128u) - 128u + 127u) * 0x00800080u;
}
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}
// Codes 0 and 4 (kSecond: 1 and 5) of a word of eight, as a pair of bf16 times 2^-126: e2m1 (sign,
// 2 exponent bits, 1 mantissa bit) lies in a bf16's upper bits as it is, subnormals included. One
// product moves the sign and the rest to their places; what else it moves is masked.
template <bool kSecond>
__device__ std::uint32_t place(std::uint32_t word) {
  const std::uint32_t moved =
      kSecond ? (word & 0x00F000F0u) * 0x104u : (word & 0x000F000Fu) * 0x1040u;
  return moved & 0x81C081C0u;
}

// What the blocks with this blockIdx.y work on.
__device__ inline int4 work_of(const MatrixKernel& a) {
  const auto y = static_cast<int>(blockIdx.y);
  if (a.ids == nullptr) return a.work[y];
  const std::int32_t id = a.ids[y];
  return make_int4(id >= 0 && id < a.experts ? id : -1, y, y + 1, 0);
}
__device__ inline std::int64_t pair_at(const MatrixKernel& a, int i) {
  return a.ids == nullptr ? a.group_pairs[i] : i;
}

// One expert's matrix.
struct Mxfp4Matrix {
  using Order = Mxfp4Order;
  static constexpr int kUnits = 1;
  struct Unit {
    uint4 low, high;
    std::uint32_t low_scale, high_scale;
  };
  struct Lines {  // the lane's first block of its lower row and its scale, and the way to the upper
    const uint4* low;
    const std::uint8_t* low_scale;
    int to_high;
  };
  const uint4* codes;
  const std::uint8_t* scales;
  int rows, blocks, units;  // units: that the lane has a block of

  __device__ Mxfp4Matrix(const MatrixKernel& a, int expert)
      : codes(a.codes + expert * a.rows * a.blocks),
        scales(a.scales + expert * a.rows * a.blocks),
        rows(static_cast<int>(a.rows)),
        blocks(static_cast<int>(a.blocks)),
        units((blocks - static_cast<int>(threadIdx.x) % 4 + 3) / 4) {}
  __device__ int stages() const { return (blocks + 3) / 4; }
  __device__ std::int64_t columns() const { return blocks * 32; }
  __device__ Lines lines(int tile) const {
    const int low = tile * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int q = threadIdx.x % 4;
    const int low_block = min(low, rows - 1) * blocks + q;
    const int high_block = min(low + 8, rows - 1) * blocks + q;
    return {codes + low_block, scales + low_block, high_block - low_block};
  }
  __device__ static Unit nothing() {
    return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0), 127u, 127u};
  }
  __device__ bool has(int unit) const { return unit < units; }
  __device__ static Lines from(const Lines& lines, int unit) {
    return {lines.low + unit * 4, lines.low_scale + unit * 4, lines.to_high};
  }
  // So that what is made of them once is not made again for each unit.
  __device__ static void keep(Lines& lines) {
    asm volatile("" : "+l"(lines.low), "+l"(lines.low_scale), "+r"(lines.to_high));
  }
  __device__ static Unit at(const Lines& lines, int unit) {
    const uint4* low = lines.low + unit * 4;
    const std::uint8_t* low_scale = lines.low_scale + unit * 4;
    return {__ldg(low), __ldg(low + lines.to_high), __ldg(low_scale),
            __ldg(low_scale + lines.to_high)};
  }
  __device__ Unit load(const Lines& lines, int unit, bool valid) const {
    return valid && has(unit) ? at(lines, unit) : nothing();
  }
  // What all words of a unit share.
  struct Factors {
    std::uint32_t low, high;
    bool large;  // some scale of the warp is above 128
  };
  __device__ static Factors factors(const Unit& unit) {
    return {first_factor(unit.low_scale), first_factor(unit.high_scale),
            __any_sync(0xFFFFFFFFu, max(unit.low_scale, unit.high_scale) > 128) != 0};
  }
  __device__ static bool is_plain(const Factors& factors) { return !factors.large; }
  __device__ static void plain_fragment(const Unit& unit, const Factors& factors,
                                        std::uint32_t (&a)[2][4]) {
    const std::uint32_t low = unit.low.x;
    const std::uint32_t high = unit.high.x;
    a[0][0] = multiply_pairs(place<false>(low), factors.low);
    a[0][1] = multiply_pairs(place<false>(high), factors.high);
    a[0][2] = multiply_pairs(place<true>(low), factors.low);
    a[0][3] = multiply_pairs(place<true>(high), factors.high);
    a[1][0] = multiply_pairs(place<false>(low >> 8), factors.low);
    a[1][1] = multiply_pairs(place<false>(high >> 8), factors.high);
    a[1][2] = multiply_pairs(place<true>(low >> 8), factors.low);
    a[1][3] = multiply_pairs(place<true>(high >> 8), factors.high);
  }
  __device__ static void fragment(const Unit& unit, const Factors& factors,
                                  std::uint32_t (&a)[2][4]) {
    plain_fragment(unit, factors, a);
    if (!factors.large) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t& pair = a[i / 4][i % 4];
      pair = multiply_pairs(pair, rest_factor(i % 2 == 0 ? unit.low_scale : unit.high_scale));
    }
  }
  __device__ static void turn(Unit& unit) {
    unit.low = make_uint4(unit.low.y, unit.low.z, unit.low.w, 0);
    unit.high = make_uint4(unit.high.y, unit.high.z, unit.high.w, 0);
  }
};

}  // namespace holdfast::experts::cuda
