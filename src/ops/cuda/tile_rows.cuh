// Products of a matrix with many rows: a warp for each 16 or 32 rows of the matrix, one segment of
// the columns after the other (matrix.cuh), or a block of a cluster for each segment. Four warps
// multiply together (wgmma.cuh); what comes of the sums: a Finish. Device code only.
//
// A Finish gives row(tile, i), column(c) and extra(row, column), which only read, and
// store(row, column, extra, sum, partner's sum), so that a thread reads for several before it
// stores; kPartner: how far the partner's row is.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/matrix.cuh"
#include "ops/cuda/wgmma.cuh"

namespace holdfast::cuda_kernels {

// Brings a stage of 8 kGroups rows of x into shared memory, as wgmma wants it: 16 products of 16
// columns each, upper and lower halves in turn. A thread takes a chunk of one row: word `word` of
// lane `q`; of large tiles in four batches, so that it need not hold all of them.
template <typename Order, int kGroups>
struct StageLoader {
  static constexpr int kPasses = kGroups > 1 ? kGroups / 2 : 1;
  static constexpr int kBatches = kPasses > 2 ? 4 : 1;
  static constexpr int kHeld = kPasses / kBatches;
  static constexpr int kRows = kGroups * kColumns;
  static constexpr int kProductBytes = kRows * 32;
  static constexpr int kBytes = 16 * kProductBytes;
  const float* row[kPasses];
  Eight held[kHeld];

  __device__ static int q() { return static_cast<int>(threadIdx.x) % 4; }
  __device__ static int word() { return static_cast<int>(threadIdx.x) / 32 % 4; }
  __device__ static int row_at(int pass) {
    return (static_cast<int>(threadIdx.x) / 128 + pass * 2) * kColumns +
           static_cast<int>(threadIdx.x) % 32 / 4;
  }
  // row_of(i): the i-th row, or null.
  template <typename RowOf>
  __device__ explicit StageLoader(const RowOf& row_of) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) row[p] = row_at(p) < kRows ? row_of(row_at(p)) : nullptr;
  }
  __device__ void load(int batch, int stage, std::int64_t columns) {
    const std::int64_t column = stage * kStageColumns + Order::chunk(q(), word()) * 8;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const float* from = row[batch * kHeld + h];
      held[h] = from != nullptr && column < columns ? load_eight(from + column) : Eight{};
    }
  }
  __device__ void store(int batch, std::byte* to) const {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = row_at(batch * kHeld + h);
      if (i >= kRows) continue;
      const Chunk chunk = split_chunk<Order>(held[h]);
      std::byte* at = to + word() * 4 * kProductBytes + i * 16 + q() * 4;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        std::byte* of_pair = at + r / 2 * 2 * kProductBytes + r % 2 * (kRows * 16);
        *reinterpret_cast<std::uint32_t*>(of_pair) = chunk.hi[r];
        *reinterpret_cast<std::uint32_t*>(of_pair + kProductBytes) = chunk.lo[r];
      }
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
// A chunk is what of a segment is multiplied between two barriers: up to kSpan stages.
template <typename Matrix, int kRowTiles, int kGroups, int kAhead, Totals kTotals>
struct TileRows {
  using Order = typename Matrix::Order;
  using Unit = typename Matrix::Unit;
  using Loader = StageLoader<Order, kGroups>;
  static constexpr int kRing = kAhead;
  static constexpr int kSpan = kTotals == Totals::kNone || kGroups > 4 ? 1 : kGroups > 2 ? 2 : 3;
  static constexpr int kChunkBytes = kSpan * Loader::kBytes;
  static constexpr int kStagesBytes = 2 * kChunkBytes;
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

  // By all threads of the block. `shared`: a multiple of 128.
  template <typename RowOf>
  __device__ void run(const Matrix& matrix, const Share& share, std::byte* shared,
                      const RowOf& row_of) {
    const auto [first_tile, begin, end] = share;
    segment = segment_stages(matrix.stages());
    const int chunks = (segment + kSpan - 1) / kSpan;  // of a segment
    span = (segment + chunks - 1) / chunks;
    Loader x(row_of);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) lines[t] = matrix.lines(first_tile + t);
    last_unit = end * Matrix::kUnits;
#pragma unroll
    for (int i = 0; i < kRing; ++i) load(matrix, begin * Matrix::kUnits + i, ring[i]);
    std::byte* at = shared;
    std::byte* next = shared + kChunkBytes;
    bring(matrix, x, {begin, chunk_end(begin, end)}, at);
#pragma unroll 1
    for (int first = begin; first < end;) {
      fence_shared_for_wgmma();
      __syncthreads();
      const int last = chunk_end(first, end);
      const int after = last < end ? chunk_end(last, end) : last;  // the next chunk's end
      const int count = kSpan == 1 ? 1 : last - first;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const bool more = last + i < after;
        std::byte* to = next + i * Loader::kBytes;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          constexpr int kEach = 4 / Loader::kBatches;  // words while a batch is on its way
          if (more && w % kEach == 0) x.load(w / kEach, last + i, matrix.columns());
          multiply_word(matrix, first + i, w, at + i * Loader::kBytes);
          if (more && (w + 1) % kEach == 0) x.store(w / kEach, to);
        }
        // Words that are multiplied as they were loaded must not be under way when loads move up.
        if constexpr (Matrix::kUnits == 4) wgmma_wait<0>();
      }
      if constexpr (kSpan > 1) {
        bring(matrix, x, {last + count, after}, next + count * Loader::kBytes);
      }
      wgmma_wait<0>();
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) wgmma_done(acc[t]);
      if constexpr (kTotals != Totals::kNone) {
        if (last % segment == 0 || last == end) {
          fold(reinterpret_cast<float*>(shared + kStagesBytes), last <= segment, last == end);
        }
      }
      first = last;
      std::byte* const free = at;
      at = next;
      next = free;
    }
  }

 private:
  Lines lines[kRowTiles];
  Unit ring[kRing][kRowTiles];
  Unit now[kRowTiles];
  typename Matrix::Factors factors[kRowTiles];
  int last_unit = 0, segment = 0, span = 0;

  __device__ int chunk_end(int first, int end) const {
    if constexpr (kSpan == 1) return min(first + 1, end);
    const int in_segment = first % segment + span;
    return min(first - first % segment + min(in_segment, segment), end);
  }
  // Stages [stages.x, stages.y) of x, without anything to do meanwhile.
  __device__ void bring(const Matrix& matrix, Loader& x, int2 stages, std::byte* to) {
#pragma unroll 1
    for (int stage = stages.x; stage < stages.y; ++stage, to += Loader::kBytes) {
#pragma unroll
      for (int b = 0; b < Loader::kBatches; ++b) {
        x.load(b, stage, matrix.columns());
        x.store(b, to);
      }
    }
  }
  __device__ void load(const Matrix& matrix, int unit, Unit (&into)[kRowTiles]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) into[t] = matrix.load(lines[t], unit, unit < last_unit);
  }
  // Unit `unit`, the u-th of its stage, into `now`; the one kRing on is asked for.
  __device__ void take(const Matrix& matrix, int unit, int u) {
    const int slot = kTurns ? u % kRing : 0;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      now[t] = ring[slot][t];
      factors[t] = Matrix::factors(now[t]);
    }
    if constexpr (!kTurns) {
#pragma unroll
      for (int i = 0; i + 1 < kRing; ++i) {
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) ring[i][t] = ring[i + 1][t];
      }
    }
    load(matrix, unit + kRing, ring[kTurns ? slot : kRing - 1]);
  }
  // Word w of the stage, whose x lies `at`. One word's products are under way while the next one
  // is made ready.
  __device__ __forceinline__ void multiply_word(const Matrix& matrix, int stage, int w,
                                                const std::byte* at) {
    constexpr int kProduct = Loader::kProductBytes >> 4;  // as a matrix's address counts
    std::uint64_t x = wgmma_matrix<kGroups>(at) + w * 4 * kProduct;
    if (w < Matrix::kUnits) take(matrix, stage * Matrix::kUnits + w, w);
    wgmma_wait<1>();
    std::uint32_t a[kRowTiles][2][4];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      Matrix::fragment(now[t], factors[t], a[t]);
      if constexpr (Matrix::kUnits == 1) Matrix::turn(now[t]);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        wgmma(acc[t], a[t][step], x);
        wgmma(acc[t], a[t][step], x + kProduct);
      }
      x += 2 * kProduct;
    }
    wgmma_commit();
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

}  // namespace holdfast::cuda_kernels
