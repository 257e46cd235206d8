// From the sums of tiles (tile_rows.cuh) to a Finish: through shared memory, so that neighbouring
// lanes store neighbouring rows. Device code only.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/matrix.cuh"

namespace holdfast::cuda_kernels {

// Of each warp 16 rows of 8 kGroups columns. The pitch keeps lanes in different banks.
template <int kGroups>
struct TileSums {
  static constexpr int kPitch = 20;
  float value[kWarps][kGroups * kColumns][kPitch];

  __device__ void put(const float (&sums)[kGroups][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[threadIdx.x / 32][g * kColumns + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] =
            sums[g][i];
      }
    }
  }
};

// All values of a warp's tile. The block has read all else in the shared memory of `exchange`.
template <int kGroups, typename Finish>
__device__ void store_tile(const Finish& finish, int tile, const float (&sums)[kGroups][4],
                           TileSums<kGroups>& exchange) {
  constexpr int kEach = 4;
  const int lane = threadIdx.x % 32;
  const auto row = finish.row(tile, lane % 16);
  __syncwarp();
  exchange.put(sums);
  __syncwarp();
#pragma unroll 1
  for (int group = 0; group < kGroups; ++group) {
    decltype(finish.column(0)) columns[kEach];
    decltype(finish.extra(row, columns[0])) extra[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      columns[i] = finish.column(group * kColumns + i * 2 + lane / 16);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) extra[i] = finish.extra(row, columns[i]);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float value = exchange.value[threadIdx.x / 32][group * kColumns + i * 2 + lane / 16]
                                        [lane % 16];
      const float other = Finish::kPartner == 0
                              ? 0.0f
                              : __shfl_xor_sync(0xFFFFFFFFu, value, Finish::kPartner);
      finish.store(row, columns[i], extra[i], value, other);
    }
  }
}

// Adds the segments' sums of tile `first_tile` + the block's rank in the cluster of eight, in
// order. A thread has four neighbouring rows of one column.
template <int kGroups, typename Finish>
__device__ void store_cluster(const Finish& finish, int first_tile, const float (&acc)[kGroups][4],
                              TileSums<kGroups>& sums) {
  static_assert(Finish::kPartner == 0 || Finish::kPartner == 8);
  constexpr int kEach = 4;
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  __syncthreads();  // x in the same shared memory has been read
  sums.put(acc);
  cluster.sync();
  const auto rank = static_cast<int>(cluster.block_rank());
  const int first = static_cast<int>(threadIdx.x) % 4 * kEach;
  const int column = static_cast<int>(threadIdx.x) / 4;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (column < kGroups * kColumns) {
    float4 part[kSegments];
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      part[s] = *reinterpret_cast<const float4*>(
          cluster.map_shared_rank(&sums.value[rank][column][first], static_cast<unsigned>(s)));
    }
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      sum.x += part[s].x;
      sum.y += part[s].y;
      sum.z += part[s].z;
      sum.w += part[s].w;
    }
  }
  asm volatile("barrier.cluster.arrive.aligned;\n" ::: "memory");  // the others' sums are read
  const float values[kEach] = {sum.x, sum.y, sum.z, sum.w};
  if (column < kGroups * kColumns) {
    const auto at = finish.column(column);
    decltype(finish.row(0, 0)) rows[kEach];
    decltype(finish.extra(rows[0], at)) extra[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) rows[i] = finish.row(first_tile + rank, first + i);
#pragma unroll
    for (int i = 0; i < kEach; ++i) extra[i] = finish.extra(rows[i], at);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float other = Finish::kPartner == 0 ? 0.0f : __shfl_xor_sync(0xFFFFFFFFu, values[i], 2);
      finish.store(rows[i], at, extra[i], values[i], other);
    }
  }
  asm volatile("barrier.cluster.wait.aligned;\n" ::: "memory");
}

}  // namespace holdfast::cuda_kernels
