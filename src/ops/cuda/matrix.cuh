// Products of a matrix with few or many rows of f32, which every matrix kernel here shares, and
// with them one order of additions, so that a row has the same bits alone and among others:
//
// Columns go in stages of 128; eight equal runs of stages are the segments. Within a segment one
// accumulator takes the mma in the order of the columns, of each 8 columns of a lane first the
// upper then the lower halves of x; the segments' sums are then added in order, from 0.
//
// Four ways to share that work out, by the number of rows of x:
//   few_rows      up to 8: a warp for each segment, all of x in shared memory
//   one_row       the same for one, where nothing else hides a load
//   tile_rows     many: a warp for each 16 (or 32) rows of the matrix, one segment after the other,
//                 four warps together (wgmma.cuh)
//   cluster_rows  between: as tile_rows, with a block for each segment and sums through the
//                 cluster's shared memory
// and one of experts (experts/cuda/staged_rows.cuh): as tile_rows, with x split beforehand.
//
// A Matrix gives: Order (how x lies in shared memory), kUnits (loads of a stage), Lines (a lane's
// two rows), lines(tile), load(lines, unit, valid), and a unit's first word ready to be multiplied
// (fragment, with what factors(unit) says); turn brings the next word to the front.
// Tiles are 16 rows, lane l has of each tile the rows l/4 and l/4 + 8. Rows past the end repeat the
// last one, and nobody stores their sums.
#pragma once

#include "ops/cuda/mma.cuh"

namespace holdfast::cuda_kernels {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kSegments = 8;
constexpr int kStageColumns = 128;
constexpr int kColumns = 8;  // rows of x that one mma takes
static_assert(kWarps == kSegments);

__host__ __device__ inline int stages_of(std::int64_t columns) {
  return static_cast<int>((columns + kStageColumns - 1) / kStageColumns);
}
__device__ inline int segment_stages(int stages) { return (stages + kSegments - 1) / kSegments; }

// Where 8 columns of x (a chunk: 8 upper halves, then 8 lower) lie in shared memory, so that the
// lanes' loads do not meet in a bank. `word`: which of the four chunks that a lane needs of a
// stage. For bf16 weights: lane q of four takes chunk 4 word + q.
struct PlainOrder {
  static constexpr int kStageBytes = 512;
  __host__ __device__ static int row_bytes(int stages) { return stages * kStageBytes + 16; }
  __device__ static int offset(int q, int word) { return word * 128 + q * 32; }
  __device__ static int chunk_offset(int chunk) { return chunk * 32; }
  __device__ static int chunk(int q, int word) { return word * 4 + q; }
  __device__ static constexpr int column(int i) { return i; }
};
// For MXFP4: lane q takes block q of 32 columns, a word of 8 codes at a time, which are decoded in
// the order 0 4 1 5 2 6 3 7.
struct Mxfp4Order {
  static constexpr int kStageBytes = 576;
  __host__ __device__ static int row_bytes(int stages) {
    return stages * kStageBytes + (stages % 2 == 0 ? 64 : 0);
  }
  __device__ static int offset(int q, int word) { return q * 144 + word * 32; }
  __device__ static int chunk_offset(int chunk) { return chunk / 4 * 144 + chunk % 4 * 32; }
  __device__ static int chunk(int q, int word) { return q * 4 + word; }
  // Of a chunk its q and word.
  __device__ static int2 place(int chunk) { return make_int2(chunk / 4, chunk % 4); }
  __device__ static constexpr int column(int i) { return i / 2 + i % 2 * 4; }
};

struct Eight {
  float value[8];
};
__device__ inline Eight load_eight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

struct Chunk {
  std::uint32_t hi[4], lo[4];
};
template <typename Order>
__device__ Chunk split_chunk(const Eight& x) {
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const SplitPair pair =
        split_pair(x.value[Order::column(2 * i)], x.value[Order::column(2 * i + 1)]);
    chunk.hi[i] = pair.hi;
    chunk.lo[i] = pair.lo;
  }
  return chunk;
}
template <typename Order>
__device__ void store_chunk(std::byte* at, const Eight& x) {
  const Chunk c = split_chunk<Order>(x);
  reinterpret_cast<uint4*>(at)[0] = make_uint4(c.hi[0], c.hi[1], c.hi[2], c.hi[3]);
  reinterpret_cast<uint4*>(at)[1] = make_uint4(c.lo[0], c.lo[1], c.lo[2], c.lo[3]);
}

// A row of x that is split once, by whoever writes it, for products of many rows: stages of 512
// bytes. Of a stage, unit (word w, pair r, half h) of 16 bytes lies at 16 (8 w + 2 r + h): of each
// lane q the columns 2 r and 2 r + 1 of its chunk, upper (h = 0) or lower halves.
constexpr int kSplitStageBytes = 512;

// Where the `chunk`-th chunk of a stage has its pair r of upper halves; that of lower ones comes 16
// bytes after.
template <typename Order>
__device__ int split_offset(int chunk, int r) {
  const int2 place = Order::place(chunk);
  return place.y * 128 + r * 32 + place.x * 4;
}
// The `chunk`-th chunk of a row.
template <typename Order>
__device__ void store_split(std::byte* row, int chunk, const Eight& x) {
  const Chunk of = split_chunk<Order>(x);
  row += chunk / 16 * kSplitStageBytes;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    auto* at = reinterpret_cast<std::uint32_t*>(row + split_offset<Order>(chunk % 16, r));
    at[0] = of.hi[r];
    at[4] = of.lo[r];
  }
}

// ------------------------------------------------------------------------------ norm

// One thread's part of the sum of squares of a row: chunks of 8 columns in turn; see norm_scale.
__device__ inline float add_squares(const Eight& x, float sum) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(x.value[i], x.value[i], sum);
  return sum;
}
__device__ inline float square_sum(const float* x, std::int64_t columns) {
  float sum = 0.0f;
  if (columns % 8 == 0) {
    for (int c = threadIdx.x * 8; c < columns; c += kThreads * 8) {
      sum = add_squares(load_eight(x + c), sum);
    }
    return sum;
  }
  for (std::int64_t c = threadIdx.x * 8; c < columns; c += kThreads * 8) {
    const std::int64_t end = smaller(c + 8, columns);
    for (std::int64_t i = c; i < end; ++i) sum = fmaf(x[i], x[i], sum);
  }
  return sum;
}
// Within each warp by halving distances; the first lane holds it.
__device__ inline float warp_total(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}
// 1 / rms from the warps' sums, which are added in order.
__device__ inline float norm_scale(const float* warp_sums, std::int64_t columns, float eps) {
  float sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += warp_sums[w];
  return 1.0f / sqrtf(__fadd_rn(sum / static_cast<float>(columns), eps));
}
// Never contracted into what uses it, so that every kernel has the same bits.
__device__ inline float normed(float x, float scale, float weight) {
  return __fmul_rn(__fmul_rn(x, scale), weight);
}
// Eight neighbouring weights, bf16 or f32.
__device__ inline Eight load_weights(const void* weights, std::int64_t is_f32, std::int64_t at) {
  if (is_f32 != 0) return load_eight(static_cast<const float*>(weights) + at);
  const uint4 words =
      __ldg(reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(weights) + at));
  const std::uint32_t each[4] = {words.x, words.y, words.z, words.w};
  Eight loaded;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    loaded.value[2 * i] = __uint_as_float(each[i] << 16);
    loaded.value[2 * i + 1] = __uint_as_float(each[i] & 0xFFFF0000u);
  }
  return loaded;
}
__device__ inline Eight normed(const Eight& x, float scale, const Eight& weight) {
  Eight result;
#pragma unroll
  for (int i = 0; i < 8; ++i) result.value[i] = normed(x.value[i], scale, weight.value[i]);
  return result;
}

// ------------------------------------------------------------------------------ one word of
// columns

// The products of a unit's first word: kRowTiles x kGroups tiles of 16 x 8. `x` is the lane's place
// in the shared rows of group 0; groups are `group_bytes` apart.
template <typename Matrix, int kRowTiles, int kGroups>
__device__ __forceinline__ void multiply_word(
    const typename Matrix::Unit (&unit)[kRowTiles],
    const typename Matrix::Factors (&factors)[kRowTiles], const std::byte* x, int group_bytes,
    float (&sums)[kRowTiles][kGroups][4]) {
  std::uint32_t a[kRowTiles][2][4];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) Matrix::fragment(unit[t], factors[t], a[t]);
  // Two groups at a time, because the four mma of one wait for each other.
  constexpr int kBatch = kGroups < 2 ? kGroups : 2;
#pragma unroll
  for (int first = 0; first < kGroups; first += kBatch) {
    uint4 hi[kBatch], lo[kBatch];
#pragma unroll
    for (int g = 0; g < kBatch; ++g) {
      hi[g] = *reinterpret_cast<const uint4*>(x + (first + g) * group_bytes);
      lo[g] = *reinterpret_cast<const uint4*>(x + (first + g) * group_bytes + 16);
    }
    const auto each = [&](const auto& multiply) {
#pragma unroll
      for (int g = 0; g < kBatch; ++g) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) multiply(sums[t][first + g], a[t], g);
      }
    };
    each([&](auto& sum, const auto& w, int g) { mma_bf16(sum, w[0], hi[g].x, hi[g].y); });
    each([&](auto& sum, const auto& w, int g) { mma_bf16(sum, w[0], lo[g].x, lo[g].y); });
    each([&](auto& sum, const auto& w, int g) { mma_bf16(sum, w[1], hi[g].z, hi[g].w); });
    each([&](auto& sum, const auto& w, int g) { mma_bf16(sum, w[1], lo[g].z, lo[g].w); });
  }
}

// All words of a unit, which is the `first`-th word of its stage. `stage`: the lane's row of group
// 0.
template <typename Matrix, int kRowTiles, int kGroups>
__device__ __forceinline__ void multiply_unit(typename Matrix::Unit (&unit)[kRowTiles], int first,
                                              const std::byte* stage, int group_bytes,
                                              float (&sums)[kRowTiles][kGroups][4]) {
  using Order = typename Matrix::Order;
  const std::byte* x = stage + Order::offset(static_cast<int>(threadIdx.x) % 4, first);
  typename Matrix::Factors factors[kRowTiles];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) factors[t] = Matrix::factors(unit[t]);
#pragma unroll
  for (int w = 0; w < 4 / Matrix::kUnits; ++w) {
    multiply_word<Matrix, kRowTiles, kGroups>(unit, factors, x + Order::offset(0, w), group_bytes,
                                              sums);
    if constexpr (Matrix::kUnits == 1) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) Matrix::turn(unit[t]);
    }
  }
}

}  // namespace holdfast::cuda_kernels
