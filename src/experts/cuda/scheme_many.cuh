// Many pairs of an expert: a warp for 16 rows of each part (or 32 of the only one), one segment of
// the columns after the other, with the sums of scheme_product.cuh; the block's warps share x,
// which comes to shared memory 128 columns at a time. Device code only.
#pragma once

#include "experts/cuda/scheme_product.cuh"

namespace holdfast::experts::cuda {

constexpr int kStageColumns = 128;
constexpr int kBlockPairs = 64;
constexpr int kInputRowBytes = 576;  // 16 chunks of 32 bytes, and 64 that keep lanes off one bank
constexpr int kInputStageBytes = kBlockPairs * kInputRowBytes;
constexpr int kMostSums = 64;  // of a lane
constexpr int kManyBytes = 2 * kInputStageBytes + kMostSums * kSchemeThreads * 4;

// Where chunk w of unit u of a stage lies for q: the four that a word's lanes read at once are
// neighbours. First the upper halves of all, then the lower ones.
template <typename Matrix>
__device__ inline int chunk_place(int chunk) {
  constexpr int kChunks = 4 * Matrix::kWords;  // of a unit
  const int in_unit = chunk % kChunks;
  const int place = Matrix::kStrided ? in_unit
                                     : in_unit % Matrix::kWords * 4 + in_unit / Matrix::kWords;
  return (chunk - in_unit + place) * 16;
}
constexpr int kLowerHalves = 16 * 16;

template <typename Matrix, int kGroups>
struct InputLoader {
  static constexpr int kPasses = kGroups / 2;
  const float* row[kPasses];
  EightColumns held[kPasses];

  __device__ InputLoader(const ProductKernel& k, int4 work) {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int at = work.y + static_cast<int>(threadIdx.x) / 16 + p * 16;
      row[p] = at < work.z ? k.input + scheme_pair(k, at) / k.pairs_per_row * k.part[0].columns
                           : nullptr;
    }
  }
  __device__ void load(int stage, int columns) {
    const int column = stage * kStageColumns + static_cast<int>(threadIdx.x) % 16 * 8;
#pragma unroll
    for (int p = 0; p < kPasses; ++p) held[p] = load_columns<Matrix>(row[p], column, columns);
  }
  __device__ void store(std::byte* stage) const {
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const InputChunk c = split_columns<Matrix>(held[p]);
      std::byte* to = stage + (static_cast<int>(threadIdx.x) / 16 + p * 16) * kInputRowBytes +
                      chunk_place<Matrix>(static_cast<int>(threadIdx.x) % 16);
      *reinterpret_cast<uint4*>(to) = make_uint4(c.hi[0], c.hi[1], c.hi[2], c.hi[3]);
      *reinterpret_cast<uint4*>(to + kLowerHalves) =
          make_uint4(c.lo[0], c.lo[1], c.lo[2], c.lo[3]);
    }
  }
};

template <typename Matrix, int kParts, int kTiles, int kGroups>
struct ManyTile {
  using Unit = typename Matrix::Unit;
  using Count = UnitCount<Matrix>;
  static constexpr int kAll = kParts * kTiles;
  static constexpr int kUnits = 4 / Matrix::kWords;  // of a stage
  static constexpr int kSums = kAll * kGroups * 4;
  static_assert(kSums <= kMostSums);
  float acc[kAll][kGroups][4] = {};  // of a segment, in the end of all; between, in shared memory

  __device__ void run(const ProductKernel& k, int4 work, int first_row, std::byte* shared) {
    const int columns = static_cast<int>(k.part[0].columns);
    const int stages = (columns + kStageColumns - 1) / kStageColumns;
    TileRows<Matrix, kParts, kTiles> rows;
    rows.find(k, work.x, first_row);
    const Count count(columns);
    int left = count.segment;  // units of the current one
    Unit next[kAll][2];
    rows.load(k, 0, true, next);
    if constexpr (Matrix::kTile == Tile::kRows) {  // each warp its own
      const int2 thread = make_int2(static_cast<int>(threadIdx.x) % 32, 32);
      std::byte* table = shared + kManyBytes + static_cast<int>(threadIdx.x) / 32 * kAll *
                                                   Matrix::table_bytes(k.part[0].groups);
      rows.fill_tables(k, first_row, table, thread);
      __syncwarp();
    }
    InputLoader<Matrix, kGroups> x(k, work);
    x.load(0, columns);
    x.store(shared);
    __syncthreads();
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      const bool more = stage + 1 < stages;
      if (more) x.load(stage + 1, columns);
      const std::byte* at = shared + stage % 2 * kInputStageBytes;
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int unit = stage * kUnits + u;
        if (unit >= count.units) break;
        Unit now[kAll][2];
#pragma unroll
        for (int i = 0; i < 2 * kAll; ++i) now[i / 2][i % 2] = next[i / 2][i % 2];
        rows.load(k, (unit + 1) * Count::kColumns, unit + 1 < count.units, next);
        rows.settle(k, now);
        multiply(rows, now, at + u * 4 * Matrix::kWords * 16);
        if (--left == 0 || unit + 1 == count.units) {
          fold(reinterpret_cast<float*>(shared + 2 * kInputStageBytes), unit < count.segment,
               unit + 1 == count.units);
          left = count.segment;
        }
      }
      if (!more) break;
      x.store(shared + (stage + 1) % 2 * kInputStageBytes);
      __syncthreads();
    }
  }

  __device__ void finish(const ProductKernel& k, int4 work, int first_row) const {
    const int lane = threadIdx.x % 32;
    float* to[kGroups][2];  // the outputs of the lane's pairs
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      const int at = work.y + i / 2 * 8 + lane % 4 * 2 + i % 2;
      to[i / 2][i % 2] = at < work.z ? k.out + scheme_pair(k, at) * k.rows : nullptr;
    }
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int row = first_row + i / 2 * 16 + tile_row<Matrix>(i % 2);
      const RowTerms<kParts> terms(k, work.x, row);
#pragma unroll
      for (int j = 0; j < 2 * kGroups; ++j) {
        float sums[kParts];
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          sums[p] = acc[p * kTiles + i / 2][j / 2][i % 2 * 2 + j % 2];
        }
        if (row < k.rows && to[j / 2][j % 2] != nullptr) to[j / 2][j % 2][row] = terms.finish(sums);
      }
    }
  }

 private:
  // `x`: the unit's first chunk of row 0.
  __device__ void multiply(const TileRows<Matrix, kParts, kTiles>& rows,
                           const Unit (&now)[kAll][2], const std::byte* x) {
    constexpr int kAtOnce = Matrix::kSpan == 0 ? 1 : Matrix::kSpan;  // words
    const int lane = threadIdx.x % 32;
    x += lane / 4 * kInputRowBytes + lane % 4 * 16;
#pragma unroll
    for (int w = 0; w < Matrix::kWords; w += kAtOnce) {
      Fragment<Matrix> fragment[kAtOnce][kAll];
#pragma unroll
      for (int i = 0; i < kAtOnce * kAll; ++i) {
        fragment[i / kAll][i % kAll].fill(rows.row[i % kAll], now[i % kAll], w + i / kAll);
      }
#pragma unroll
      for (int first = 0; first < kGroups; first += 2) {
        SpanSums<kAll, 2> part;
#pragma unroll
        for (int v = 0; v < kAtOnce; ++v) {
          InputChunk chunk[2];
#pragma unroll
          for (int g = 0; g < 2; ++g) {
            const std::byte* from = x + (first + g) * 8 * kInputRowBytes + (w + v) * 64;
            const uint4 hi = *reinterpret_cast<const uint4*>(from);
            const uint4 lo = *reinterpret_cast<const uint4*>(from + kLowerHalves);
            chunk[g] = {{hi.x, hi.y, hi.z, hi.w}, {lo.x, lo.y, lo.z, lo.w}};
          }
          part.template add<Matrix>(now, fragment[v], chunk, {w + v, first}, acc);
        }
      }
    }
  }

  // Adds acc to what the segments before it gave (0 before the first), and begins anew or, last,
  // takes that over.
  __device__ void fold(float* waiting, bool first, bool last) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      float& sum = acc[i / (kGroups * 4)][i / 4 % kGroups][i % 4];
      float& so_far = waiting[i * kSchemeThreads + static_cast<int>(threadIdx.x)];
      const float added = (first ? 0.0f : so_far) + sum;
      sum = last ? added : 0.0f;
      if (!last) so_far = added;
    }
  }
};

}  // namespace holdfast::experts::cuda
