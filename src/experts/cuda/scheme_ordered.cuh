// The matrix (scheme_matrices.cuh) of INT4 under act-order, where each column has a group of its
// own. Device code only.
#pragma once

#include "experts/cuda/scheme_int4.cuh"

namespace holdfast::experts::cuda {

// Scales and zeros of all groups of a tile's 16 rows lie in shared memory; columns stay in their
// published order, and each looks its group up there. Scales of 16 bits only: the zero is in the
// bits that such a scale leaves 0 as float32.
struct OrderedRows {
  static constexpr int kWords = 1, kSpan = 0;
  static constexpr bool kNibbles = true, kStrided = false, kSplit = true, kWhole = true,
                        kSettles = false;
  static constexpr Tile kTile = Tile::kRows;
  struct Row {
    std::uint32_t codes;
    std::uint32_t table;  // the row's entry of group 0
  };
  struct Unit {
    std::uint32_t codes;
    int4 groups;  // of four columns: the first with the lane's first row, the rest with its second
  };

  // 16 entries, and what keeps groups off each other's banks.
  static constexpr int kGroupBytes = 80;
  static constexpr std::uint32_t kZeroBits = 0x1F;
  __host__ __device__ static constexpr std::int64_t table_bytes(std::int64_t groups) {
    return groups * kGroupBytes;
  }
  // `rows`: the tile's first, and how many the product has.
  __device__ static void fill_table(const SchemeMatrix& m, int expert, int2 rows, std::byte* table,
                                    int2 thread) {
    for (int i = thread.x; i < static_cast<int>(m.groups) * 16; i += thread.y) {
      const int r = min(rows.x + i % 16, rows.y - 1);
      const Int4Row row = Int4Row::find(m, expert, r * m.row_step + m.first_row);
      const Int4Group group = row.group(m, i / 16);
      const float scale = float_of_bits(group.bits, m.scale_dtype);
      *reinterpret_cast<std::uint32_t*>(table + i / 16 * kGroupBytes + i % 16 * 4) =
          __float_as_uint(scale) | static_cast<std::uint32_t>(int4_zero(m, group, r));
    }
  }

  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return {Int4Row::find(m, expert, r * m.row_step + m.first_row).codes, 0};
  }
  // x is 0 where a column is past the matrix's.
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    Unit unit = {};
    const int column = first + column_of<OrderedRows>(0);
    if (valid && column < m.columns) {
      unit.codes = word_at(Int4Row{row.codes, 0, 0}.word(m, column / 8));
    }
    return unit;
  }
  __device__ static int4 load_groups(const SchemeMatrix& m, int expert, int first, int half,
                                     bool valid) {
    const int column = first + column_of<OrderedRows>(0);
    if (!valid || column >= m.columns) return make_int4(0, 0, 0, 0);
    return __ldg(reinterpret_cast<const int4*>(m.group_index + expert * m.columns + column) + half);
  }
  __device__ static void decode_rows(const Row (&row)[2], const Unit (&unit)[2],
                                     std::uint32_t (&pairs)[2][2][4]) {
    const int4 a = unit[0].groups, b = unit[1].groups;
    const int groups[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const std::uint32_t low = entry(row[r].table + groups[i] * kGroupBytes);
        const std::uint32_t high = entry(row[r].table + groups[i + 4] * kGroupBytes);
        const std::uint32_t zeros =
            (__byte_perm(low, high, 0x5410) & (kZeroBits * 0x00010001u)) | 0x43004300u;
        const std::uint32_t steps = int4_steps(unit[r].codes >> (4 * i), zeros);
        const cuda_kernels::SplitPair pair = cuda_kernels::split_pair(
            __uint_as_float(steps << 16) * __uint_as_float(low & ~kZeroBits),
            __uint_as_float(steps & 0xFFFF0000u) * __uint_as_float(high & ~kZeroBits));
        pairs[r][0][i] = pair.hi;
        pairs[r][1][i] = pair.lo;
      }
    }
  }

 private:
  __device__ static std::uint32_t entry(std::uint32_t address) {
    std::uint32_t value;
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(value) : "r"(address));
    return value;
  }
};

}  // namespace holdfast::experts::cuda
