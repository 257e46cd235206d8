// The product of experts' matrices in any scheme with the rows of their pairs, on tensor cores:
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    for pair p = (row, slot), e = ids[p]
//   down_out[p]   = down_e activation[p] + bias
// Device code only; scheme_matrices.cuh has what a Matrix is.
//
// One order of additions, whatever the number of pairs: the columns go in eight segments, a warp
// for each; within one the words of 32 columns follow each other (ops/cuda/mma.cuh: x is two bf16),
// and the segments' sums are added in order, from 0. A block has 16 kTiles rows of each part (gate
// and up, or down) and up to 8 kGroups pairs of an expert. Codes and x come straight from global
// memory: no two warps of a block read the same.
#pragma once

#include "experts/cuda/scheme_finish.cuh"
#include "ops/cuda/mma.cuh"

namespace holdfast::experts::cuda {

// Eight columns of a row of x, split, in the order in which a Matrix decodes them.
struct InputChunk {
  std::uint32_t hi[4], lo[4];
};
template <typename Matrix>
__device__ InputChunk load_input(const float* row, int column, int columns) {
  float x[8] = {};
  if (row != nullptr) {
    if constexpr (Matrix::kWhole) {
      if (column < columns) {
        const float4 a = *reinterpret_cast<const float4*>(row + column);
        const float4 b = *reinterpret_cast<const float4*>(row + column + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = column + i < columns ? row[column + i] : 0.0f;
    }
  }
  InputChunk chunk;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const cuda_kernels::SplitPair pair =
        Matrix::kNibbles ? cuda_kernels::split_pair(x[i], x[i + 4])
                         : cuda_kernels::split_pair(x[2 * i], x[2 * i + 1]);
    chunk.hi[i] = pair.hi;
    chunk.lo[i] = pair.lo;
  }
  return chunk;
}

// The warps' sums of a row tile of each part and some groups of pairs.
template <int kParts, int kBatch>
struct WarpSums {
  float value[kSchemeWarps][kParts][16][kBatch * 8 + 1];
};

template <typename Matrix, int kParts, int kTiles, int kGroups, int kAhead>
struct SchemeTile {
  using Unit = typename Matrix::Unit;
  using Row = typename Matrix::Row;
  static constexpr int kBatch = kGroups < 4 ? kGroups : 4;
  static constexpr int kUnitColumns = 32 * Matrix::kWords;
  float acc[kParts][kTiles][kGroups][4] = {};
  Row rows[kParts][kTiles][2];
  const float* x[kGroups];
  int columns;

  __device__ void run(const ProductKernel& k, int4 work, int first_row) {
    const int lane = threadIdx.x % 32;
    columns = static_cast<int>(k.part[0].columns);
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        const auto r = min(first_row + i * 8 + lane / 4, static_cast<int>(k.rows) - 1);
        rows[p][i / 2][i % 2] = Matrix::row(k.part[p], work.x, r);
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int at = work.y + g * 8 + lane / 4;
      x[g] = at < work.z ? k.input + scheme_pair(k, at) / k.pairs_per_row * columns : nullptr;
    }
    const int units = (columns + kUnitColumns - 1) / kUnitColumns;
    const int segment = (units + kSchemeWarps - 1) / kSchemeWarps;
    const int begin = static_cast<int>(threadIdx.x) / 32 * segment;
    const int end = min(begin + segment, units);
    Unit ring[kAhead][kParts][kTiles][2];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(k, begin + i, end, ring[i]);
#pragma unroll 1
    for (int unit = begin; unit < end; unit += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (unit + i >= end) break;
        multiply(unit + i, ring[i]);
        load(k, unit + i + kAhead, end, ring[i]);
      }
    }
  }

  // The segments' sums, added in order, go to finish_product. All threads of the block.
  __device__ void finish(const ProductKernel& k, int4 work, int first_row, void* shared) {
    auto& sums = *static_cast<WarpSums<kParts, kBatch>*>(shared);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int first = 0; first < kGroups; first += kBatch) {
        __syncthreads();
        put(t, first, sums);
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < 16 * 8 * kBatch; i += kSchemeThreads) {
          const int row = first_row + t * 16 + i % 16;
          const int at = work.y + first * 8 + i / 16;
          if (row >= k.rows || at >= work.z) continue;
          float total[kParts] = {};
#pragma unroll
          for (int p = 0; p < kParts; ++p) {
            for (int w = 0; w < kSchemeWarps; ++w) total[p] += sums.value[w][p][i % 16][i / 16];
          }
          finish_product<kParts>(k, work.x, row, scheme_pair(k, at), total);
        }
      }
    }
  }

 private:
  __device__ void load(const ProductKernel& k, int unit, int end,
                       Unit (&into)[kParts][kTiles][2]) const {
    const int q = static_cast<int>(threadIdx.x) % 4;
    const int column = unit * kUnitColumns + q * 8 * Matrix::kWords;
    const bool valid = unit < end;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) {
        into[p][i / 2][i % 2] = Matrix::load(k.part[p], rows[p][i / 2][i % 2], column, valid);
      }
    }
  }

  __device__ void multiply(int unit, const Unit (&now)[kParts][kTiles][2]) {
    const int q = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int w = 0; w < Matrix::kWords; ++w) {
      constexpr int kHalves = Matrix::kSplit ? 2 : 1;
      std::uint32_t a[kParts][kTiles][kHalves][2][4];
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int r = 0; r < 2; ++r) fragment(now[p][t][r], w, r, a[p][t]);
        }
      }
      const int column = unit * kUnitColumns + (q * Matrix::kWords + w) * 8;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const InputChunk chunk = load_input<Matrix>(x[g], column, columns);
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
#pragma unroll
          for (int t = 0; t < kTiles; ++t) {
            if constexpr (Matrix::kScaled) {
              float part[4] = {};
              products(a[p][t], chunk, part);
              const float low = Matrix::scale(now[p][t][0]);
              const float high = Matrix::scale(now[p][t][1]);
              float(&sum)[4] = acc[p][t][g];
              sum[0] = fmaf(part[0], low, sum[0]);
              sum[1] = fmaf(part[1], low, sum[1]);
              sum[2] = fmaf(part[2], high, sum[2]);
              sum[3] = fmaf(part[3], high, sum[3]);
            } else {
              products(a[p][t], chunk, acc[p][t][g]);
            }
          }
        }
      }
    }
  }

  // Row r (0: the lane's low one, 1: its high one) of both steps of 16 columns.
  template <int kHalves>
  __device__ static void fragment(const Unit& unit, int w, int r,
                                  std::uint32_t (&a)[kHalves][2][4]) {
    std::uint32_t pairs[kHalves][4];
    Matrix::decode(unit, w, pairs);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[h][i / 2][i % 2 * 2 + r] = pairs[h][i];
    }
  }

  template <int kHalves>
  __device__ static void products(const std::uint32_t (&a)[kHalves][2][4], const InputChunk& x,
                                  float (&sum)[4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        cuda_kernels::mma_bf16(sum, a[h][step], x.hi[2 * step], x.hi[2 * step + 1]);
        cuda_kernels::mma_bf16(sum, a[h][step], x.lo[2 * step], x.lo[2 * step + 1]);
      }
    }
  }

  __device__ void put(int t, int first, WarpSums<kParts, kBatch>& sums) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile != t) continue;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (g < first || g >= first + kBatch) continue;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums.value[threadIdx.x / 32][p][lane / 4 + i / 2 * 8]
                      [(g - first) * 8 + lane % 4 * 2 + i % 2] = acc[p][tile][g][i];
          }
        }
      }
    }
  }
};

}  // namespace holdfast::experts::cuda
