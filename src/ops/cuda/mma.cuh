// Tensor-core building blocks that every matrix kernel here shares, and with them one order of
// additions: out = sum over k of w[k] * x[k], w and the two halves of x in bf16, sums in f32.
//
// mma.m16n8k16 (PTX ISA 9.7.14): A is 16 weight rows x 16 k, B is 16 k x 8 tokens. Lane l has of A
// the rows l/4 and l/4 + 8, of B the token l/4, and of both the four k of its quarter q = l % 4.
// Which k those are is free as long as A and B agree; here a lane's k are neighbours in memory, so
// that one 16-byte load feeds several steps.
//
// x is f32. It goes in as hi + lo, two bf16 (x = hi + lo within 2^-16 |x|), both are multiplied,
// so that a product keeps about f32's precision for the weights' 8 bits.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace holdfast::cuda_kernels {

__device__ inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two f32 as a pair of bf16, `low` in the lower half: the upper bits, and what they leave out.
struct SplitPair {
  std::uint32_t hi, lo;
};
__device__ inline SplitPair split_pair(float low, float high) {
  const std::uint32_t l = __float_as_uint(low);
  const std::uint32_t h = __float_as_uint(high);
  SplitPair out;
  out.hi = __byte_perm(l, h, 0x7632);
  const float low_rest = low - __uint_as_float(l & 0xFFFF0000u);
  const float high_rest = high - __uint_as_float(h & 0xFFFF0000u);
  const __nv_bfloat162 rest = __floats2bfloat162_rn(low_rest, high_rest);
  out.lo = *reinterpret_cast<const std::uint32_t*>(&rest);
  return out;
}

__device__ inline float bf16_bits_to_float(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

__device__ inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

}  // namespace holdfast::cuda_kernels
