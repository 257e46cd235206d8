// Products of a matrix with few or many rows of f32, which every matrix kernel here shares, and with
// them one order of additions, so that a row has the same bits alone and among others:
//
// Columns go in stages of 128; eight equal runs of stages are the segments. Within a segment one
// accumulator takes the mma in the order of the columns, of each 8 columns of a lane first the upper
// then the lower halves of x; the segments' sums are then added in order, from 0.
//
// Three ways to share that work out, by the number of rows of x:
//   few_rows      up to 8: a warp for each segment, all of x in shared memory
//   tile_rows     many: a warp for each 16 (or 32) rows of the matrix, one segment after the other
//   cluster_rows  between: as tile_rows, with a block for each segment and sums through the
//                 cluster's shared memory
//
// A Matrix gives: Order (how x lies in shared memory), kUnits (loads of a stage), Lines (a lane's two
// rows), lines(tile), load(lines, unit), fragment(unit, word, a). Tiles are 16 rows, lane l has of
// each tile the rows l/4 and l/4 + 8.
#pragma once

#include <cooperative_groups.h>

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
// lanes' loads do not meet in a bank. `word`: which of the four chunks that a lane needs of a stage.
// For bf16 weights: lane q of four takes chunk 4 word + q.
struct PlainOrder {
  static constexpr int kStageBytes = 512;
  __host__ __device__ static int row_bytes(int stages) { return stages * kStageBytes + 16; }
  __device__ static int offset(int q, int word) { return word * 128 + q * 32; }
  __device__ static int chunk_offset(int chunk) { return chunk * 32; }
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

template <typename Order>
__device__ void store_chunk(std::byte* at, const Eight& x) {
  std::uint32_t hi[4], lo[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const SplitPair pair =
        split_pair(x.value[Order::column(2 * i)], x.value[Order::column(2 * i + 1)]);
    hi[i] = pair.hi;
    lo[i] = pair.lo;
  }
  reinterpret_cast<uint4*>(at)[0] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
  reinterpret_cast<uint4*>(at)[1] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

// ------------------------------------------------------------------------------ norm

// One thread's part of the sum of squares of a row; see norm_scale.
__device__ inline float square_sum(const float* x, std::int64_t columns) {
  float sum = 0.0f;
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

// ------------------------------------------------------------------------------ one word of columns

// The products of one word: kRowTiles x kGroups tiles of 16 x 8. `x` is the lane's place in the
// shared rows of group 0; groups are `group_bytes` apart.
template <typename Matrix, int kRowTiles, int kGroups>
__device__ __forceinline__ void multiply_word(const typename Matrix::Unit (&unit)[kRowTiles],
                                              int word, const std::byte* x, int group_bytes,
                                              float (&sums)[kRowTiles][kGroups][4]) {
  std::uint32_t a[kRowTiles][2][4];
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) Matrix::fragment(unit[t], word, a[t]);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const uint4 hi = *reinterpret_cast<const uint4*>(x + g * group_bytes);
    const uint4 lo = *reinterpret_cast<const uint4*>(x + g * group_bytes + 16);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) mma_bf16(sums[t][g], a[t][0], hi.x, hi.y);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) mma_bf16(sums[t][g], a[t][0], lo.x, lo.y);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) mma_bf16(sums[t][g], a[t][1], hi.z, hi.w);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) mma_bf16(sums[t][g], a[t][1], lo.z, lo.w);
  }
}

// ------------------------------------------------------------------------------ few rows

// The warps' sums of one tile of 16 rows x 8 columns.
struct FewSums {
  float value[2][kWarps][16][kColumns + 1];
};

// The loads of a warp for `kAhead` units of one tile at a time; the next ones are under way while
// these are multiplied.
template <typename Matrix, int kAhead>
struct FewRows {
  using Unit = typename Matrix::Unit;
  const Matrix& matrix;
  int tile, tile_end;
  int unit_begin = 0, unit_end = 0, rounds = 0;  // of this warp; rounds of kAhead units, of every one
  Unit next[kAhead];

  __device__ FewRows(const Matrix& m, int first_tile, int end_tile)
      : matrix(m), tile(first_tile), tile_end(end_tile) {
    const int stages = m.stages();
    const int segment = segment_stages(stages);
    const int warp = threadIdx.x / 32;
    unit_begin = min(warp * segment, stages) * Matrix::kUnits;
    unit_end = min((warp + 1) * segment, stages) * Matrix::kUnits;
    rounds = (segment * Matrix::kUnits + kAhead - 1) / kAhead;
    load(tile, 0);
  }
  __device__ void load(int of_tile, int round) {
    const auto lines = matrix.lines(of_tile);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int unit = unit_begin + round * kAhead + i;
      next[i] = matrix.load(lines, unit, unit < unit_end);
    }
  }

  // Calls store(tile, row of 16, column, value, value of the partner row) from 128 threads.
  // `x`: all rows in shared memory; `rows` of them are there, at least 1.
  template <int kPartner, typename Store>
  __device__ void run(const std::byte* x, int rows, FewSums& sums, const Store& store) {
    using Order = typename Matrix::Order;
    const int lane = threadIdx.x % 32;
    const int line = min(lane / 4, rows - 1);
    x += line * Order::row_bytes(matrix.stages());
    for (int parity = 0; tile < tile_end; parity ^= 1) {
      float acc[1][1][4] = {};
      for (int round = 0; round < rounds; ++round) {
        Unit now[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) now[i] = next[i];
        const bool last = round + 1 == rounds;
        if (!last || tile + 1 < tile_end) load(last ? tile + 1 : tile, last ? 0 : round + 1);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int unit = unit_begin + round * kAhead + i;
          if (unit >= unit_end) break;
          const Unit one[1] = {now[i]};
          const std::byte* stage = x + unit / Matrix::kUnits * Order::kStageBytes;
#pragma unroll
          for (int w = 0; w < 4 / Matrix::kUnits; ++w) {
            const int word = unit % Matrix::kUnits + w;
            multiply_word<Matrix, 1, 1>(one, word, stage + Order::offset(lane % 4, word), 0, acc);
          }
        }
      }
      add_up<kPartner>(acc[0][0], sums.value[parity], store);
      ++tile;
    }
  }

 private:
  template <int kPartner, typename Store>
  __device__ void add_up(const float (&acc)[4], float (&sums)[kWarps][16][kColumns + 1],
                         const Store& store) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = acc[i];
    __syncthreads();
    if (threadIdx.x >= 16 * kColumns) return;
    const int row = threadIdx.x % 16;
    const int column = threadIdx.x / 16;
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += sums[w][row][column];
    const float other = kPartner == 0 ? 0.0f : __shfl_xor_sync(0xFFFFFFFFu, sum, kPartner);
    store(tile, row, column, sum, other);
  }
};

// ------------------------------------------------------------------------------ many rows

// Brings a stage of up to 8 kGroups rows of x into shared memory: a thread takes one chunk of
// every 16th row.
template <typename Order, int kGroups>
struct StageLoader {
  static constexpr int kPasses = kGroups > 1 ? kGroups / 2 : 1;
  static constexpr int kBytes = kGroups * kColumns * Order::kStageBytes +
                                kGroups * kColumns * 16;  // at least the rows of one stage
  const float* row[kPasses];
  Eight held[kPasses];

  // row_of(i): the i-th row, or null.
  template <typename RowOf>
  __device__ explicit StageLoader(const RowOf& row_of) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int i = static_cast<int>(threadIdx.x) / 16 + p * 16;
      row[p] = i < kGroups * kColumns ? row_of(i) : nullptr;
    }
  }
  __device__ void load(int stage, std::int64_t columns) {
    const std::int64_t column = stage * kStageColumns + threadIdx.x % 16 * 8;
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      held[p] = row[p] != nullptr && column < columns ? load_eight(row[p] + column) : Eight{};
    }
  }
  __device__ void store(std::byte* to) const {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int i = static_cast<int>(threadIdx.x) / 16 + p * 16;
      if (i >= kGroups * kColumns) continue;
      store_chunk<Order>(
          to + i * Order::row_bytes(1) + Order::chunk_offset(static_cast<int>(threadIdx.x) % 16),
          held[p]);
    }
  }
};

// Multiplies stages [begin, end) of a warp's tiles: acc holds the current segment's sums, and
// total the finished segments' when kFolds.
template <typename Matrix, int kRowTiles, int kGroups, int kAhead, bool kFolds>
struct TileRows {
  using Order = typename Matrix::Order;
  using Unit = typename Matrix::Unit;
  static constexpr int kRing = kAhead;
  static constexpr int kSharedBytes = 2 * StageLoader<Order, kGroups>::kBytes;
  static constexpr bool kTurns = Matrix::kUnits % kRing == 0;  // ring slots are known when compiled

  float acc[kRowTiles][kGroups][4] = {};
  float total[kFolds ? kRowTiles : 1][kFolds ? kGroups : 1][4] = {};

  template <typename RowOf>
  __device__ void run(const Matrix& matrix, int first_tile, int begin, int end, std::byte* shared,
                      const RowOf& row_of) {
    const int lane = threadIdx.x % 32;
    const int place = lane / 4 * Order::row_bytes(1);
    const int segment = segment_stages(matrix.stages());
    StageLoader<Order, kGroups> x(row_of);
    decltype(matrix.lines(0)) lines[kRowTiles];
    Unit ring[kRing][kRowTiles];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) lines[t] = matrix.lines(first_tile + t);
    const int last_unit = end * Matrix::kUnits;
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
      load(matrix, lines, begin * Matrix::kUnits + i, last_unit, ring[i]);
    }
    x.load(begin, matrix.columns());
    x.store(shared);
    __syncthreads();
    for (int stage = begin; stage < end; ++stage) {
      const bool more = stage + 1 < end;
      if (more) x.load(stage + 1, matrix.columns());
      const std::byte* at = shared + (stage - begin) % 2 * StageLoader<Order, kGroups>::kBytes;
#pragma unroll
      for (int u = 0; u < Matrix::kUnits; ++u) {
        Unit now[kRowTiles];
        take(matrix, lines, stage * Matrix::kUnits + u, last_unit, ring, u, now);
#pragma unroll
        for (int w = 0; w < 4 / Matrix::kUnits; ++w) {
          multiply_word<Matrix, kRowTiles, kGroups>(now, u + w,
                                                    at + place + Order::offset(lane % 4, u + w),
                                                    kColumns * Order::row_bytes(1), acc);
        }
      }
      if constexpr (kFolds) {
        if ((stage + 1) % segment == 0 || !more) fold();
      }
      if (!more) break;
      x.store(shared + (stage + 1 - begin) % 2 * StageLoader<Order, kGroups>::kBytes);
      __syncthreads();
    }
  }

 private:
  __device__ static void load(const Matrix& matrix,
                              const decltype(matrix.lines(0)) (&lines)[kRowTiles], int unit,
                              int last_unit, Unit (&into)[kRowTiles]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) into[t] = matrix.load(lines[t], unit, unit < last_unit);
  }
  __device__ static void take(const Matrix& matrix,
                              const decltype(matrix.lines(0)) (&lines)[kRowTiles], int unit,
                              int last_unit, Unit (&ring)[kRing][kRowTiles], int u,
                              Unit (&now)[kRowTiles]) {
    const int slot = kTurns ? u % kRing : 0;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) now[t] = ring[slot][t];
    if constexpr (!kTurns) {
#pragma unroll
      for (int i = 0; i + 1 < kRing; ++i) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) ring[i][t] = ring[i + 1][t];
      }
    }
    load(matrix, lines, unit + kRing, last_unit, ring[kTurns ? slot : kRing - 1]);
  }
  __device__ void fold() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[t][g][i] += acc[t][g][i];
          acc[t][g][i] = 0.0f;
        }
      }
    }
  }
};

// Calls store(row of 16, column, value, value of the partner row) for a lane's values of one tile.
template <int kPartner, int kGroups, typename Store>
__device__ void store_fragments(const float (&sums)[kGroups][4], const Store& store) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = sums[g][i];
      float other = 0.0f;
      if constexpr (kPartner == 8) other = sums[g][i ^ 2];
      if constexpr (kPartner == 1) other = __shfl_xor_sync(0xFFFFFFFFu, value, 4);
      store(lane / 4 + i / 2 * 8, g * kColumns + lane % 4 * 2 + i % 2, value, other);
    }
  }
}

// The 16 x 8 kGroups sums of the block's warps as the cluster's blocks exchange them.
template <int kGroups>
struct ClusterSums {
  float value[kWarps][16][kGroups * kColumns + 1];
};

// Adds the segments' sums of tile `rank` of the cluster's eight, in order. Calls
// store(rank, row of 16, column, value, value of the partner row).
template <int kPartner, int kGroups, typename Store>
__device__ void add_cluster(const float (&acc)[kGroups][4], ClusterSums<kGroups>& sums,
                            const Store& store) {
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  const int warp = threadIdx.x / 32;
  __syncthreads();  // x in the same shared memory has been read
  store_fragments<0, kGroups>(acc, [&](int row, int column, float value, float) {
    sums.value[warp][row][column] = value;
  });
  cluster.sync();
  const auto rank = static_cast<int>(cluster.block_rank());
  const int row = threadIdx.x % 16;
  for (int column = static_cast<int>(threadIdx.x) / 16; column < kGroups * kColumns;
       column += kThreads / 16) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      sum += *cluster.map_shared_rank(&sums.value[rank][row][column], static_cast<unsigned>(s));
    }
    const float other = kPartner == 0 ? 0.0f : __shfl_xor_sync(0xFFFFFFFFu, sum, kPartner);
    store(rank, row, column, sum, other);
  }
  cluster.sync();
}

}  // namespace holdfast::cuda_kernels
