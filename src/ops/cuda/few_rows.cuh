// Products of a matrix with up to 8 rows: a warp for each segment of the columns (matrix.cuh),
// whose sums the block adds in order. Device code only.
#pragma once

#include "ops/cuda/matrix.cuh"

namespace holdfast::cuda_kernels {

// The warps' sums of one tile of 16 rows x 8 columns.
struct FewSums {
  float value[2][kWarps][16][kColumns + 1];
};

// A warp's units of its tiles, one tile after the other in rounds of kAhead, with kAhead loads
// under way all the time.
template <typename Matrix, int kAhead>
struct FewRows {
  using Unit = typename Matrix::Unit;
  using Lines = decltype(static_cast<const Matrix*>(nullptr)->lines(0));
  const Matrix& matrix;
  int tile, tile_end;
  int unit_begin = 0, unit_end = 0, rounds = 0;  // of this warp; rounds: of every warp
  Unit ring[kAhead];

  __device__ FewRows(const Matrix& m, int first_tile, int end_tile)
      : matrix(m), tile(first_tile), tile_end(end_tile) {
    const int stages = m.stages();
    const int segment = segment_stages(stages);
    const int warp = threadIdx.x / 32;
    unit_begin = min(warp * segment, stages) * Matrix::kUnits;
    unit_end = min((warp + 1) * segment, stages) * Matrix::kUnits;
    rounds = (segment * Matrix::kUnits + kAhead - 1) / kAhead;
    const Lines lines = matrix.lines(tile);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      ring[i] = matrix.load(lines, unit_begin + i, unit_begin + i < unit_end);
    }
  }

  // Calls store(tile, row of 16, column, value, value of the partner row) of `rows` columns, by
  // whole warps. `x`: all rows in shared memory; `rows` of them are there, at least 1.
  template <int kPartner, typename Store>
  __device__ void run(const std::byte* x, int rows, FewSums& sums, const Store& store) {
    using Order = typename Matrix::Order;
    const int lane = threadIdx.x % 32;
    x += min(lane / 4, rows - 1) * Order::row_bytes(matrix.stages());
    Lines lines = matrix.lines(tile);
    for (int parity = 0; tile < tile_end; parity ^= 1) {
      float acc[1][1][4] = {};
#pragma unroll 1
      for (int round = 0; round < rounds; ++round) {
        const bool last = round + 1 == rounds;
        if (last && tile + 1 < tile_end) lines = matrix.lines(tile + 1);
        const int next = last ? unit_begin : unit_begin + (round + 1) * kAhead;
        const bool more = !last || tile + 1 < tile_end;
        const std::byte* at = x + (unit_begin + round * kAhead) / Matrix::kUnits *
                                      Order::kStageBytes;
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          Unit now[1] = {ring[i]};
          ring[i] = matrix.load(lines, next + i, more && next + i < unit_end);
          if (unit_begin + round * kAhead + i >= unit_end) continue;
          multiply_unit<Matrix, 1, 1>(now, i % Matrix::kUnits, at + i / Matrix::kUnits *
                                      Order::kStageBytes, 0, acc);
        }
      }
      add_up<kPartner>(acc[0][0], rows, sums.value[parity], store);
      ++tile;
    }
  }

 private:
  template <int kPartner, typename Store>
  __device__ void add_up(const float (&acc)[4], int rows,
                         float (&sums)[kWarps][16][kColumns + 1], const Store& store) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = acc[i];
    __syncthreads();
    if (warp * 2 >= rows) return;
    const int row = threadIdx.x % 16;
    const int column = threadIdx.x / 16;
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += sums[w][row][column];
    const float other = kPartner == 0 ? 0.0f : __shfl_xor_sync(0xFFFFFFFFu, sum, kPartner);
    store(tile, row, column, sum, other);
  }
};

}  // namespace holdfast::cuda_kernels
