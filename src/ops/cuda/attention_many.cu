// paged_attention of many rows with heads of 64 dimensions: the arithmetic of attention.cu, bit by
// bit. Keys and values come to shared memory by asynchronous copies, half a tile (16 keys) at a
// time, in a ring of three halves for each warp: while one half is used, others are on their way.
//
// Scores: a lane has two keys (lane % 16 and that + 16) and four of eight heads; values: four
// dimensions of the same heads. A strand's sums stay in registers until all strands are joined,
// eight at a time, through shared memory.
#include <cmath>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/attention.cuh"

namespace holdfast::ops::cuda {
namespace {

using cuda_kernels::async_commit;
using cuda_kernels::async_copy;
using cuda_kernels::async_wait;
using cuda_kernels::shared_address;
using device::cuda::prefetch_line;
using device::cuda::wait_for_inputs;

constexpr int kDim = 64;
constexpr int kHeads = 8;     // of a block
constexpr int kMine = 4;      // heads of a lane
constexpr int kHalf = kTile / 2;
constexpr int kRowBytes = kDim * 4;
constexpr int kHalfBytes = kHalf * kRowBytes;
constexpr int kSlots = 3;

template <bool kShort>
struct Shared {
  static constexpr int kPlaces = Places<1, kShort>::kHere;
  float ring[kWarps][kSlots][kHalf][kDim];  // of keys, 16 bytes i of row r at i ^ r % 8
  float weights[kWarps][kTile][kHeads];     // of one tile's keys
  float queries[kHeads][kDim];
  float largest[kPlaces][kHeads];
  float denominator[kPlaces][kHeads];
  float factor[kHeads][kStrands];  // what a strand's sums are multiplied with
  float total[kHeads];
};
// In the same place as the ring, when that is no longer needed: the sums of eight strands.
using Sums = float[kWarps][kHeads][kDim];

// A strand's running softmax and sums: of the lane's heads, and four dimensions each.
struct Running {
  float largest[kMine], denominator[kMine];
  float sums[kMine][4];

  __device__ void clear() {
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      largest[h] = -INFINITY;
      denominator[h] = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[h][i] = 0.0f;
    }
  }
};

// The tiles of a warp, strand after strand.
struct Tiles {
  int first_strand, first, end;  // of the warp; of the row: its first tile, the one after its last
  int strands;                   // of the warp
  int strand = 0, tile = 0;      // strand: of those; all are done when it is `strands`

  __device__ void begin_strand() {
    const int of = (first_strand + strand * kWarps) % kStrands;
    tile = first + (of - first % kStrands + kStrands) % kStrands;
  }
  __device__ void skip_empty() {
    while (strand < strands && tile >= end) {
      ++strand;
      begin_strand();
    }
  }
  __device__ void go_on() {
    tile += kStrands;
    skip_empty();
  }
  __device__ bool done() const { return strand >= strands; }
};

// Which row of 64 values of the pages the lane's key of a tile has; -1: it sees none.
__device__ int key_row(const AttentionKernel& a, const RowWork& work, const Tiles& tiles) {
  const std::int64_t j = static_cast<std::int64_t>(tiles.tile) * kTile + threadIdx.x % 32;
  if (tiles.done() || j < work.span.begin || j >= work.span.end) return -1;
  const std::int64_t key = key_offset(a, work.span.table, j);
  return key < 0 ? -1 : static_cast<int>(static_cast<unsigned>(key / kDim + work.heads.kv_head));
}

// Asks for half a tile: the rows of the lanes [first, first + 16). Nothing is read of a row -1.
template <bool kKeys>
__device__ __forceinline__ void ask(const float* pages, int row, int first, float (*to)[kDim]) {
  const int lane = threadIdx.x % 32;
  const int chunk = lane % 16;
  const std::uint32_t slot = shared_address(to) + lane / 16 * kRowBytes;
  const float* from = pages + chunk * 4;
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) {
    const int of = __shfl_sync(0xFFFFFFFFu, row, first + 2 * i + lane / 16);
    const int at = kKeys ? chunk ^ (2 * i + lane / 16) % 8 : chunk;
    async_copy(slot + 2 * i * kRowBytes + at * 16, from + static_cast<std::int64_t>(of) * kDim,
               of < 0 ? 0 : 16);
  }
}

// A tile's keys in shared memory, in halves, and the lane's row of the pages (key_row).
struct Keys {
  int row = -1;
  const float (*low)[kDim] = nullptr;
  const float (*high)[kDim] = nullptr;
};

// The weights of a tile's keys, into shared memory.
__device__ __forceinline__ void weigh(const Keys& keys, const float (*queries)[kDim], float scale,
                                      float (*weights)[kHeads], Running& running) {
  const auto& [row, low, high] = keys;
  const int lane = threadIdx.x % 32;
  const int key = lane % 16;
  const int first = lane / 16 * kMine;
  const bool seen[2] = {__shfl_sync(0xFFFFFFFFu, row, key) >= 0,
                        __shfl_sync(0xFFFFFFFFu, row, key + 16) >= 0};
  float scores[2][kMine] = {};
#pragma unroll 8
  for (int c = 0; c < kDim / 4; ++c) {
    const int at = (c ^ key % 8) * 4;
    const float4 k[2] = {*reinterpret_cast<const float4*>(&low[key][at]),
                         *reinterpret_cast<const float4*>(&high[key][at])};
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      const float4 q = *reinterpret_cast<const float4*>(&queries[first + h][c * 4]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scores[i][h] = fmaf(q.x, k[i].x,
                            fmaf(q.y, k[i].y, fmaf(q.z, k[i].z, fmaf(q.w, k[i].w, scores[i][h]))));
      }
    }
  }
  float weight[2][kMine];
#pragma unroll
  for (int h = 0; h < kMine; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scores[i][h] = seen[i] ? __fmul_rn(scores[i][h], scale) : -INFINITY;
    }
    float most = fmaxf(scores[0][h], scores[1][h]);
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, distance));
    }
    const float largest = fmaxf(running.largest[h], most);
    const float shrink =
        running.largest[h] == -INFINITY ? 0.0f : expf(__fadd_rn(running.largest[h], -largest));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      weight[i][h] = scores[i][h] == -INFINITY ? 0.0f : expf(__fadd_rn(scores[i][h], -largest));
    }
    float sum = __fadd_rn(weight[0][h], weight[1][h]);
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, distance));
    }
    running.denominator[h] = fmaf(running.denominator[h], shrink, sum);
    running.largest[h] = largest;
#pragma unroll
    for (int i = 0; i < 4; ++i) running.sums[h][i] = __fmul_rn(running.sums[h][i], shrink);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    *reinterpret_cast<float4*>(&weights[key + 16 * i][first]) =
        make_float4(weight[i][0], weight[i][1], weight[i][2], weight[i][3]);
  }
}

// Adds half a tile's values, weighted.
__device__ __forceinline__ void add_values(const float (*values)[kDim],
                                           const float (*weights)[kHeads], Running& running) {
  const int lane = threadIdx.x % 32;
  const int first = lane / 16 * kMine;
#pragma unroll 8
  for (int j = 0; j < kHalf; ++j) {
    const float4 v = *reinterpret_cast<const float4*>(&values[j][lane % 16 * 4]);
    const float4 p = *reinterpret_cast<const float4*>(&weights[j][first]);
    const float each[kMine] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      running.sums[h][0] = fmaf(each[h], v.x, running.sums[h][0]);
      running.sums[h][1] = fmaf(each[h], v.y, running.sums[h][1]);
      running.sums[h][2] = fmaf(each[h], v.z, running.sums[h][2]);
      running.sums[h][3] = fmaf(each[h], v.w, running.sums[h][3]);
    }
  }
}

// What becomes of the strands, which are in shared memory but for their sums: those are `held`, a
// warp's strands in order.
template <bool kShort, int kHeld>
__device__ void join(const AttentionKernel& a, const RowWork& work, Shared<kShort>& shared,
                     const Places<1, kShort>& places, const float (&held)[kHeld][kMine][4]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (warp < work.heads.count) {
    const bool is_held = places.holds(lane);
    const int place = is_held ? places.of(lane) : 0;
    const float sink = sink_at(a, work.heads.first + warp);
    const float largest = is_held ? shared.largest[place][warp] : -INFINITY;
    const float most = fmaxf(sink, warp_max(largest));
    const float factor = largest == -INFINITY ? 0.0f : expf(__fadd_rn(largest, -most));
    shared.factor[warp][lane] = factor;
    const float part =
        factor == 0.0f ? 0.0f : __fmul_rn(shared.denominator[place][warp], factor);
    const float total = __fadd_rn(warp_sum(part), expf(__fadd_rn(sink, -most)));
    if (lane == 0) shared.total[warp] = total;
  }
  auto& sums = reinterpret_cast<Sums&>(shared.ring);
  float out[2] = {};
#pragma unroll
  for (int round = 0; round < kHeld; ++round) {
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kMine; ++h) {
      *reinterpret_cast<float4*>(&sums[warp][lane / 16 * kMine + h][lane % 16 * 4]) = make_float4(
          held[round][h][0], held[round][h][1], held[round][h][2], held[round][h][3]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int h = warp / 2 + i * 4;
      const int d = static_cast<int>(threadIdx.x) % kDim;
#pragma unroll
      for (int s = 0; s < kWarps; ++s) {
        const int of = places.strand(round * kWarps + s);
        const float factor = shared.factor[h][of];
        const float part = factor == 0.0f ? 0.0f : sums[places.of(of) % kWarps][h][d];
        out[i] = fmaf(part, factor, out[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int h = warp / 2 + i * 4;
    if (h >= work.heads.count) continue;
    a.out[(work.row * a.query_heads + work.heads.first + h) * kDim + threadIdx.x % kDim] =
        out[i] / shared.total[h];
  }
}

// A strand is done: what of it is joined goes to shared memory, its sums to `held`.
template <bool kShort, int kHeld>
__device__ __forceinline__ void keep_strand(Shared<kShort>& shared, int strand,
                                            const Running& running,
                                            float (&held)[kHeld][kMine][4]) {
  const int lane = threadIdx.x % 32;
  const int place = strand * kWarps + static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int h = 0; h < kMine; ++h) {
    if (lane % 16 == 0) {
      shared.largest[place][lane / 16 * kMine + h] = running.largest[h];
      shared.denominator[place][lane / 16 * kMine + h] = running.denominator[h];
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        if (i == strand) held[i][h][d] = running.sums[h][d];
      }
    }
  }
}

// All tiles of a warp. The ring's first halves are the first tile's keys, then half of its values.
template <bool kShort, int kHeld>
__device__ __forceinline__ void attend(const AttentionKernel& a, const RowWork& work, Tiles tiles,
                                       Shared<kShort>& shared, float (&held)[kHeld][kMine][4]) {
  const int warp = threadIdx.x / 32;
  auto* const ring = shared.ring[warp];
  auto* const weights = shared.weights[warp];
  int row = key_row(a, work, tiles);
  ask<true>(a.key_pages, row, 0, ring[0]);
  ask<true>(a.key_pages, row, kHalf, ring[1]);
  async_commit();
  ask<false>(a.value_pages, row, 0, ring[2]);
  async_commit();
  __syncthreads();  // the queries are there
  Running running;
  running.clear();
  int slot = 0;
  while (!tiles.done()) {
    Tiles next = tiles;
    next.go_on();
    const int next_row = key_row(a, work, next);
    auto* const s0 = ring[slot];
    auto* const s1 = ring[slot + 1 < kSlots ? slot + 1 : slot + 1 - kSlots];
    auto* const s2 = ring[slot + 2 < kSlots ? slot + 2 : slot + 2 - kSlots];
    async_wait<1>();
    __syncwarp();
    weigh({row, s0, s1}, shared.queries, static_cast<float>(a.scale), weights, running);
    __syncwarp();
    ask<false>(a.value_pages, row, kHalf, s0);
    async_commit();
    ask<true>(a.key_pages, next_row, 0, s1);
    async_commit();
    async_wait<2>();
    __syncwarp();
    add_values(s2, weights, running);
    __syncwarp();
    ask<true>(a.key_pages, next_row, kHalf, s2);
    async_commit();
    async_wait<2>();
    __syncwarp();
    add_values(s0, weights + kHalf, running);
    __syncwarp();
    ask<false>(a.value_pages, next_row, 0, s0);
    async_commit();
    if (next.strand != tiles.strand) {
      keep_strand<kShort, kHeld>(shared, tiles.strand, running, held);
      running.clear();
    }
    tiles = next;
    row = next_row;
    slot = slot + 1 < kSlots ? slot + 1 : 0;
  }
  async_wait<0>();
  __syncthreads();
}

template <bool kShort>
__global__ void __launch_bounds__(kWarps * 32, 2) many_attention_kernel(AttentionKernel a) {
  extern __shared__ float4 shared_words[];
  constexpr int kHeld = Places<1, kShort>::kHere / kWarps;
  auto& shared = *reinterpret_cast<Shared<kShort>*>(shared_words);
  const int warp = threadIdx.x / 32;
  const RowWork work = row_work(a, blockIdx.x, kHeads);
  const auto first = static_cast<int>(work.span.begin / kTile);
  const Places<1, kShort> places{kShort ? first % kStrands : 0};
  if (threadIdx.x == 0) prefetch_line(a.sinks);
  if (work.visible) {
    for (int i = 0; i < min(kHeld, 2); ++i) {
      prefetch_tile(a, work.span, work.heads.kv_head,
                    (places.first + warp + i * kWarps) % kStrands);
    }
  }
  wait_for_inputs();
  if (!work.is_active) return;
  if (!work.visible) return store_nothing(a, work);
  for (int i = threadIdx.x; i < kHeads * kDim; i += kWarps * 32) {
    const bool there = i < work.heads.count * kDim;
    shared.queries[i / kDim][i % kDim] =
        there ? a.qkv[work.row * a.width + work.heads.first * kDim + i] : 0.0f;
  }
  for (int i = threadIdx.x; i < Shared<kShort>::kPlaces * kHeads; i += kWarps * 32) {
    shared.largest[i / kHeads][i % kHeads] = -INFINITY;
  }
  Tiles tiles{.first_strand = places.first + warp,
              .first = first,
              .end = static_cast<int>((work.span.end + kTile - 1) / kTile),
              .strands = kHeld};
  tiles.begin_strand();
  tiles.skip_empty();
  float held[kHeld][kMine][4] = {};
  attend<kShort, kHeld>(a, work, tiles, shared, held);
  join<kShort, kHeld>(a, work, shared, places, held);
}

template <bool kShort>
ManyAttention choice() {
  return {many_attention_kernel<kShort>, sizeof(Shared<kShort>)};
}

}  // namespace

ManyAttention many_attention(bool is_short) { return is_short ? choice<true>() : choice<false>(); }

}  // namespace holdfast::ops::cuda
