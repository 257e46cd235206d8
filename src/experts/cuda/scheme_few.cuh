// Up to 16 pairs of an expert: a block for 16 rows of each part, a warp for each segment of the
// columns (scheme_product.cuh). Device code only.
#pragma once

#include "experts/cuda/scheme_product.cuh"

namespace holdfast::experts::cuda {

// The warps' sums of a row tile of each part.
template <int kParts, int kGroups>
struct WarpSums {
  float value[kSchemeWarps][kParts][16][kGroups * 8 + 1];
};

template <typename Matrix, int kParts, int kGroups>
struct FewTile {
  using Unit = typename Matrix::Unit;
  using Count = UnitCount<Matrix>;
  float acc[kParts][kGroups][4] = {};

  // `table`: of a Matrix that has one.
  __device__ void run(const ProductKernel& k, int4 work, int first_row, std::byte* table) {
    const int columns = static_cast<int>(k.part[0].columns);
    TileRows<Matrix, kParts, 1> rows;
    rows.find(k, work.x, first_row);
    const Count count(columns);
    const int begin = static_cast<int>(threadIdx.x) / 32 * count.segment;
    const int end = min(begin + count.segment, count.units);
    Unit next[kParts][2];
    rows.load(k, begin * Count::kColumns, begin < end, next);
    if constexpr (Matrix::kTile == Tile::kRows) {
      const int2 thread = make_int2(static_cast<int>(threadIdx.x), kSchemeThreads);
      rows.fill_tables(k, first_row, table, thread);
      __syncthreads();
    }
    const float* x[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int at = work.y + g * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
      x[g] = at < work.z ? k.input + scheme_pair(k, at) / k.pairs_per_row * columns : nullptr;
    }
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
      Unit now[kParts][2];
#pragma unroll
      for (int i = 0; i < 2 * kParts; ++i) now[i / 2][i % 2] = next[i / 2][i % 2];
      const int first = unit * Count::kColumns;
      EightColumns values[Matrix::kWords][kGroups];
#pragma unroll
      for (int i = 0; i < Matrix::kWords * kGroups; ++i) {
        const int w = i / kGroups;
        values[w][i % kGroups] =
            load_columns<Matrix>(x[i % kGroups], first + column_of<Matrix>(w), columns);
      }
      rows.load(k, first + Count::kColumns, unit + 1 < end, next);
      rows.settle(k, now);
      SpanSums<kParts, kGroups> part;
#pragma unroll
      for (int w = 0; w < Matrix::kWords; ++w) {
        Fragment<Matrix> fragment[kParts];
#pragma unroll
        for (int p = 0; p < kParts; ++p) fragment[p].fill(rows.row[p], now[p], w);
        InputChunk chunk[kGroups];
#pragma unroll
        for (int g = 0; g < kGroups; ++g) chunk[g] = split_columns<Matrix>(values[w][g]);
        part.template add<Matrix>(now, fragment, chunk, {w, 0}, acc);
      }
    }
  }

  // The segments' sums, added in order, become what is stored. All threads of the block.
  __device__ void finish(const ProductKernel& k, int4 work, int first_row, void* shared) {
    auto& sums = *static_cast<WarpSums<kParts, kGroups>*>(shared);
    const int i = threadIdx.x;
    const int row = first_row + i % 16;
    const int at = work.y + i / 16;
    const bool mine = i < 16 * 8 * kGroups && row < k.rows && at < work.z;
    const RowTerms<kParts> terms(k, work.x, row);
    const std::int64_t pair = mine ? scheme_pair(k, at) : 0;
    put(sums);
    __syncthreads();
    if (!mine) return;
    float total[kParts] = {};
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      for (int w = 0; w < kSchemeWarps; ++w) total[p] += sums.value[w][p][i % 16][i / 16];
    }
    k.out[pair * k.rows + row] = terms.finish(total);
  }

 private:
  __device__ void put(WarpSums<kParts, kGroups>& sums) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) {
        sums.value[threadIdx.x / 32][p][tile_row<Matrix>(i % 4 / 2)]
                  [i / 4 * 8 + lane % 4 * 2 + i % 2] = acc[p][i / 4][i % 4];
      }
    }
  }
};

}  // namespace holdfast::experts::cuda
