// The weights' side of the matrix atom: where packed MXFP4 codes lie, and how a lane makes them its
// registers of wgmma m64nNk16. Device code only.
//
// Where a lane's codes lie: 8 rows x 128 columns stand together (FieldOrder::kWarpTile), a lane
// reads 16 bytes: the 32 columns of row lane / 4 that begin at 32 * (lane % 4), with one scale.
// Which column meets which place of the atom is free if the inputs' order agrees (place_of).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cute/tensor.hpp>

namespace holdfast::experts::grouped {

using cute::bfloat16_t;
using cute::Int;

constexpr int kTileColumns = 128;  // of a lane's 16 bytes and its three neighbours'

// Where column c of 128 stands among the inputs: step 16 j of the atom, place 2 q + {0, 1, 8, 9} in
// it. A lane's word of eight codes gives two steps, each four codes: 0 4 1 5 and 2 6 3 7.
__host__ __device__ constexpr int place_of(int c) {
  const int q = c / 32;
  const int i = c % 8;
  const int step = 2 * (c % 32 / 8) + i % 4 / 2;
  return 16 * step + 2 * q + i / 4 + 8 * (i % 2);
}
// The column that stands at place p.
__host__ __device__ constexpr int column_at(int p) {
  const int step = p / 16;
  const int k = p % 16;
  return 32 * (k % 8 / 2) + 8 * (step / 2) + 2 * (step % 2) + k / 8 + 4 * (k % 2);
}
constexpr bool places_and_columns_agree() {
  for (int c = 0; c < kTileColumns; ++c) {
    if (column_at(place_of(c)) != c) return false;
  }
  return true;
}
static_assert(places_and_columns_agree());

// Codes and scales of all experts' matrices; rows and columns are padded.
struct PackedMatrix {
  const uint4* codes;
  const std::uint8_t* scales;
  std::int32_t rows;
  std::int32_t tiles;  // of 128 columns
};

// A scale 2^(s - 127) as two factors. A code's bits taken for a bf16 are its value times 2^-126.
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
// Codes 0 and 4 (kSecond: 1 and 5) of a word as a pair of bf16 times 2^-126: sign, exponent and
// mantissa bit move to where a bf16 has them, subnormals included.
template <bool kSecond>
__device__ inline std::uint32_t as_pair(std::uint32_t word) {
  const std::uint32_t moved =
      kSecond ? (word & 0x00F000F0u) * 0x104u : (word & 0x000F000Fu) * 0x1040u;
  return moved & 0x81C081C0u;
}

// A lane's codes of one tile: 32 columns of two rows of the atom, eight apart.
struct Codes {
  uint4 low, high;
  std::uint32_t low_scale, high_scale;
};

// Where a lane reads them, of tile 0; the next tile's are kCodesStep on.
struct Lines {
  const uint4* codes[2];
  const std::uint8_t* scales[2];
  static constexpr int kCodesStep = 32;
  static constexpr int kScalesStep = 256;

  // The lane's rows are in the blocks of 8 rows `low` and `high`.
  __device__ Lines(const PackedMatrix& a, int expert, int low, int high) {
    const int lane = threadIdx.x % 32;
    const std::int64_t blocks = a.rows / 8;
    const int eights[2] = {low, high};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = eights[i] * 8 + lane / 4;
      codes[i] = a.codes + (expert * blocks + eights[i]) * a.tiles * kCodesStep + lane;
      scales[i] = a.scales + (expert * (blocks / 8) + row / 64) * a.tiles * kScalesStep +
                  row % 16 * 16 + row % 64 / 16 * 4 + lane % 4;
    }
  }
  __device__ Codes load(int tile) const {
    return {__ldcs(codes[0] + tile * kCodesStep), __ldcs(codes[1] + tile * kCodesStep),
            __ldg(scales[0] + tile * kScalesStep), __ldg(scales[1] + tile * kScalesStep)};
  }
};

// The weights of four steps of the atom: (element pair, row half, k half), 1, step.
using Weights = decltype(cute::make_tensor<bfloat16_t>(
    cute::Shape<cute::Shape<Int<2>, Int<2>, Int<2>>, Int<1>, Int<4>>{}));

__device__ inline void decode(std::uint32_t low_word, std::uint32_t high_word,
                              std::uint32_t low_factor, std::uint32_t high_factor,
                              std::uint32_t* to) {
  to[0] = multiply_pairs(as_pair<false>(low_word), low_factor);
  to[1] = multiply_pairs(as_pair<false>(high_word), high_factor);
  to[2] = multiply_pairs(as_pair<true>(low_word), low_factor);
  to[3] = multiply_pairs(as_pair<true>(high_word), high_factor);
}
// Words 2 kHalf and 2 kHalf + 1 of the lane's rows.
template <int kHalf>
__device__ inline void decode(const Codes& codes, Weights& weights) {
  std::uint32_t words[16];
  const std::uint32_t low = first_factor(codes.low_scale);
  const std::uint32_t high = first_factor(codes.high_scale);
  const std::uint32_t a = kHalf == 0 ? codes.low.x : codes.low.z;
  const std::uint32_t b = kHalf == 0 ? codes.high.x : codes.high.z;
  const std::uint32_t c = kHalf == 0 ? codes.low.y : codes.low.w;
  const std::uint32_t d = kHalf == 0 ? codes.high.y : codes.high.w;
  decode(a, b, low, high, words);
  decode(a >> 8, b >> 8, low, high, words + 4);
  decode(c, d, low, high, words + 8);
  decode(c >> 8, d >> 8, low, high, words + 12);
  if (__any_sync(0xFFFFFFFFu, max(codes.low_scale, codes.high_scale) > 128)) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      words[i] = multiply_pairs(
          words[i], rest_factor(i % 2 == 0 ? codes.low_scale : codes.high_scale));
    }
  }
  auto to = cute::recast<std::uint32_t>(weights);
#pragma unroll
  for (int i = 0; i < 16; ++i) to(i) = words[i];
}

}  // namespace holdfast::experts::grouped
