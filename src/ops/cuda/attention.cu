// paged_attention: causal attention over cached keys, with sinks and sliding window (ops.h).
//
// A block serves one row (token) and some query heads of one key head. Keys go in tiles of 32 at
// fixed positions, and tile t belongs to strand t % 32: a running softmax and sums of its own. In a
// tile each lane scores one key, then each lane sums its dimensions of the values. The strands'
// results are joined in order, so that the order of additions depends on the row's position alone.
// Few rows get a cluster of four blocks each, which share the strands out and join them through the
// cluster's shared memory; of a short window only the few strands that have a tile are kept. Head
// dimension up to 256 and a multiple of 4.
#include <cooperative_groups.h>

#include <cmath>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda/attention.cuh"
#include "ops/cuda/launchers.h"

namespace holdfast::ops::cuda {
namespace {

namespace cg = cooperative_groups;
using device::reads;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::prefetch_line;
using device::cuda::wait_for_inputs;

// What a block keeps in shared memory, of kHeads heads and kHere strands.
template <int kHeads, int kHere>
struct Shared {
  float* queries;      // [kHeads][dim]
  float* weights;      // [kWarps][kHeads][kTile]: of one tile's keys
  float* largest;      // [kHere][kHeads]
  float* denominator;  // [kHere][kHeads]
  float* factor;       // [kHeads][kStrands]: what a strand's sums are multiplied with
  float* total;        // [kHeads]
  float* sums;         // [kHere][kHeads][dim]

  __host__ __device__ static std::size_t bytes(std::int64_t dim) {
    return sizeof(float) * static_cast<std::size_t>(kHeads * dim + kWarps * kHeads * kTile +
                                                    2 * kHere * kHeads + kHeads * kStrands +
                                                    kHeads + kHere * kHeads * dim);
  }
  __device__ Shared(float* at, std::int64_t dim) {
    queries = at;
    sums = queries + kHeads * dim;
    weights = sums + kHere * kHeads * dim;
    largest = weights + kWarps * kHeads * kTile;
    denominator = largest + kHere * kHeads;
    factor = denominator + kHere * kHeads;
    total = factor + kHeads * kStrands;
  }
};

// One strand's running softmax and sums of each head; a lane's dimensions are 2 lane, 2 lane + 1,
// 2 lane + 64, ...
template <int kHeads, int kPairs>
struct Running {
  float largest[kHeads];
  float denominator[kHeads];
  float2 sums[kHeads][kPairs];
};

// The products of a lane's key, at `offset` (-1: it sees none), with the queries.
template <int kHeads, int kDim>
__device__ __forceinline__ void score_key(const AttentionKernel& a, std::int64_t offset,
                                          const float* queries, float (&scores)[kHeads]) {
  const std::int64_t dim = kDim > 0 ? kDim : a.dim;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) scores[h] = 0.0f;
  if (offset >= 0) {
    constexpr int kHeld = kDim > 0 && kHeads <= 2 ? 16 : 8;  // loads under way
    const auto* keys = reinterpret_cast<const float4*>(a.key_pages + offset);
    const int fours = static_cast<int>(dim) / 4;
#pragma unroll(kDim > 0 ? kDim / 4 / kHeld : 1)
    for (int first = 0; first < fours; first += kHeld) {
      float4 k[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (kDim > 0 || first + i < fours) k[i] = keys[first + i];
      }
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (kDim == 0 && first + i >= fours) break;
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float4 q =
              *reinterpret_cast<const float4*>(queries + h * dim + (first + i) * 4);
          scores[h] = fmaf(q.x, k[i].x,
                           fmaf(q.y, k[i].y, fmaf(q.z, k[i].z, fmaf(q.w, k[i].w, scores[h]))));
        }
      }
    }
  }
}

// Adds the tile's values, weighted. `weights`: the warp's, shared.
template <int kHeads, int kPairs, int kDim>
__device__ __forceinline__ void add_values(const AttentionKernel& a, std::int64_t offset,
                                           const float* weights,
                                           Running<kHeads, kPairs>& running) {
  const int lane = threadIdx.x % 32;
  const std::int64_t dim = kDim > 0 ? kDim : a.dim;
  constexpr int kHeld = kDim == 0 ? 4 : kHeads <= 2 ? 32 : 16;  // whose values are under way
#pragma unroll 1
  for (int first = 0; first < kTile; first += kHeld) {
    float2 v[kHeld][kPairs];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const std::int64_t at = __shfl_sync(0xFFFFFFFFu, offset, first + j);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const std::int64_t d = 2 * lane + i * 64;
        v[j][i] = at >= 0 && d < dim
                      ? *reinterpret_cast<const float2*>(a.value_pages + at + d)
                      : make_float2(0.0f, 0.0f);
      }
    }
#pragma unroll
    for (int four = 0; four < kHeld; four += 4) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float4 p = *reinterpret_cast<const float4*>(weights + h * kTile + first + four);
        const float each[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int i = 0; i < kPairs; ++i) {
            const float2 value = v[four + j][i];
            running.sums[h][i].x = fmaf(each[j], value.x, running.sums[h][i].x);
            running.sums[h][i].y = fmaf(each[j], value.y, running.sums[h][i].y);
          }
        }
      }
    }
  }
}

// A lane's key lies at `offset` (-1: it sees none). `weights`: the warp's, shared.
template <int kHeads, int kPairs, int kDim>
__device__ void attend_tile(const AttentionKernel& a, std::int64_t offset, const float* queries,
                            float* weights, Running<kHeads, kPairs>& running) {
  const int lane = threadIdx.x % 32;
  float scores[kHeads];
  score_key<kHeads, kDim>(a, offset, queries, scores);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float score =
        offset < 0 ? -INFINITY : __fmul_rn(scores[h], static_cast<float>(a.scale));
    const float largest = fmaxf(running.largest[h], warp_max(score));
    const float shrink =
        running.largest[h] == -INFINITY ? 0.0f : expf(__fadd_rn(running.largest[h], -largest));
    const float weight = score == -INFINITY ? 0.0f : expf(__fadd_rn(score, -largest));
    running.denominator[h] = fmaf(running.denominator[h], shrink, warp_sum(weight));
    running.largest[h] = largest;
    weights[h * kTile + lane] = weight;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      running.sums[h][i].x = __fmul_rn(running.sums[h][i].x, shrink);
      running.sums[h][i].y = __fmul_rn(running.sums[h][i].y, shrink);
    }
  }
  __syncwarp();
  add_values<kHeads, kPairs, kDim>(a, offset, weights, running);
  __syncwarp();
}

// Strand `strand` of the block's heads, into place `here` of the shared memory.
template <int kHeads, int kPairs, int kDim, int kHere>
__device__ void run_strand(const AttentionKernel& a, const Span& span, std::int64_t kv_head,
                           const Shared<kHeads, kHere>& shared, int2 strand_and_here) {
  const auto [strand, here] = strand_and_here;
  const int lane = threadIdx.x % 32;
  Running<kHeads, kPairs> running = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) running.largest[h] = -INFINITY;
  const std::int64_t first = span.begin / kTile;
  const std::int64_t skip = (strand - first % kStrands + kStrands) % kStrands;
  for (std::int64_t tile = first + skip; tile * kTile < span.end; tile += kStrands) {
    const std::int64_t j = tile * kTile + lane;
    const bool seen = j >= span.begin && j < span.end;
    const std::int64_t key = seen ? key_offset(a, span.table, j) : -1;
    attend_tile<kHeads, kPairs, kDim>(
        a, key < 0 ? -1 : key + kv_head * a.dim, shared.queries,
        shared.weights + static_cast<int>(threadIdx.x) / 32 * kHeads * kTile, running);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane == 0) {
      shared.largest[here * kHeads + h] = running.largest[h];
      shared.denominator[here * kHeads + h] = running.denominator[h];
    }
    if (running.largest[h] == -INFINITY) continue;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const std::int64_t d = 2 * lane + i * 64;
      if (d >= a.dim) continue;
      *reinterpret_cast<float2*>(shared.sums + (here * kHeads + h) * a.dim + d) =
          running.sums[h][i];
    }
  }
}

template <int kShare>
__device__ const float* of_strand(const float* mine, int strand) {
  if constexpr (kShare == 1) return mine;
  return cg::this_cluster().map_shared_rank(mine, static_cast<unsigned>(strand) /
                                                      (kStrands / kShare));
}

// Joins the strands' sums: scaled to the largest of all, in the order of the strands.
template <int kHeads, int kShare, bool kShort>
__device__ void join(const AttentionKernel& a, const Heads& heads, std::int64_t row,
                     const Shared<kHeads, Places<kShare, kShort>::kHere>& shared,
                     Places<kShare, kShort> places) {
  constexpr int kHeld = kShort ? kShortTiles : kStrands;
  const int warp = threadIdx.x / 32;
  const int strand = threadIdx.x % 32;
  const bool held = places.holds(strand);
  const int place = held ? places.of(strand) * kHeads : 0;
#pragma unroll 1
  for (int h = warp; h < heads.count; h += kWarps) {
    const float sink = sink_at(a, heads.first + h);
    const float largest =
        held ? of_strand<kShare>(shared.largest, strand)[place + h] : -INFINITY;
    const float most = fmaxf(sink, warp_max(largest));
    const float factor = largest == -INFINITY ? 0.0f : expf(__fadd_rn(largest, -most));
    shared.factor[h * kStrands + strand] = factor;
    const float part = factor == 0.0f ? 0.0f
                                      : __fmul_rn(of_strand<kShare>(shared.denominator,
                                                                    strand)[place + h], factor);
    const float total = __fadd_rn(warp_sum(part), expf(__fadd_rn(sink, -most)));
    if (strand == 0) shared.total[h] = total;
  }
  __syncthreads();
  const int rank = kShare == 1 ? 0 : static_cast<int>(cg::this_cluster().block_rank());
  const auto dim = static_cast<int>(a.dim);
#pragma unroll 1
  for (int i = rank * kWarps * 32 + static_cast<int>(threadIdx.x); i < heads.count * dim;
       i += kShare * kWarps * 32) {
    const int h = i / dim;
    float sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < kHeld; first += 8) {
      float factor[8], part[8];
#pragma unroll
      for (int s = 0; s < 8; ++s) {
        const int of = places.strand(first + s);
        factor[s] = shared.factor[h * kStrands + of];
        const float* sums =
            of_strand<kShare>(shared.sums, of) + (places.of(of) * kHeads + h) * dim;
        part[s] = factor[s] == 0.0f ? 0.0f : sums[i % dim];
      }
#pragma unroll
      for (int s = 0; s < 8; ++s) sum = fmaf(part[s], factor[s], sum);
    }
    a.out[(row * a.query_heads + heads.first) * dim + i] = sum / shared.total[h];
  }
}

template <int kHeads, int kPairs, int kDim, int kShare, bool kShort>
__global__ void __launch_bounds__(kWarps * 32) attention_kernel(AttentionKernel a) {
  extern __shared__ float4 shared_words[];
  constexpr int kHere = Places<kShare, kShort>::kHere;
  const Shared<kHeads, kHere> shared(reinterpret_cast<float*>(shared_words), a.dim);
  const RowWork work = row_work(a, blockIdx.x / kShare, kHeads);
  const auto& [row, heads, is_active, visible, span] = work;
  const int rank = kShare == 1 ? 0 : static_cast<int>(cg::this_cluster().block_rank());
  const Places<kShare, kShort> places{
      kShort ? static_cast<int>(span.begin / kTile % kStrands) : 0};
  if (threadIdx.x == 0) prefetch_line(a.sinks);
  if (visible) {
    prefetch_tile(a, span, heads.kv_head,
                  (places.first + rank * kHere + static_cast<int>(threadIdx.x) / 32) % kStrands);
  }
  wait_for_inputs();
  if (!is_active) return;  // the whole cluster
  if (!visible) {
    store_nothing(a, work);
    return;  // the whole cluster
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < kHeads * static_cast<int>(a.dim); i += kWarps * 32) {
    const bool there = i < heads.count * static_cast<int>(a.dim);
    shared.queries[i] = there ? a.qkv[row * a.width + heads.first * a.dim + i] : 0.0f;
  }
  __syncthreads();
#pragma unroll 1
  for (int here = static_cast<int>(threadIdx.x) / 32; here < kHere; here += kWarps) {
    run_strand<kHeads, kPairs, kDim, kHere>(a, span, heads.kv_head, shared,
                                            make_int2(
                                                (places.first + rank * kHere + here) % kStrands,
                                                here));
  }
  if constexpr (kShare == 1) {
    __syncthreads();
    join<kHeads, kShare, kShort>(a, heads, row, shared, places);
  } else {
    cg::this_cluster().sync();
    join<kHeads, kShare, kShort>(a, heads, row, shared, places);
    cg::this_cluster().sync();
  }
}

// Few rows need many blocks: they get fewer heads each, or a cluster; the arithmetic is the same.
constexpr std::int64_t kFewRows = 4;
constexpr std::int64_t kSharedRows = 32;
constexpr int kShare = 4;

struct Choice {
  void (*function)(AttentionKernel) = nullptr;
  std::size_t shared_bytes = 0;
  int heads = 0;
  unsigned share = 1;
};
template <int kHeads, int kPairs, int kDim, int kBlocks, bool kShort = false>
Choice choice(std::int64_t dim) {
  return {attention_kernel<kHeads, kPairs, kDim, kBlocks, kShort>,
          Shared<kHeads, Places<kBlocks, kShort>::kHere>::bytes(dim), kHeads, kBlocks};
}
Choice many(bool is_short) {
  const ManyAttention many = many_attention(is_short);
  return {many.function, many.shared_bytes, 8, 1};
}
Choice choose(std::int64_t rows, std::int64_t dim, std::int64_t window) {
  if (dim == 64) {
    const bool is_short = window > 0 && window <= (kShortTiles - 1) * kTile;
    if (is_short) {
      return rows <= kFewRows ? choice<2, 1, 64, 1, true>(dim) : many(true);
    }
    if (rows <= kFewRows) return choice<2, 1, 64, kShare>(dim);
    if (rows <= kSharedRows) return choice<8, 1, 64, kShare>(dim);
    return many(false);
  }
  const bool shares = rows <= kSharedRows;
  if (dim <= 64) return shares ? choice<8, 1, 0, kShare>(dim) : choice<8, 1, 0, 1>(dim);
  if (dim <= 128) return shares ? choice<4, 2, 0, kShare>(dim) : choice<4, 2, 0, 1>(dim);
  return shares ? choice<2, 4, 0, kShare>(dim) : choice<2, 4, 0, 1>(dim);
}

}  // namespace

Status paged_attention(device::Stream& stream, const PagedAttentionArgs& a) {
  const auto& pages = a.key_pages.shape;
  const std::int64_t query_heads = a.sinks.shape[0];
  const std::int64_t dim = pages[3];
  if (dim % 4 != 0) {
    return Error(ErrorCode::kUnsupported,
                 "paged_attention on CUDA needs a head dimension that is a multiple of 4, not " +
                     std::to_string(dim));
  }
  const AttentionKernel kernel{a.qkv.as<const float>(),
                               a.positions.as<const std::int32_t>(),
                               a.row_sequence.as<const std::int32_t>(),
                               a.block_tables.as<const std::int32_t>(),
                               a.key_pages.as<const float>(),
                               a.value_pages.as<const float>(),
                               a.sinks.address,
                               a.out.as<float>(),
                               a.active_rows.as<const std::int32_t>(),
                               a.sinks.dtype == tensor::DType::kF32 ? 1 : 0,
                               a.qkv.shape[1],
                               query_heads,
                               pages[2],
                               dim,
                               pages[1],
                               pages[0],
                               a.block_tables.shape[0],
                               a.block_tables.shape[1],
                               a.window,
                               double{a.scale}};
  const std::int64_t rows = a.qkv.shape[0];
  const Choice chosen = choose(rows, dim, a.window);
  const std::int64_t slices = (query_heads / pages[2] + chosen.heads - 1) / chosen.heads;
  const device::cuda::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(rows) * chosen.share,
                   static_cast<unsigned>(pages[2] * slices)),
      .block = dim3(kWarps * 32),
      .shared_bytes = chosen.shared_bytes,
      .cluster = chosen.share,
      .overlaps = true};
  return launch_cuda(
      stream, {"paged_attention", shape}, chosen.function, kernel,
      {reads("qkv", a.qkv), reads("positions", a.positions), reads("row_sequence", a.row_sequence),
       reads("block_tables", a.block_tables), reads("key_pages", a.key_pages),
       reads("value_pages", a.value_pages), reads("sinks", a.sinks),
       reads("active_rows", a.active_rows), writes("out", a.out)});
}

}  // namespace holdfast::ops::cuda
