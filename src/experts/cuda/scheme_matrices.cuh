// How lanes read and decode the published matrices of each scheme. Device code only.
//
// A Matrix has
//   Row        where a lane finds a row: row(matrix, expert, r)
//   Unit       what a lane reads at once of a row, 8 columns for each of kWords words: load(matrix,
//              row, first, valid), first is the unit's column and q = lane % 4 decides which of it;
//              nothing is read where it is not valid; past the matrix's columns weights are 0.
//              Nothing waits for what it has read, if kSettles
//   settle     makes of what has come what decode takes; kSettles: where there is something to do
//   kStrided   a lane's words are 32 columns apart, not neighbours (column_of)
//   decode     word w of a unit, 8 columns as 4 pairs of bf16, exactly; kSplit: in two halves
//              (upper bits, and what they leave out within 2^-16)
//   kNibbles   pairs are columns 0 4, 1 5, 2 6, 3 7 instead of neighbours
//   kSpan      what the sum of the products of this many neighbouring words must be multiplied by
//              is scale(unit, w), w any of them; 0: scales of groups are in the weights (exactly:
//              bf16 holds them) and those of rows and of the matrix are left to the end
//   kWhole     a lane's 8 columns are all within the matrix, or all outside it
//   kTile      what a matrix reads at a time: a row; both rows of a lane, which share a table of
//              what columns need (scheme_ordered.cuh); or all rows of a tile, as inputs come first
//              (scheme_input_major.cuh)
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "config/expert_format.h"
#include "experts/cuda/scheme_kernels.h"
#include "ops/cuda/mma.cuh"
#include "tensor/dtype.h"

namespace holdfast::experts::cuda {

using config::ExpertScheme;
constexpr auto kFp8ChannelScheme = static_cast<std::int64_t>(ExpertScheme::kFp8Channel);

// Element i of an array of f32, bf16 or f16.
__device__ inline float plain_float(const std::byte* from, std::int64_t dtype, std::int64_t i) {
  if (dtype == static_cast<std::int64_t>(tensor::DType::kF32)) {
    return reinterpret_cast<const float*>(from)[i];
  }
  if (dtype == static_cast<std::int64_t>(tensor::DType::kBF16)) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(from)[i]);
  }
  return __half2float(reinterpret_cast<const __half*>(from)[i]);
}

// The same in two steps: the element's bits, which no branch keeps waiting, and its value.
__device__ inline std::uint32_t plain_bits(const std::byte* at, std::int64_t dtype) {
  std::uint32_t bits;
  asm("{\n"
      ".reg .pred wide;\n"
      "setp.ne.s32 wide, %2, 0;\n"
      "@wide ld.global.nc.b32 %0, [%1];\n"
      "@!wide ld.global.nc.u16 %0, [%1];\n"
      "}\n"
      : "=r"(bits)
      : "l"(at), "r"(static_cast<int>(dtype == static_cast<std::int64_t>(tensor::DType::kF32))));
  return bits;
}
__device__ inline std::int64_t plain_size(std::int64_t dtype) {
  return dtype == static_cast<std::int64_t>(tensor::DType::kF32) ? 4 : 2;
}
__device__ inline float float_of_bits(std::uint32_t bits, std::int64_t dtype) {
  const float half = __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits)));
  const bool wide = dtype == static_cast<std::int64_t>(tensor::DType::kF32);
  const float other = __uint_as_float(wide ? bits : bits << 16);
  return dtype == static_cast<std::int64_t>(tensor::DType::kF16) ? half : other;
}

__device__ inline std::uint32_t byte_of(const std::byte* from, std::int64_t i) {
  return reinterpret_cast<const std::uint8_t*>(from)[i];
}
// 2^(s - 127), subnormal for 0, NaN for 255.
__device__ inline float e8m0_float(std::uint32_t s) {
  return __uint_as_float(max(s << 23, 0x00400000u) | (s + 1) >> 8);
}
__device__ inline float2 e4m3_floats(std::uint32_t two) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(two)));
  return __half22float2(*reinterpret_cast<const __half2*>(&halves));
}
__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline std::int64_t published_row(const SchemeMatrix& m, int expert, int r) {
  return expert * m.rows + r * m.row_step + m.first_row;
}

// ------------------------------------------------------------------------------ bf16

enum class Tile { kRow, kRows, kAll };

// Where a lane's word w lies in its unit.
template <typename Matrix>
__device__ inline int column_of(int w) {
  const int q = static_cast<int>(threadIdx.x) % 4;
  return Matrix::kStrided ? w * 32 + q * 8 : (q * Matrix::kWords + w) * 8;
}

struct Bf16Rows {
  static constexpr int kWords = 2;
  static constexpr int kSpan = 0;
  static constexpr bool kNibbles = false, kStrided = false, kSplit = false, kWhole = true,
                        kSettles = false;
  static constexpr Tile kTile = Tile::kRow;
  using Row = const std::byte*;
  struct Unit {
    uint4 half[2];
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return m.weights + published_row(m, expert, r) * m.columns * 2;
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    const int column = first + column_of<Bf16Rows>(0);
    if (!valid || column >= m.columns) return {};
    const auto* from = reinterpret_cast<const uint4*>(row + std::int64_t{column} * 2);
    return {{__ldg(from), __ldg(from + 1)}};
  }
  __device__ static void decode(const Unit& unit, int w, std::uint32_t (&pairs)[1][4]) {
    pairs[0][0] = unit.half[w].x;
    pairs[0][1] = unit.half[w].y;
    pairs[0][2] = unit.half[w].z;
    pairs[0][3] = unit.half[w].w;
  }
};

// ------------------------------------------------------------------------------ e4m3

enum class CodeScale { kNone, kE8M0, kBlock };

// Rows of codes, 16 at a time: under no scale, one for 32 inputs, or one for a block of 128 x 128.
template <CodeScale kScale>
struct E4m3Rows {
  static constexpr int kWords = 2;
  static constexpr int kSpan = kScale == CodeScale::kBlock ? 2 : 0;
  static constexpr bool kNibbles = false, kStrided = false, kSplit = false, kWhole = true,
                        kSettles = kScale == CodeScale::kBlock;
  static constexpr Tile kTile = Tile::kRow;
  struct Row {
    const std::byte* codes;
    const std::byte* scales;
  };
  struct Unit {
    uint4 codes;
    std::uint32_t bits;
    float factor;
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    const std::int64_t at = published_row(m, expert, r);
    const std::byte* codes = m.weights + at * m.columns;
    if constexpr (kScale == CodeScale::kNone) return {codes, nullptr};
    if constexpr (kScale == CodeScale::kE8M0) return {codes, m.scales + at * (m.columns / 32)};
    const std::int64_t scale_rows = (m.rows + 127) / 128;
    const std::int64_t scale_row = expert * scale_rows + (at - expert * m.rows) / 128;
    return {codes, m.scales + scale_row * ((m.columns + 127) / 128) * plain_size(m.scale_dtype)};
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    Unit unit{make_uint4(0, 0, 0, 0), 0, 1.0f};
    if (!valid) return unit;
    const int column = first + column_of<E4m3Rows>(0);
    // Also for a lane past the columns: its sums are the other lanes' products.
    if constexpr (kScale == CodeScale::kBlock) {
      unit.bits = plain_bits(row.scales + first / 128 * plain_size(m.scale_dtype), m.scale_dtype);
    }
    if (column >= m.columns) return unit;
    unit.codes = __ldg(reinterpret_cast<const uint4*>(row.codes + column));
    if constexpr (kScale == CodeScale::kE8M0) {
      unit.factor = e8m0_float(byte_of(row.scales, column / 32));
    }
    return unit;
  }
  __device__ static void settle(const SchemeMatrix& m, const Row&, Unit& unit) {
    unit.factor = float_of_bits(unit.bits, m.scale_dtype);
  }
  __device__ static void decode(const Unit& unit, int w, std::uint32_t (&pairs)[1][4]) {
    const std::uint32_t words[2] = {w == 0 ? unit.codes.x : unit.codes.z,
                                    w == 0 ? unit.codes.y : unit.codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float2 two = e4m3_floats(words[i / 2] >> (i % 2 * 16));
      if constexpr (kScale == CodeScale::kE8M0) {
        two.x *= unit.factor;
        two.y *= unit.factor;
      }
      pairs[0][i] = bf16_pair(two.x, two.y);
    }
  }
  // The lanes' 64 columns lie in one block.
  __device__ static float scale(const Unit& unit, int) { return unit.factor; }
};

}  // namespace holdfast::experts::cuda
