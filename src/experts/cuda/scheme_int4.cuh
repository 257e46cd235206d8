// The matrices (scheme_matrices.cuh) of INT4 in groups of whole words. Device code only.
#pragma once

#include "experts/cuda/scheme_matrices.cuh"
#include "tensor/int4_codecs.h"

namespace holdfast::experts::cuda {

constexpr auto kAwqPacking = static_cast<std::int64_t>(tensor::Int4Packing::kAwq);
constexpr auto kRowPacking = static_cast<std::int64_t>(tensor::Int4Packing::kCompressedTensors);
constexpr auto kMinusOnePacking = static_cast<std::int64_t>(tensor::Int4Packing::kGptqV1);

__device__ inline std::uint32_t word_at(const std::byte* from) {
  return __ldg(reinterpret_cast<const std::uint32_t*>(from));
}
// Which nibble of a word AWQ has row r % 8 in.
__device__ inline int awq_nibble(int r) { return r % 2 * 4 + r / 2; }

// column / group, exactly while column * group is below 2^32.
__device__ inline std::uint32_t group_of_column(const SchemeMatrix& m, std::int64_t column) {
  return __umulhi(static_cast<unsigned>(column), static_cast<unsigned>(m.per_group));
}

// A group's scale and the word with its zero, as they lie there.
struct Int4Group {
  std::uint32_t bits, word;
};
// Where one row of one expert lies, in words and scales from the matrix's first.
struct Int4Row {
  std::uint32_t codes, scales, zeros;

  __device__ static Int4Row find(const SchemeMatrix& m, std::int64_t expert, std::int64_t r) {
    const bool by_row = m.packing == kRowPacking;
    const std::int64_t words = m.columns / 8;
    const std::int64_t first = expert * m.rows * m.groups;
    const std::int64_t code = by_row ? r * words : m.packing == kAwqPacking ? r / 8 : r;
    return {static_cast<std::uint32_t>(expert * m.rows * words + code),
            static_cast<std::uint32_t>(first + (by_row ? r * m.groups : r)),
            static_cast<std::uint32_t>(first / 8 + (by_row ? r / 8 * m.groups : r / 8))};
  }
  // From one word of 8 columns to the next; AWQ's: from one column to the next.
  __device__ static std::uint32_t step(const SchemeMatrix& m) {
    const std::int64_t rows = m.packing == kAwqPacking ? m.rows / 8 : m.rows;
    return static_cast<std::uint32_t>(m.packing == kRowPacking ? 1 : rows);
  }
  // Of the row's codes, the one `steps` on.
  __device__ const std::byte* word(const SchemeMatrix& m, int steps) const {
    return m.weights + std::uint64_t{codes + static_cast<std::uint32_t>(steps) * step(m)} * 4;
  }
  __device__ Int4Group group(const SchemeMatrix& m, std::uint32_t g) const {
    const bool by_row = m.packing == kRowPacking;
    const auto rows = static_cast<std::uint32_t>(m.rows);
    const std::uint32_t at = scales + g * (by_row ? 1 : rows);
    const std::uint32_t zero = zeros + g * (by_row ? 1 : rows / 8);
    return {plain_bits(m.scales + std::uint64_t{at} * plain_size(m.scale_dtype), m.scale_dtype),
            m.zeros == nullptr ? tensor::kInt4SymmetricZero * 0x11111111u
                               : word_at(m.zeros + std::uint64_t{zero} * 4)};
  }
};
// Where the nibble of row r lies in a word that holds 8 rows.
__device__ inline int row_shift(const SchemeMatrix& m, int r) {
  return 4 * (m.packing == kAwqPacking ? awq_nibble(r % 8) : r % 8);
}
__device__ inline int int4_zero(const SchemeMatrix& m, const Int4Group& group, int r) {
  const bool minus_one = m.packing == kMinusOnePacking && m.zeros != nullptr;
  return static_cast<int>(group.word >> row_shift(m, r) & 15) + (minus_one ? 1 : 0);
}
// A lane's rows are 8 apart, so their nibbles are in one place (past the last row, nobody's).
__device__ inline int lane_row() { return static_cast<int>(threadIdx.x) % 32 / 4; }

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

// Words of 8 codes along the inputs: two words of 32 columns with a scale each, or, kWide, four
// that have one, where a group's columns are whole units of 128.
template <bool kWide>
struct Int4Rows {
  static constexpr int kWords = kWide ? 4 : 2, kSpan = kWide ? 4 : 1, kScales = kWide ? 1 : 2;
  static constexpr bool kNibbles = true, kStrided = !kWide, kSplit = false, kWhole = true,
                        kSettles = true;
  static constexpr Tile kTile = Tile::kRow;
  using Row = Int4Row;
  struct Unit {
    std::uint32_t codes[kWords];
    Int4Group group[kScales];
    std::uint32_t zeros[kScales];  // a pair of bf16, 128 + zero
    float factor[kScales];
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return Int4Row::find(m, expert, r * m.row_step + m.first_row);
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    Unit unit = {};
    if (!valid) return unit;
    const int column = first + column_of<Int4Rows>(0);
    if (kWide && m.packing == kRowPacking) {
      const uint4 codes = __ldg(reinterpret_cast<const uint4*>(row.word(m, column / 8)));
      unit.codes[0] = codes.x;
      unit.codes[1] = codes.y;
      unit.codes[2 % kWords] = codes.z;
      unit.codes[3 % kWords] = codes.w;
    } else {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        if (kWide || column + w * 32 < m.columns) {
          unit.codes[w] = word_at(row.word(m, column / 8 + w * (kWide ? 1 : 4)));
        }
      }
    }
#pragma unroll
    for (int w = 0; w < kScales; ++w) {
      if (kWide || first + w * 32 < m.columns) {
        unit.group[w] = row.group(m, group_of_column(m, first + w * 32));
      }
    }
    return unit;
  }
  __device__ static void settle(const SchemeMatrix& m, const Row&, Unit& unit) {
#pragma unroll
    for (int w = 0; w < kScales; ++w) {
      unit.zeros[w] = zero_pair(int4_zero(m, unit.group[w], lane_row()));
      unit.factor[w] = float_of_bits(unit.group[w].bits, m.scale_dtype);
    }
  }
  __device__ static void decode(const Unit& unit, int w, std::uint32_t (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[0][i] = int4_steps(unit.codes[w] >> (4 * i), unit.zeros[kWide ? 0 : w]);
    }
  }
  __device__ static float scale(const Unit& unit, int w) { return unit.factor[kWide ? 0 : w]; }
};

// AWQ's: a word holds a column of 8 rows.
struct AwqRows {
  static constexpr int kWords = 1, kSpan = 1;
  static constexpr bool kNibbles = false, kStrided = false, kSplit = false, kWhole = true,
                        kSettles = true;
  static constexpr Tile kTile = Tile::kRow;
  using Row = Int4Row;
  struct Unit {
    std::uint32_t codes[8];
    Int4Group group;
    std::uint32_t zeros;
    float factor;
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return Int4Rows<false>::row(m, expert, r);
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    Unit unit = {};
    const int column = first + column_of<AwqRows>(0);
    if (!valid || column >= m.columns) return unit;
#pragma unroll
    for (int i = 0; i < 8; ++i) unit.codes[i] = word_at(row.word(m, column + i));
    unit.group = row.group(m, group_of_column(m, column));
    return unit;
  }
  __device__ static void settle(const SchemeMatrix& m, const Row&, Unit& unit) {
    unit.zeros = zero_pair(int4_zero(m, unit.group, lane_row()));
    unit.factor = float_of_bits(unit.group.bits, m.scale_dtype);
  }
  __device__ static void decode(const Unit& unit, int, std::uint32_t (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int shift = 4 * awq_nibble(lane_row());
      const std::uint32_t low = unit.codes[2 * i] >> shift & 15;
      const std::uint32_t high = unit.codes[2 * i + 1] >> shift & 15;
      pairs[0][i] = int4_steps(low | high << 16, unit.zeros);
    }
  }
  __device__ static float scale(const Unit& unit, int) { return unit.factor; }
};

}  // namespace holdfast::experts::cuda
