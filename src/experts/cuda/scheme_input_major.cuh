// The matrix (scheme_matrices.cuh) of bf16 with the inputs first: gate and up fused, or one part
// alone. Device code only.
#pragma once

#include "experts/cuda/scheme_matrices.cuh"

namespace holdfast::experts::cuda {

// Lane l reads 4 neighbouring rows of each part, from 4 (l % 4) of the tile on, of one column of
// eight, and the warp transposes 8 columns x 8 rows at once. So a lane's rows are those that
// tile_row says. Rows are whole fours, columns whole eights.
struct InputMajorRows {
  static constexpr int kWords = 2, kSpan = 0;
  static constexpr bool kNibbles = false, kStrided = true, kSplit = false, kWhole = true,
                        kSettles = true;
  static constexpr Tile kTile = Tile::kAll;
  using Row = const std::byte*;  // column 0 of the lane's four rows; both parts' for two
  struct Unit {
    std::uint32_t pairs[kWords][4];
  };
  // l = lane / 4.
  __device__ static int tile_row(int l, int half) { return l / 2 * 4 + half * 2 + l % 2; }

  template <int kParts>
  __device__ static Row row(const SchemeMatrix& m, int expert, int first_row) {
    const int q = static_cast<int>(threadIdx.x) % 4;
    const std::int64_t first = first_row * kParts + q * 4 * kParts;
    const std::int64_t last = m.rows - 4 * kParts;
    return m.weights + (expert * m.rows * m.columns + (first < last ? first : last)) * 2;
  }
  template <int kParts, int kAll>
  __device__ static void load(const SchemeMatrix& m, const Row (&row)[kAll][2], int first,
                              bool valid, Unit (&into)[kAll][2]) {
    const int l = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < kWords * 4; ++i) {
      const int w = i / 4;
      const int column = first + w * 32 + l / 2 * 8 + i % 4 * 2 + l % 2;
      const bool inside = valid && column < m.columns;
      const std::int64_t at = column * m.rows * 2;
      if constexpr (kParts == 2) {
        uint4 rows = {};
        if (inside) rows = __ldg(reinterpret_cast<const uint4*>(row[0][0] + at));
        into[0][0].pairs[w][i % 4] = rows.x;
        into[1][0].pairs[w][i % 4] = rows.y;
        into[0][1].pairs[w][i % 4] = rows.z;
        into[1][1].pairs[w][i % 4] = rows.w;
      } else {
#pragma unroll
        for (int t = 0; t < kAll; ++t) {
          uint2 rows = {};
          if (inside) rows = __ldg(reinterpret_cast<const uint2*>(row[t][0] + at));
          into[t][0].pairs[w][i % 4] = rows.x;
          into[t][1].pairs[w][i % 4] = rows.y;
        }
      }
    }
  }
  // Fused, a word as loaded holds a row of gate and one of up.
  template <int kParts, int kAll>
  __device__ static void settle(Unit (&unit)[kAll][2]) {
#pragma unroll
    for (int i = 0; i < kWords * 4 * 2; ++i) {
      const auto at = [&](int t) -> std::uint32_t& {
        return unit[t][i % 2].pairs[i / 8][i / 2 % 4];
      };
      if constexpr (kParts == 2) {
        const std::uint32_t a = at(0), b = at(1);
        at(0) = __byte_perm(a, b, 0x5410);
        at(1) = __byte_perm(a, b, 0x7632);
      }
#pragma unroll
      for (int t = 0; t < kAll; ++t) at(t) = transposed(at(t));
    }
  }
  __device__ static void decode(const Unit& unit, int w, std::uint32_t (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[0][i] = unit.pairs[w][i];
  }

 private:
  // Of 8 x 8, lane l's pair is of row l / 4.
  __device__ static std::uint32_t transposed(std::uint32_t pair) {
    std::uint32_t out;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(out) : "r"(pair));
    return out;
  }
};

}  // namespace holdfast::experts::cuda
