// The product of experts' matrices in any scheme with the rows of their pairs, on tensor cores:
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    for pair p = (row, slot), e = ids[p]
//   down_out[p]   = down_e activation[p] + bias
// Device code only; scheme_matrices.cuh has what a Matrix is.
//
// One order of additions, whatever the number of pairs: the columns go in units of 32 kWords, eight
// equal runs of units are the segments; within one the words of 32 columns follow each other
// (ops/cuda/mma.cuh: x is two bf16), kSpan of them summed from 0 and then scaled where a Matrix has
// such scales; and the segments' sums are added in order, from 0.
//   few    scheme_few.cuh, up to 16 pairs of an expert: a warp for each segment of 16 rows of each
//          part (gate and up, or down); no two of a block's warps share anything of x
//   many   scheme_many.cuh: a warp for each 16 rows, one segment after the other
#pragma once

#include "experts/cuda/scheme_finish.cuh"
#include "ops/cuda/mma.cuh"

namespace holdfast::experts::cuda {

// Eight columns of a row of x, split, in the order in which a Matrix decodes them.
struct InputChunk {
  std::uint32_t hi[4], lo[4];
};
struct EightColumns {
  float value[8];
};
template <typename Matrix>
__device__ EightColumns load_columns(const float* row, int column, int columns) {
  EightColumns x = {};
  if (row == nullptr) return x;
  if constexpr (Matrix::kWhole) {
    if (column >= columns) return x;
    const float4 a = *reinterpret_cast<const float4*>(row + column);
    const float4 b = *reinterpret_cast<const float4*>(row + column + 4);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x.value[i] = column + i < columns ? row[column + i] : 0.0f;
    return x;
  }
}
template <typename Matrix>
__device__ InputChunk split_columns(const EightColumns& x) {
  InputChunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const cuda_kernels::SplitPair pair =
        Matrix::kNibbles ? cuda_kernels::split_pair(x.value[i], x.value[i + 4])
                         : cuda_kernels::split_pair(x.value[2 * i], x.value[2 * i + 1]);
    chunk.hi[i] = pair.hi;
    chunk.lo[i] = pair.lo;
  }
  return chunk;
}

// A word of a tile of 16 rows, ready to be multiplied.
template <typename Matrix>
struct Fragment {
  static constexpr int kHalves = Matrix::kSplit ? 2 : 1;
  std::uint32_t a[kHalves][2][4];

  // `unit`: of the lane's two rows.
  __device__ void fill(const typename Matrix::Row (&row)[2],
                       const typename Matrix::Unit (&unit)[2], int w) {
    std::uint32_t pairs[2][kHalves][4];
    if constexpr (Matrix::kTile == Tile::kRows) {
      Matrix::decode_rows(row, unit, pairs);
    } else {
      Matrix::decode(unit[0], w, pairs[0]);
      Matrix::decode(unit[1], w, pairs[1]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[h][i / 2][i % 2 * 2 + r] = pairs[r][h][i];
      }
    }
  }
};

// Which row of a tile of 16 a lane has in place `half` of its two.
template <typename Matrix>
__device__ inline int tile_row(int half) {
  const int l = static_cast<int>(threadIdx.x) % 32 / 4;
  if constexpr (Matrix::kTile == Tile::kAll) return Matrix::tile_row(l, half);
  return l + half * 8;
}

// sums[t][group + g] += a word of tile t times chunk g; products that wait for each other are kept
// apart.
template <typename Matrix, int kTiles, int kGroups, int kBatch>
__device__ __forceinline__ void add_products(const Fragment<Matrix> (&fragment)[kTiles],
                                             const InputChunk (&x)[kBatch], int group,
                                             float (&sums)[kTiles][kGroups][4]) {
#pragma unroll
  for (int i = 0; i < 4 * Fragment<Matrix>::kHalves; ++i) {
    const int step = i / (2 * Fragment<Matrix>::kHalves);
    const int half = i / 2 % Fragment<Matrix>::kHalves;
#pragma unroll
    for (int g = 0; g < kBatch; ++g) {
      const std::uint32_t low = i % 2 == 0 ? x[g].hi[2 * step] : x[g].lo[2 * step];
      const std::uint32_t high = i % 2 == 0 ? x[g].hi[2 * step + 1] : x[g].lo[2 * step + 1];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        cuda_kernels::mma_bf16(sums[t][group + g], fragment[t].a[half][step], low, high);
      }
    }
  }
}

// The same where a Matrix has scales: here is what is not scaled yet. `word` of the unit.
struct ProductPlace {
  int word, group;
};
template <int kTiles, int kBatch>
struct SpanSums {
  float part[kTiles][kBatch][4];

  template <typename Matrix, int kGroups>
  __device__ __forceinline__ void add(const typename Matrix::Unit (&unit)[kTiles][2],
                                      const Fragment<Matrix> (&fragment)[kTiles],
                                      const InputChunk (&x)[kBatch], ProductPlace at,
                                      float (&sums)[kTiles][kGroups][4]) {
    if constexpr (Matrix::kSpan == 0) {
      add_products<Matrix>(fragment, x, at.group, sums);
    } else {
      if (at.word % Matrix::kSpan == 0) {
#pragma unroll
        for (int i = 0; i < kTiles * kBatch * 4; ++i) {
          part[i / 4 / kBatch][i / 4 % kBatch][i % 4] = 0.0f;
        }
      }
      add_products<Matrix>(fragment, x, 0, part);
      if (at.word % Matrix::kSpan == Matrix::kSpan - 1) scale<Matrix>(unit, at, sums);
    }
  }

 private:
  template <typename Matrix, int kGroups>
  __device__ __forceinline__ void scale(const typename Matrix::Unit (&unit)[kTiles][2],
                                        ProductPlace at, float (&sums)[kTiles][kGroups][4]) {
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      const int t = i / 4;
      const float factor = Matrix::scale(unit[t][i % 4 / 2], at.word);
#pragma unroll
      for (int g = 0; g < kBatch; ++g) {
        float& sum = sums[t][at.group + g][i % 4];
        sum = fmaf(part[t][g][i % 4], factor, sum);
      }
    }
  }
};

// The unit of 32 kWords columns from `first` on of each tile's two rows.
template <typename Matrix, int kParts, int kTiles>
struct TileRows {
  static constexpr int kAll = kParts * kTiles;
  typename Matrix::Row row[kAll][2];
  int expert;

  __device__ void find(const ProductKernel& k, int of_expert, int first_row) {
    expert = of_expert;
#pragma unroll
    for (int i = 0; i < 2 * kAll; ++i) {
      const int r = first_row + i / 2 % kTiles * 16 + tile_row<Matrix>(i % 2);
      const SchemeMatrix& m = k.part[i / 2 / kTiles];
      if constexpr (Matrix::kTile == Tile::kAll) {
        const int first = first_row + i / 2 % kTiles * 16;
        row[i / 2][i % 2] = Matrix::template row<kParts>(m, expert, first);
      } else {
        row[i / 2][i % 2] = Matrix::row(m, expert, min(r, static_cast<int>(k.rows) - 1));
      }
    }
  }
  __device__ void load(const ProductKernel& k, int first, bool valid,
                       typename Matrix::Unit (&into)[kAll][2]) const {
    if constexpr (Matrix::kTile == Tile::kAll) {
      Matrix::template load<kParts>(k.part[0], row, first, valid, into);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kAll; ++i) {
        const SchemeMatrix& m = k.part[i / 2 / kTiles];
        into[i / 2][i % 2] = Matrix::load(m, row[i / 2][i % 2], first, valid);
        if constexpr (Matrix::kTile == Tile::kRows) {
          into[i / 2][i % 2].groups = Matrix::load_groups(m, expert, first, i % 2, valid);
        }
      }
    }
  }
  // The tables of all tiles, of a Matrix that has them: `to`, in shared memory, of the threads that
  // wait for each other afterwards; this one is `thread` of `threads`.
  __device__ void fill_tables(const ProductKernel& k, int first_row, std::byte* to, int2 thread) {
#pragma unroll
    for (int t = 0; t < kAll; ++t) {
      const SchemeMatrix& m = k.part[t / kTiles];
      const int first = first_row + t % kTiles * 16;
      std::byte* table = to + t * Matrix::table_bytes(m.groups);
      Matrix::fill_table(m, expert, make_int2(first, static_cast<int>(k.rows)), table, thread);
      const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(table));
      row[t][0].table = address + tile_row<Matrix>(0) * 4;
      row[t][1].table = address + tile_row<Matrix>(1) * 4;
    }
  }
  // `unit` as loaded becomes what is decoded.
  __device__ void settle(const ProductKernel& k, typename Matrix::Unit (&unit)[kAll][2]) const {
    if constexpr (!Matrix::kSettles) return;
    if constexpr (Matrix::kSettles && Matrix::kTile == Tile::kAll) {
      Matrix::template settle<kParts>(unit);
    } else if constexpr (Matrix::kSettles) {
#pragma unroll
      for (int i = 0; i < 2 * kAll; ++i) {
        Matrix::settle(k.part[i / 2 / kTiles], row[i / 2][i % 2], unit[i / 2][i % 2]);
      }
    }
  }
};

template <typename Matrix>
struct UnitCount {
  static constexpr int kColumns = 32 * Matrix::kWords;
  int units, segment;  // of the matrix; of each segment but the last ones

  __device__ explicit UnitCount(int columns)
      : units((columns + kColumns - 1) / kColumns),
        segment((units + kSchemeWarps - 1) / kSchemeWarps) {}
};

}  // namespace holdfast::experts::cuda
