// The matrix (scheme_matrices.cuh) that reads everything value by value: what no other takes.
// Device code only.
#pragma once

#include "experts/cuda/scheme_int4.cuh"

namespace holdfast::experts::cuda {

// Input-major f16 and f32, groups that are no whole words, columns that no wide load fits. Weights
// in two halves. Eight columns within the matrix are read with one look at what they are; only
// those at its edge are looked at one by one.
struct AnyMatrix {
  static constexpr int kWords = 1, kSpan = 0;
  static constexpr bool kNibbles = false, kStrided = false, kSplit = true, kWhole = false,
                        kSettles = false;
  static constexpr Tile kTile = Tile::kRow;
  struct Row {
    int expert, row;
  };
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
    const int column = first + column_of<AnyMatrix>(0);
    if (!valid || column >= m.columns) return unit;
    const std::int64_t at = (std::int64_t{row.expert} * m.rows + row.row) * m.columns + column;
    const auto count = static_cast<int>(m.columns - column);
    switch (static_cast<ExpertScheme>(m.scheme)) {
      case ExpertScheme::kBF16: plain(m, tensor::DType::kBF16, row, column, unit); break;
      case ExpertScheme::kF16: plain(m, tensor::DType::kF16, row, column, unit); break;
      case ExpertScheme::kF32: plain(m, tensor::DType::kF32, row, column, unit); break;
      case ExpertScheme::kMxfp4:
        each(count, unit, [&](int i) {
          return e2m1_at(m, at + i) * e8m0_float(byte_of(m.scales, (at + i) / 32));
        });
        break;
      case ExpertScheme::kMxfp8:
        each(count, unit, [&](int i) {
          return e4m3_at(m.weights, at + i) * e8m0_float(byte_of(m.scales, (at + i) / 32));
        });
        break;
      case ExpertScheme::kFp8Tensor:
      case ExpertScheme::kFp8Channel:
        each(count, unit, [&](int i) { return e4m3_at(m.weights, at + i); });
        break;
      case ExpertScheme::kFp8Block: {
        const std::int64_t rows = (m.rows + 127) / 128;
        const std::int64_t columns = (m.columns + 127) / 128;
        const std::int64_t scale = (row.expert * rows + row.row / 128) * columns + column / 128;
        const float factor = float_of_bits(
            plain_bits(m.scales + scale * plain_size(m.scale_dtype), m.scale_dtype),
            m.scale_dtype);
        each(count, unit, [&](int i) { return e4m3_at(m.weights, at + i) * factor; });
        break;
      }
      case ExpertScheme::kNvfp4:
        each(count, unit,
             [&](int i) { return e2m1_at(m, at + i) * e4m3_at(m.scales, (at + i) / 16); });
        break;
      case ExpertScheme::kInt4: int4_values(m, row, column, unit); break;
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
  // value[i] = value(i) of the first `count`.
  template <typename Value>
  __device__ static void each(int count, Unit& unit, const Value& value) {
    if (count >= 8) {
#pragma unroll
      for (int i = 0; i < 8; ++i) unit.value[i] = value(i);
      return;
    }
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      if (i < count) unit.value[i] = value(i);
    }
  }
  __device__ static float e2m1_at(const SchemeMatrix& m, std::int64_t at) {
    const std::uint32_t code = byte_of(m.weights, at / 2) >> (at % 2 * 4);
    const std::uint32_t c = code & 7;
    const float magnitude = c < 2 ? 0.5f * static_cast<float>(c)
                                  : __uint_as_float((c << 22) + 0x3F000000u);
    return (code & 8) != 0 ? -magnitude : magnitude;
  }
  __device__ static float e4m3_at(const std::byte* from, std::int64_t at) {
    return e4m3_floats(byte_of(from, at)).x;
  }

  // raw_matrix.h has the same on the host; the scales of rows and of the matrix come later.
  __device__ static void plain(const SchemeMatrix& m, tensor::DType dtype, const Row& row,
                               int column, Unit& unit) {
    const auto type = static_cast<std::int64_t>(dtype);
    const std::int64_t step = plain_size(type) * (m.input_major != 0 ? m.rows : 1);
    const std::int64_t first = m.input_major != 0 ? row.row : row.row * m.columns;
    const std::byte* from = m.weights + column * step +
                            (row.expert * m.rows * m.columns + first) * plain_size(type);
    each(static_cast<int>(m.columns - column), unit,
         [&](int i) { return float_of_bits(plain_bits(from + i * step, type), type); });
  }
  __device__ static void int4_values(const SchemeMatrix& m, const Row& row, int column,
                                     Unit& unit) {
    const Int4Row at = Int4Row::find(m, row.expert, row.row);
    const bool awq = m.packing == kAwqPacking;
    const std::int32_t* index = m.group_index == nullptr
                                    ? nullptr
                                    : m.group_index + row.expert * m.columns + column;
    each(static_cast<int>(m.columns - column), unit, [&](int i) {
      const Int4Group group =
          at.group(m, index != nullptr ? static_cast<std::uint32_t>(__ldg(index + i))
                                       : group_of_column(m, column + i));
      const int shift = awq ? row_shift(m, row.row) : 4 * i;
      const std::uint32_t word = word_at(at.word(m, awq ? column + i : column / 8));
      const int steps = static_cast<int>(word >> shift & 15) - int4_zero(m, group, row.row);
      return float_of_bits(group.bits, m.scale_dtype) * static_cast<float>(steps);
    });
  }
};

}  // namespace holdfast::experts::cuda
