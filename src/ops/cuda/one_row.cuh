// Products of a matrix with one row of x, up to 4096 columns wide: as few_rows.cuh, a warp for each
// segment of the columns (matrix.cuh), with the same bits. One row leaves nothing to hide a load
// behind, so all is asked for before it is needed: matrix words before the row of x is there, and
// what becomes of the sums before they are. Device code only.
#pragma once

#include "ops/cuda/matrix.cuh"

namespace holdfast::cuda_kernels {

constexpr int kRowChunks = 2;  // of 8 columns, of the row of x, that a thread brings
__host__ inline bool is_one_row_wide(std::int64_t columns) {
  return columns <= kRowChunks * kThreads * 8;
}

// A thread's part of the row of x, on its way into shared memory.
struct HeldRow {
  Eight value[kRowChunks];

  // x may be null: zeros.
  __device__ void load(const float* x, std::int64_t columns) {
#pragma unroll
    for (int i = 0; i < kRowChunks; ++i) {
      const int column = (static_cast<int>(threadIdx.x) + i * kThreads) * 8;
      value[i] = x != nullptr && column < columns ? load_eight(x + column) : Eight{};
    }
  }
  template <typename Order>
  __device__ void store(int stages, std::byte* to) const {
#pragma unroll
    for (int i = 0; i < kRowChunks; ++i) {
      const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
      if (chunk >= stages * 16) continue;
      store_chunk<Order>(to + chunk / 16 * Order::kStageBytes + Order::chunk_offset(chunk % 16),
                         value[i]);
    }
  }
};

// The warps' sums of tiles of 16 rows.
template <int kTiles>
struct OneRowSums {
  float value[kTiles][kWarps][16];

  __device__ void put(int tile, const float (&acc)[4]) {
    const int lane = threadIdx.x % 32;
    if (lane % 4 != 0) return;
    value[tile][threadIdx.x / 32][lane / 4] = acc[0];
    value[tile][threadIdx.x / 32][lane / 4 + 8] = acc[2];
  }
  // Of all segments, in order.
  __device__ float total(int tile, int row) const {
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += value[tile][w][row];
    return sum;
  }
};

// The products of a unit of one word a stage, whose Matrix tells the rare factors that need more
// work (fragment) from the others (plain_fragment), once for all words.
template <typename Matrix, bool kPlain>
__device__ __forceinline__ void multiply_stage(typename Matrix::Unit& unit,
                                               const typename Matrix::Factors& factors,
                                               const std::byte* x, float (&acc)[4]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    std::uint32_t a[2][4];
    if constexpr (kPlain) {
      Matrix::plain_fragment(unit, factors, a);
    } else {
      Matrix::fragment(unit, factors, a);
    }
    const auto* at = reinterpret_cast<const uint4*>(x + Matrix::Order::offset(0, w));
    const uint4 hi = at[0];
    const uint4 lo = at[1];
    mma_bf16(acc, a[0], hi.x, hi.y);
    mma_bf16(acc, a[0], lo.x, lo.y);
    mma_bf16(acc, a[1], hi.z, hi.w);
    mma_bf16(acc, a[1], lo.z, lo.w);
    Matrix::turn(unit);
  }
}
template <typename Matrix>
__device__ __forceinline__ void multiply_stage(typename Matrix::Unit& unit, const std::byte* stage,
                                               float (&acc)[4]) {
  const std::byte* x = stage + Matrix::Order::offset(static_cast<int>(threadIdx.x) % 4, 0);
  const typename Matrix::Factors factors = Matrix::factors(unit);
  if (Matrix::is_plain(factors)) return multiply_stage<Matrix, true>(unit, factors, x, acc);
  multiply_stage<Matrix, false>(unit, factors, x, acc);
}

// A warp's segment.
struct Segment {
  int begin, count;  // in units

  template <typename Matrix>
  __device__ static Segment of(const Matrix& matrix) {
    const int stages = matrix.stages();
    const int each = segment_stages(stages);
    const int warp = threadIdx.x / 32;
    const int begin = min(warp * each, stages);
    const int end = min(begin + each, stages);
    return {begin * Matrix::kUnits, (end - begin) * Matrix::kUnits};
  }
};

// A warp's segment of several tiles, of which it has at most kHeld units of one stage each: the
// units of the next tile are asked for as this one's are multiplied.
template <typename Matrix, int kHeld>
struct SegmentOfTiles {
  static_assert(Matrix::kUnits == 1);
  using Unit = typename Matrix::Unit;
  const Matrix& matrix;
  int tile, tiles;
  Segment segment;
  bool there[kHeld];
  Unit held[kHeld];

  __device__ SegmentOfTiles(const Matrix& m, int first, int count)
      : matrix(m), tile(first), tiles(count), segment(Segment::of(m)) {
    const auto lines = Matrix::from(matrix.lines(tile), segment.begin);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      there[i] = i < segment.count && matrix.has(segment.begin + i);
      held[i] = there[i] ? Matrix::at(lines, i) : Matrix::nothing();
    }
  }
  // `x`: the row, in shared memory.
  template <int kTiles>
  __device__ void run(const std::byte* x, OneRowSums<kTiles>& sums) {
    x += segment.begin * Matrix::Order::kStageBytes;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      const bool more = t + 1 < tiles;
      auto lines = Matrix::from(matrix.lines(tile + t + (more ? 1 : 0)), segment.begin);
      Matrix::keep(lines);
      float acc[4] = {};
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (i >= segment.count) continue;
        multiply_stage<Matrix>(held[i], x + i * Matrix::Order::kStageBytes, acc);
        if (more && there[i]) held[i] = Matrix::at(lines, i);
      }
      sums.put(t, acc);
    }
  }
};

// A warp's segment of one tile, all of it asked for at once: kHeld units into registers, the others
// into shared memory.
template <typename Matrix, int kHeld>
struct SegmentOfTile {
  static_assert(Matrix::kUnits == 4);
  using Unit = typename Matrix::Unit;
  Segment segment;
  Unit held[kHeld][1];
  uint4* rest;  // [unit][2][32]

  __host__ __device__ static int rest_units(int stages) {
    const int units = (stages + kSegments - 1) / kSegments * Matrix::kUnits;
    return units > kHeld ? units - kHeld : 0;
  }
  __host__ static std::size_t rest_bytes(int stages) {
    return static_cast<std::size_t>(rest_units(stages)) * kWarps * 1024;
  }
  // `shared`: rest_bytes of it.
  __device__ SegmentOfTile(const Matrix& matrix, int tile, std::byte* shared)
      : segment(Segment::of(matrix)) {
    const auto lines = matrix.lines(tile);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i][0] = matrix.load(lines, segment.begin + i, i < segment.count);
    }
    const auto warp = static_cast<int>(threadIdx.x) / 32;
    rest = reinterpret_cast<uint4*>(shared) + warp * rest_units(matrix.stages()) * 64 +
           static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
    for (int i = kHeld; i < segment.count; ++i) {
      matrix.copy(lines, segment.begin + i, rest + (i - kHeld) * 64, rest + (i - kHeld) * 64 + 32);
    }
  }
  // `x`: the row, in shared memory.
  __device__ void run(const std::byte* x, OneRowSums<1>& sums) {
    using Order = typename Matrix::Order;
    x += segment.begin / 4 * Order::kStageBytes;
    float acc[1][1][4] = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i >= segment.count) continue;
      multiply_unit<Matrix, 1, 1>(held[i], i % 4, x + i / 4 * Order::kStageBytes, 0, acc);
    }
    asm volatile("cp.async.wait_all;\n" ::: "memory");
#pragma unroll 4
    for (int i = kHeld; i < segment.count; ++i) {
      Unit unit[1] = {{rest[(i - kHeld) * 64], rest[(i - kHeld) * 64 + 32]}};
      multiply_unit<Matrix, 1, 1>(unit, i % 4, x + i / 4 * Order::kStageBytes, 0, acc);
    }
    sums.put(0, acc[0][0]);
  }
};

}  // namespace holdfast::cuda_kernels
