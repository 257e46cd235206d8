// The experts of one row, two products as ops/cuda/one_row.cuh multiplies them: a block has some
// tiles of one of the row's experts. down also adds the experts' rows up: a cluster has a block for
// each of them. Device code only.
//
// Kernel: its member `matrix` has ids, input, bias, experts, rows, blocks (of 32 columns) and
// tiles_of_block; of down, see OneDown. Matrix and Finish: as matrix.cuh and tile_rows.cuh say, of
// (kernel's matrix, expert) and (kernel, work).
#pragma once

#include <cooperative_groups.h>

#include "device/cuda/launch.cuh"
#include "ops/cuda/one_row.cuh"

namespace holdfast::experts::cuda {

constexpr int kOneTiles = 8;  // of a block, at most
constexpr int kOneUnits = 3;  // of a segment, at most
constexpr int kOneSlots = 8;  // experts of the row, at most

// A block's tiles of an expert.
struct OneShare {
  int first = 0, count = 0;

  template <typename Matrix>
  __device__ static OneShare of(const Matrix& matrix, int block, std::int64_t tiles_of_block) {
    const int first = block * static_cast<int>(tiles_of_block);
    return {first, min(static_cast<int>(tiles_of_block), (matrix.rows + 15) / 16 - first)};
  }
};

// blockIdx.y: which of the row's experts. The next kernel's blocks begin when this one's have
// waited, so that they find the row's ids.
template <typename Matrix, typename Finish, typename Kernel>
__device__ void one_row_gate_up(const Kernel& k, std::byte* shared) {
  __shared__ cuda_kernels::OneRowSums<kOneTiles> sums;
  const auto& a = k.matrix;
  device::cuda::wait_then_let_next_begin();
  const auto slot = static_cast<int>(blockIdx.y);
  const std::int32_t id = a.ids[slot];
  cuda_kernels::HeldRow x;
  x.load(a.input, a.blocks * 32);
  if (id < 0 || id >= a.experts) return;
  const Matrix matrix(a, id);
  const OneShare share = OneShare::of(matrix, static_cast<int>(blockIdx.x), a.tiles_of_block);
  cuda_kernels::SegmentOfTiles<Matrix, kOneUnits> segment(matrix, share.first, share.count);
  const Finish finish(k, make_int4(id, slot, slot + 1, 0));
  const int tile = static_cast<int>(threadIdx.x) / 16;
  const int line = static_cast<int>(threadIdx.x) % 16;
  const auto row = finish.row(share.first + tile, line);
  x.store<typename Matrix::Order>(matrix.stages(), shared);
  __syncthreads();
  segment.run(shared, sums);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) / 32 * 2 >= share.count) return;
  const float sum = sums.total(tile, line);
  const float other = __shfl_xor_sync(0xFFFFFFFFu, sum, Finish::kPartner);
  if (tile < share.count) finish.store(row, finish.column(0), {}, sum, other);
}

// What one row's down reads and writes besides its matrix.
struct OneDown {
  const float* weights;   // of the row's experts
  const float* residual;
  const std::int32_t* active_rows;
  float* out;
  std::int64_t slots;     // the row's experts, and the blocks of a cluster
};

// out = residual + the sum, in order, of weight times (down of the expert + bias). Comes right
// after one_row_gate_up, and so reads the ids, and what they name, before that one has ended.
template <typename Matrix, typename Kernel>
__device__ void one_row_down(const Kernel& k, std::byte* shared) {
  namespace cg = cooperative_groups;
  __shared__ cuda_kernels::OneRowSums<kOneTiles> sums;
  __shared__ float parts[kOneSlots][kOneTiles * 16];  // of the first block: every expert's rows
  const auto& a = k.matrix;
  const OneDown& down = k.down;
  const auto slots = static_cast<int>(down.slots);
  const int slot = static_cast<int>(blockIdx.x) % slots;
  const auto is_expert = [&](std::int32_t id) { return id >= 0 && id < a.experts; };
  const std::int32_t id = __ldcg(a.ids + slot);
  const int expert = is_expert(id) ? id : 0;  // of none, nobody takes the rows
  const Matrix matrix(a, expert);
  const OneShare share =
      OneShare::of(matrix, static_cast<int>(blockIdx.x) / slots, a.tiles_of_block);
  cuda_kernels::SegmentOfTiles<Matrix, kOneUnits> segment(matrix, share.first, share.count);
  const int tile = static_cast<int>(threadIdx.x) / 16;
  const std::int64_t row = share.first * 16 + static_cast<int>(threadIdx.x);
  const bool there = tile < share.count && row < a.rows;
  const float bias =
      there ? cuda_kernels::bf16_bits_to_float(a.bias[expert * a.rows + row]) : 0.0f;
  const bool is_active = *down.active_rows > 0;
  device::cuda::wait_for_inputs();
  device::cuda::cluster_began();
  cuda_kernels::HeldRow x;
  x.load(a.input + slot * a.blocks * 32, a.blocks * 32);
  x.store<typename Matrix::Order>(matrix.stages(), shared);
  __syncthreads();
  segment.run(shared, sums);
  const bool adds = slot == 0 && there;
  float weights[kOneSlots] = {};
  std::int32_t ids[kOneSlots] = {};
  float sum = 0.0f;
  if (adds) {
#pragma unroll
    for (int i = 0; i < kOneSlots; ++i) {
      ids[i] = i < slots ? a.ids[i] : -1;
      if (i < slots) weights[i] = down.weights[i];
    }
    sum = down.residual[row];
  }
  __syncthreads();
  device::cuda::wait_for_cluster();
  if (there) {
    *cg::this_cluster().map_shared_rank(&parts[slot][threadIdx.x], 0) =
        __fadd_rn(sums.total(tile, static_cast<int>(threadIdx.x) % 16), bias);
  }
  cg::this_cluster().sync();
  if (!adds || !is_active) return;
#pragma unroll
  for (int i = 0; i < kOneSlots; ++i) {
    if (i < slots && is_expert(ids[i])) sum = fmaf(weights[i], parts[i][threadIdx.x], sum);
  }
  down.out[row] = sum;
}

}  // namespace holdfast::experts::cuda
