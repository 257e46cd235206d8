// The product of experts' matrices in any scheme with the rows of their pairs, on tensor cores:
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    for pair p = (row, slot), e = ids[p]
//   down_out[p]   = down_e activation[p] + bias
// Device code only; scheme_matrices.cuh has what a Matrix is.
//
// One order of additions, whatever the number of pairs: the columns go in units of 32 kWords, eight
// equal runs of units are the segments; within one the words of 32 columns follow each other
// (ops/cuda/mma.cuh: x is two bf16), and the segments' sums are added in order, from 0.
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

  // `unit`: of the lane's rows l / 4 and l / 4 + 8.
  __device__ void fill(const typename Matrix::Unit (&unit)[2], int w) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t pairs[kHalves][4];
      Matrix::decode(unit[r], w, pairs);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[h][i / 2][i % 2 * 2 + r] = pairs[h][i];
      }
    }
  }
};

// sums[t][at.group + g] += word at.word of tile t times chunk g; products that wait for each other
// are kept apart.
struct ProductPlace {
  int word, group;
};
template <typename Matrix, int kTiles, int kGroups, int kBatch>
__device__ __forceinline__ void add_products(const typename Matrix::Unit (&unit)[kTiles][2],
                                             const Fragment<Matrix> (&fragment)[kTiles],
                                             const InputChunk (&x)[kBatch], ProductPlace at,
                                             float (&sums)[kTiles][kGroups][4]) {
  float part[kTiles][kBatch][4] = {};
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
        float(&sum)[4] = Matrix::kScaled ? part[t][g] : sums[t][at.group + g];
        cuda_kernels::mma_bf16(sum, fragment[t].a[half][step], low, high);
      }
    }
  }
  if constexpr (Matrix::kScaled) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = Matrix::scale(unit[t][i / 2], at.word);
#pragma unroll
        for (int g = 0; g < kBatch; ++g) {
          float& sum = sums[t][at.group + g][i];
          sum = fmaf(part[t][g][i], scale, sum);
        }
      }
    }
  }
}

// The unit of 32 kWords columns from `first` on of each tile's two rows.
template <typename Matrix, int kParts, int kTiles>
struct TileRows {
  static constexpr int kAll = kParts * kTiles;
  typename Matrix::Row row[kAll][2];

  __device__ void find(const ProductKernel& k, int expert, int first_row) {
#pragma unroll
    for (int i = 0; i < 2 * kAll; ++i) {
      const int r = first_row + i / 2 % kTiles * 16 + i % 2 * 8 +
                    static_cast<int>(threadIdx.x) % 32 / 4;
      row[i / 2][i % 2] = Matrix::row(k.part[i / 2 / kTiles], expert,
                                      min(r, static_cast<int>(k.rows) - 1));
    }
  }
  __device__ void load(const ProductKernel& k, int first, bool valid,
                       typename Matrix::Unit (&into)[kAll][2]) const {
#pragma unroll
    for (int i = 0; i < 2 * kAll; ++i) {
      into[i / 2][i % 2] =
          Matrix::load(k.part[i / 2 / kTiles], row[i / 2][i % 2], first, valid);
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
