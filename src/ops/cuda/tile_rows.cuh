// Products of a matrix with many rows: a warp for each 16 or 32 rows of the matrix, one segment of
// the columns after the other (matrix.cuh), or a block of a cluster for each segment. Device code
// only.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/matrix.cuh"

namespace holdfast::cuda_kernels {

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

// Where finished segments' sums wait: nowhere (a block has but one segment), registers, or, where
// those are short, shared memory.
enum class Totals { kNone, kRegisters, kShared };
template <int kRowTiles, int kGroups>
constexpr Totals kTotalsOf = kRowTiles * kGroups < 8 ? Totals::kRegisters : Totals::kShared;

// Multiplies stages [begin, end) of a warp's tiles: acc holds the current segment's sums and, in
// the end, when there are totals, those.
template <typename Matrix, int kRowTiles, int kGroups, int kAhead, Totals kTotals>
struct TileRows {
  using Order = typename Matrix::Order;
  using Unit = typename Matrix::Unit;
  static constexpr int kRing = kAhead;
  static constexpr int kStagesBytes = 2 * StageLoader<Order, kGroups>::kBytes;
  static constexpr int kSums = kRowTiles * kGroups * 4;
  static constexpr int kSharedBytes =
      kStagesBytes + (kTotals == Totals::kShared ? kSums * kThreads * 4 : 0);
  static constexpr bool kTurns = Matrix::kUnits % kRing == 0;  // ring slots are known when compiled

  using Lines = decltype(static_cast<const Matrix*>(nullptr)->lines(0));
  // What a warp multiplies: its tiles from `first_tile` on, stages [begin, end).
  struct Share {
    int first_tile = 0, begin = 0, end = 0;
  };

  float acc[kRowTiles][kGroups][4] = {};
  float total[kTotals == Totals::kRegisters ? kSums : 1] = {};

  template <typename RowOf>
  __device__ void run(const Matrix& matrix, const Share& share, std::byte* shared,
                      const RowOf& row_of) {
    const auto [first_tile, begin, end] = share;
    const int lane = threadIdx.x % 32;
    const int place = lane / 4 * Order::row_bytes(1);
    const int segment = segment_stages(matrix.stages());
    StageLoader<Order, kGroups> x(row_of);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) lines[t] = matrix.lines(first_tile + t);
    const int last_unit = end * Matrix::kUnits;
#pragma unroll
    for (int i = 0; i < kRing; ++i) {
      load(matrix, begin * Matrix::kUnits + i, last_unit, ring[i]);
    }
    x.load(begin, matrix.columns());
    x.store(shared);
    __syncthreads();
#pragma unroll(kTurns ? 1 : kRing)
    for (int stage = begin; stage < end; ++stage) {
      const bool more = stage + 1 < end;
      if (more) x.load(stage + 1, matrix.columns());
      const std::byte* at = shared + (stage - begin) % 2 * StageLoader<Order, kGroups>::kBytes;
#pragma unroll
      for (int u = 0; u < Matrix::kUnits; ++u) {
        Unit now[kRowTiles];
        take(matrix, stage * Matrix::kUnits + u, last_unit, u, now);
        multiply_unit<Matrix, kRowTiles, kGroups>(now, u, at + place,
                                                  kColumns * Order::row_bytes(1), acc);
      }
      if constexpr (kTotals != Totals::kNone) {
        if ((stage + 1) % segment == 0 || !more) {
          fold(reinterpret_cast<float*>(shared + kStagesBytes), stage < segment, !more);
        }
      }
      if (!more) break;
      x.store(shared + (stage + 1 - begin) % 2 * StageLoader<Order, kGroups>::kBytes);
      __syncthreads();
    }
  }

 private:
  Lines lines[kRowTiles];
  Unit ring[kRing][kRowTiles];

  __device__ void load(const Matrix& matrix, int unit, int last_unit, Unit (&into)[kRowTiles]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) into[t] = matrix.load(lines[t], unit, unit < last_unit);
  }
  // Unit `unit`, the u-th of its stage, into `now`; the one kRing on is asked for.
  __device__ void take(const Matrix& matrix, int unit, int last_unit, int u,
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
    load(matrix, unit + kRing, last_unit, ring[kTurns ? slot : kRing - 1]);
  }
  // Adds acc to the totals (0 before the first segment), and begins anew or, last, takes them over.
  __device__ void fold(float* waiting, bool first, bool last) {
#pragma unroll
    for (int at = 0; at < kSums; ++at) {
      float& sum = acc[at / (kGroups * 4)][at / 4 % kGroups][at % 4];
      float& so_far = kTotals == Totals::kShared ? waiting[at * kThreads + threadIdx.x]
                                                 : total[kTotals == Totals::kShared ? 0 : at];
      const float added = (first ? 0.0f : so_far) + sum;
      if (last) {
        sum = added;
      } else {
        so_far = added;
        sum = 0.0f;
      }
    }
  }
};

// 16 x 8 kGroups sums of each warp, on their way from the lanes that have them to those that store
// them.
template <int kGroups>
struct TileSums {
  float value[kWarps][16][kGroups * kColumns + 1];

  __device__ void put(const float (&sums)[kGroups][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[threadIdx.x / 32][lane / 4 + i / 2 * 8][g * kColumns + lane % 4 * 2 + i % 2] =
            sums[g][i];
      }
    }
  }
};

// Calls store(row of 16, column, value, value of the partner row) for all values of a warp's tile.
// The block has read all else in the shared memory of `exchange`.
template <int kPartner, int kGroups, typename Store>
__device__ void store_tile(const float (&sums)[kGroups][4], TileSums<kGroups>& exchange,
                           const Store& store) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  exchange.put(sums);
  __syncwarp();
#pragma unroll 1
  for (int column = lane / 16; column < kGroups * kColumns; column += 2) {
    const float value = exchange.value[threadIdx.x / 32][lane % 16][column];
    const float other = kPartner == 0 ? 0.0f : __shfl_xor_sync(0xFFFFFFFFu, value, kPartner);
    store(lane % 16, column, value, other);
  }
}

// Adds the segments' sums of tile `rank` of the cluster's eight, in order. Calls
// store(rank, row of 16, column, value, value of the partner row).
template <int kPartner, int kGroups, typename Store>
__device__ void add_cluster(const float (&acc)[kGroups][4], TileSums<kGroups>& sums,
                            const Store& store) {
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  __syncthreads();  // x in the same shared memory has been read
  sums.put(acc);
  cluster.sync();
  const auto rank = static_cast<int>(cluster.block_rank());
  const int row = threadIdx.x % 16;
#pragma unroll 1
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
