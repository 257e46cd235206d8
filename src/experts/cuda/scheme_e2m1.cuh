// The matrices (scheme_matrices.cuh) of MXFP4 and NVFP4. Device code only.
#pragma once

#include "experts/cuda/scheme_matrices.cuh"

namespace holdfast::experts::cuda {

__device__ inline std::uint32_t times(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}

// Codes 0 and 4 (kSecond: 1 and 5) of a word of eight, as a pair of bf16 times 2^-126: e2m1 lies in
// a bf16's upper bits as it is, subnormals included. One product moves the sign and the rest to
// their places; what else it moves is masked.
template <bool kSecond>
__device__ inline std::uint32_t place_codes(std::uint32_t word) {
  const std::uint32_t moved =
      kSecond ? (word & 0x00F000F0u) * 0x104u : (word & 0x000F000Fu) * 0x1040u;
  return moved & 0x81C081C0u;
}

// Rows of 4-bit floats, 32 at a time: under e8m0 for 32 inputs or, kFine, e4m3 for 16.
template <bool kFine>
struct E2m1Rows {
  static constexpr int kWords = 4;
  static constexpr int kSpan = 0;
  static constexpr bool kNibbles = true, kStrided = false, kSplit = false, kWhole = true,
                        kSettles = false;
  static constexpr Tile kTile = Tile::kRow;
  struct Row {
    const std::byte* codes;
    const std::byte* scales;
  };
  struct Unit {
    uint4 codes;
    std::uint32_t scales;
  };
  __device__ static Row row(const SchemeMatrix& m, int expert, int r) {
    const std::int64_t at = published_row(m, expert, r);
    return {m.weights + at * (m.columns / 2), m.scales + at * (m.columns / (kFine ? 16 : 32))};
  }
  __device__ static Unit load(const SchemeMatrix& m, const Row& row, int first, bool valid) {
    const int column = first + column_of<E2m1Rows>(0);
    if (!valid || column >= m.columns) return {make_uint4(0, 0, 0, 0), 0};
    Unit unit{__ldg(reinterpret_cast<const uint4*>(row.codes + column / 2)), 0};
    if constexpr (kFine) {
      unit.scales = *reinterpret_cast<const std::uint16_t*>(row.scales + column / 16);
    } else {
      unit.scales = byte_of(row.scales, column / 32);
    }
    return unit;
  }
  __device__ static void decode(const Unit& unit, int w, std::uint32_t (&pairs)[1][4]) {
    const std::uint32_t word = w == 0   ? unit.codes.x
                               : w == 1 ? unit.codes.y
                               : w == 2 ? unit.codes.z
                                        : unit.codes.w;
    std::uint32_t factor;
    if constexpr (kFine) {
      const float2 both = e4m3_floats(unit.scales);
      const float scale = w < 2 ? both.x : both.y;
      factor = bf16_pair(scale, scale);
    } else {
      factor = (max(unit.scales << 7, 0x40u) | (unit.scales + 1) >> 8) * 0x00010001u;
    }
    constexpr std::uint32_t kUp = 0x7E807E80u;  // 2^126
    pairs[0][0] = times(times(place_codes<false>(word), kUp), factor);
    pairs[0][1] = times(times(place_codes<true>(word), kUp), factor);
    pairs[0][2] = times(times(place_codes<false>(word >> 8), kUp), factor);
    pairs[0][3] = times(times(place_codes<true>(word >> 8), kUp), factor);
  }
};

}  // namespace holdfast::experts::cuda
