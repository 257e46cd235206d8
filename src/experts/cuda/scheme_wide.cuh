// The matrices (scheme_matrices.cuh) of f16 and f32. Device code only.
#pragma once

#include "experts/cuda/scheme_matrices.cuh"

namespace holdfast::experts::cuda {

// f16 and f32, which go in two halves.
template <bool kF32>
struct WideRows {
  static constexpr int kWords = kF32 ? 1 : 2;
  static constexpr int kSpan = 0;
  static constexpr bool kNibbles = false, kStrided = false, kSplit = true, kWhole = true,
                        kSettles = false;
  static constexpr Tile kTile = Tile::kRow;
  using Row = const std::byte*;
  struct Unit {
    uint4 half[2];
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    return m.weights + published_row(m, expert, r) * m.columns * (kF32 ? 4 : 2);
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    const int column = first + column_of<WideRows>(0);
    if (!valid || column >= m.columns) return {};
    const auto* from =
        reinterpret_cast<const uint4*>(row + std::int64_t{column} * (kF32 ? 4 : 2));
    return {{__ldg(from), __ldg(from + 1)}};
  }
  __device__ static float2 two(const Unit& unit, int w, int i) {
    const uint4& half = unit.half[kF32 ? i / 2 : w];
    if constexpr (kF32) {
      return i % 2 == 0 ? make_float2(__uint_as_float(half.x), __uint_as_float(half.y))
                        : make_float2(__uint_as_float(half.z), __uint_as_float(half.w));
    } else {
      const std::uint32_t word = i == 0 ? half.x : i == 1 ? half.y : i == 2 ? half.z : half.w;
      return __half22float2(*reinterpret_cast<const __half2*>(&word));
    }
  }
  __device__ static void decode(const Unit& unit, int w, std::uint32_t (&pairs)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 values = two(unit, w, i);
      const cuda_kernels::SplitPair pair = cuda_kernels::split_pair(values.x, values.y);
      pairs[0][i] = pair.hi;
      pairs[1][i] = pair.lo;
    }
  }
};

}  // namespace holdfast::experts::cuda
