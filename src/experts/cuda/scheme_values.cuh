// The matrices (scheme_matrices.cuh) of int4, and the one that reads everything value by value.
// Device code only.
#pragma once

#include "experts/cuda/scheme_matrices.cuh"
#include "tensor/int4_codecs.h"

namespace holdfast::experts::cuda {

// ------------------------------------------------------------------------------ int4

__device__ inline std::uint32_t word_at(const std::byte* from, std::int64_t i) {
  return __ldg(reinterpret_cast<const std::uint32_t*>(from) + i);
}
constexpr auto kAwqPacking = static_cast<std::int64_t>(tensor::Int4Packing::kAwq);
constexpr auto kRowPacking = static_cast<std::int64_t>(tensor::Int4Packing::kCompressedTensors);
constexpr auto kMinusOnePacking = static_cast<std::int64_t>(tensor::Int4Packing::kGptqV1);
// Which nibble of a word AWQ has row r % 8 in.
__device__ inline int awq_nibble(int r) { return r % 2 * 4 + r / 2; }

// column / group, exactly while column * group is below 2^32.
__device__ inline std::int64_t group_of_column(const SchemeMatrix& m, std::int64_t column) {
  return __umulhi(static_cast<unsigned>(column), static_cast<unsigned>(m.per_group));
}

// Of one expert's row; `group` of `groups`.
struct Int4Scales {
  float scale;
  int zero;
};
__device__ inline Int4Scales int4_scales(const SchemeMatrix& m, std::int64_t expert,
                                         std::int64_t row, std::int64_t group) {
  const std::int64_t groups = m.groups;
  const bool by_row = m.packing == kRowPacking;
  const std::int64_t first = expert * m.rows * groups;
  Int4Scales out{
      plain_float(m.scales, m.scale_dtype,
                  first + (by_row ? row * groups + group : group * m.rows + row)),
      tensor::kInt4SymmetricZero};
  if (m.zeros == nullptr) return out;
  const std::int64_t word =
      first / 8 + (by_row ? row / 8 * groups + group : group * (m.rows / 8) + row / 8);
  const auto nibble = static_cast<int>(row % 8);
  const int shift = 4 * (m.packing == kAwqPacking ? awq_nibble(nibble) : nibble);
  out.zero = static_cast<int>(word_at(m.zeros, word) >> shift & 15);
  if (m.packing == kMinusOnePacking) ++out.zero;
  return out;
}

// A code in the low mantissa bits of 128 is 128 + code; less 128 + zero, these are the steps.
__device__ inline std::uint32_t int4_steps(std::uint32_t codes, std::uint32_t zeros) {
  codes = (codes & 0x000F000Fu) | 0x43004300u;
  const __nv_bfloat162 steps = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&codes),
                                       *reinterpret_cast<const __nv_bfloat162*>(&zeros));
  return *reinterpret_cast<const std::uint32_t*>(&steps);
}
__device__ inline std::uint32_t zero_pair(int zero) {
  return (0x4300u + static_cast<std::uint32_t>(zero)) * 0x00010001u;
}
struct Int4Row {
  int expert, row;
};
__device__ inline Int4Scales scales_of(const SchemeMatrix& m, const Int4Row& row, int column) {
  return int4_scales(m, row.expert, row.row, group_of_column(m, column));
}

// Words of 8 codes along the inputs, where a group's columns are whole words of 32.
struct Int4Rows {
  static constexpr int kWords = 2;
  static constexpr bool kNibbles = true, kStrided = true, kScaled = true, kSplit = false,
                        kWhole = true;
  using Row = Int4Row;
  struct Unit {
    std::uint32_t codes[2], zeros[2];  // zeros: a pair of bf16, 128 + zero
    float factor[2];
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return {expert, static_cast<int>(r * m.row_step + m.first_row)};
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    Unit unit = {};
    const std::int64_t words = m.columns / 8;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int column = first + column_of<Int4Rows>(w);
      if (!valid || column >= m.columns) continue;
      const std::int64_t at = m.packing == kRowPacking ? row.row * words + column / 8
                                                       : column / 8 * m.rows + row.row;
      const Int4Scales scales = scales_of(m, row, column);
      unit.codes[w] = word_at(m.weights, row.expert * m.rows * words + at);
      unit.zeros[w] = zero_pair(scales.zero);
      unit.factor[w] = scales.scale;
    }
    return unit;
  }
  __device__ static void decode(const Unit& unit, int w, std::uint32_t (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[0][i] = int4_steps(unit.codes[w] >> (4 * i), unit.zeros[w]);
    }
  }
  __device__ static float scale(const Unit& unit, int w) { return unit.factor[w]; }
};

// AWQ's: a word holds a column of 8 rows.
struct AwqRows {
  static constexpr int kWords = 1;
  static constexpr bool kNibbles = false, kStrided = false, kScaled = true, kSplit = false,
                        kWhole = true;
  using Row = Int4Row;
  struct Unit {
    std::uint32_t codes[8];
    std::uint32_t zeros;
    float factor;
    int shift;
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return Int4Rows::row(m, expert, r);
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    Unit unit = {};
    const int column = first + column_of<AwqRows>(0);
    if (!valid || column >= m.columns) return unit;
    const std::int64_t words = m.rows / 8;
    const std::int64_t at = (row.expert * m.columns + column) * words + row.row / 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) unit.codes[i] = word_at(m.weights, at + i * words);
    const Int4Scales scales = scales_of(m, row, column);
    unit.zeros = zero_pair(scales.zero);
    unit.factor = scales.scale;
    unit.shift = 4 * awq_nibble(row.row % 8);
    return unit;
  }
  __device__ static void decode(const Unit& unit, int, std::uint32_t (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t low = unit.codes[2 * i] >> unit.shift & 15;
      const std::uint32_t high = unit.codes[2 * i + 1] >> unit.shift & 15;
      pairs[0][i] = int4_steps(low | high << 16, unit.zeros);
    }
  }
  __device__ static float scale(const Unit& unit, int) { return unit.factor; }
};

// ------------------------------------------------------------------------------ any

// Everything, value by value: what the others do not take (input-major, act-order, groups that are
// no whole words, columns that no wide load fits). Weights in two halves.
struct AnyMatrix {
  static constexpr int kWords = 1;
  static constexpr bool kNibbles = false, kStrided = false, kScaled = false, kSplit = true,
                        kWhole = false;
  using Row = Int4Row;
  struct Unit {
    float value[8];
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return {expert, static_cast<int>(r * m.row_step + m.first_row)};
  }
  // Not inlined into each of the kernels' loops, which would take minutes to compile.
  __device__ __noinline__ static Unit load(const SchemeMatrix& m, const Row& row, int first,
                                           bool valid) {
    Unit unit = {};
    if (!valid) return unit;
    const int column = first + column_of<AnyMatrix>(0);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i < m.columns) unit.value[i] = value(m, row.expert, row.row, column + i);
    }
    return unit;
  }
  __device__ static void decode(const Unit& unit, int, std::uint32_t (&pairs)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const cuda_kernels::SplitPair pair =
          cuda_kernels::split_pair(unit.value[2 * i], unit.value[2 * i + 1]);
      pairs[0][i] = pair.hi;
      pairs[1][i] = pair.lo;
    }
  }

 private:
  __device__ static float e2m1_value(std::uint32_t code) {
    const std::uint32_t c = code & 7;
    const float magnitude = c < 2 ? 0.5f * static_cast<float>(c)
                                  : __uint_as_float((c << 22) + 0x3F000000u);
    return (code & 8) != 0 ? -magnitude : magnitude;
  }
  __device__ static float e4m3_value(std::uint32_t code) { return e4m3_floats(code).x; }

  // raw_matrix.h has the same on the host; the scales of rows and of the matrix come later.
  __device__ static float value(const SchemeMatrix& m, std::int64_t expert, std::int64_t row,
                                std::int64_t k) {
    const std::int64_t at = (expert * m.rows + row) * m.columns + k;
    switch (static_cast<ExpertScheme>(m.scheme)) {
      case ExpertScheme::kBF16: return plain(m, tensor::DType::kBF16, expert, row, k);
      case ExpertScheme::kF16: return plain(m, tensor::DType::kF16, expert, row, k);
      case ExpertScheme::kF32: return plain(m, tensor::DType::kF32, expert, row, k);
      case ExpertScheme::kMxfp4: return e2m1_at(m, at) * e8m0_float(byte_of(m.scales, at / 32));
      case ExpertScheme::kMxfp8:
        return e4m3_value(byte_of(m.weights, at)) * e8m0_float(byte_of(m.scales, at / 32));
      case ExpertScheme::kFp8Tensor:
      case ExpertScheme::kFp8Channel: return e4m3_value(byte_of(m.weights, at));
      case ExpertScheme::kFp8Block: {
        const std::int64_t rows = (m.rows + 127) / 128;
        const std::int64_t columns = (m.columns + 127) / 128;
        return e4m3_value(byte_of(m.weights, at)) *
               plain_float(m.scales, m.scale_dtype,
                           (expert * rows + row / 128) * columns + k / 128);
      }
      case ExpertScheme::kNvfp4: return e2m1_at(m, at) * e4m3_value(byte_of(m.scales, at / 16));
      case ExpertScheme::kInt4: return int4_value(m, expert, row, k);
    }
    return 0.0f;
  }
  __device__ static float plain(const SchemeMatrix& m, tensor::DType dtype, std::int64_t expert,
                                std::int64_t row, std::int64_t k) {
    const std::int64_t at = m.input_major != 0 ? k * m.rows + row : row * m.columns + k;
    return plain_float(m.weights, static_cast<std::int64_t>(dtype),
                       expert * m.rows * m.columns + at);
  }
  __device__ static float e2m1_at(const SchemeMatrix& m, std::int64_t at) {
    return e2m1_value(byte_of(m.weights, at / 2) >> (at % 2 * 4));
  }
  __device__ static float int4_value(const SchemeMatrix& m, std::int64_t expert, std::int64_t row,
                                     std::int64_t k) {
    const std::int64_t group =
        m.group_index != nullptr ? m.group_index[expert * m.columns + k] : group_of_column(m, k);
    const Int4Scales scales = int4_scales(m, expert, row, group);
    const std::int64_t first = expert * m.rows * m.columns / 8;
    std::int64_t word = k / 8 * m.rows + row;
    auto nibble = static_cast<int>(k % 8);
    if (m.packing == kAwqPacking) {
      word = k * (m.rows / 8) + row / 8;
      nibble = awq_nibble(static_cast<int>(row % 8));
    } else if (m.packing == kRowPacking) {
      word = row * (m.columns / 8) + k / 8;
    }
    const auto code = static_cast<int>(word_at(m.weights, first + word) >> (4 * nibble) & 15);
    return scales.scale * static_cast<float>(code - scales.zero);
  }
};

}  // namespace holdfast::experts::cuda
