// paged_attention: causal attention over cached keys, with sinks and sliding window (ops.h).
//
// A block serves one row (token) and some query heads of one key head. Keys go
// in tiles of 32 at fixed positions; tile t belongs to warp t % 8. In a tile each lane scores one
// key, the warp updates its running maximum, and then each lane sums its dimensions of the values.
// The warps' results are joined in order, so that the order of additions depends on the row's
// position alone. Head dimension up to 256 and a multiple of 4.
#include <cmath>

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/launchers.h"
#include "ops/cuda/mma.cuh"

namespace holdfast::ops::cuda {
namespace {

using cuda_kernels::bf16_bits_to_float;
using cuda_kernels::smaller;
using device::reads;
using device::writes;
using device::cuda::launch_cuda;

constexpr int kWarps = 8;
constexpr int kTile = 32;

struct AttentionKernel {
  const float* qkv;
  const std::int32_t* positions;
  const std::int32_t* row_sequence;
  const std::int32_t* block_tables;
  const float* key_pages;
  const float* value_pages;
  const void* sinks;
  float* out;
  const std::int32_t* active_rows;
  std::int64_t sinks_are_f32, width, query_heads, kv_heads, dim, page_size, page_count, sequences,
      blocks, window;
  double scale;
};

__device__ float sink_at(const AttentionKernel& a, std::int64_t head) {
  if (a.sinks_are_f32 != 0) return static_cast<const float*>(a.sinks)[head];
  return bf16_bits_to_float(static_cast<const std::uint16_t*>(a.sinks)[head]);
}

// Offset in elements of key j's first head; -1 when its page is out of range.
__device__ std::int64_t key_offset(const AttentionKernel& a, const std::int32_t* table,
                                   std::int64_t j) {
  const std::int64_t page = table[j / a.page_size];
  if (page < 0 || page >= a.page_count) return -1;
  return (page * a.page_size + j % a.page_size) * a.kv_heads * a.dim;
}

__device__ float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}

// One warp's running softmax and sums of each head; a lane's dimensions are lane, lane + 32, ...
template <int kHeads, int kDims>
struct Running {
  float largest[kHeads];
  float denominator[kHeads];
  float sums[kHeads][kDims];
};

// The query heads of one block.
struct Heads {
  std::int64_t kv_head = 0, first = 0;
  int count = 0;
  const float* queries = nullptr;  // shared, [kHeads][dim]
};

// A lane's key lies at `offset` (-1: it sees none).
template <int kHeads, int kDims>
__device__ void attend_tile(const AttentionKernel& a, std::int64_t offset, const Heads& heads,
                            Running<kHeads, kDims>& running) {
  const int lane = threadIdx.x % 32;
  float scores[kHeads];
  for (int h = 0; h < kHeads; ++h) scores[h] = 0.0f;
  if (offset >= 0) {
    const float* key = a.key_pages + offset + heads.kv_head * a.dim;
#pragma unroll 4
    for (std::int64_t d = 0; d < a.dim; d += 4) {
      const float4 k = *reinterpret_cast<const float4*>(key + d);
      for (int h = 0; h < kHeads; ++h) {
        const float4 q = *reinterpret_cast<const float4*>(heads.queries + h * a.dim + d);
        scores[h] += q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    const float score = offset < 0 ? -INFINITY : scores[h] * static_cast<float>(a.scale);
    const float largest = fmaxf(running.largest[h], warp_max(score));
    const float shrink =
        running.largest[h] == -INFINITY ? 0.0f : expf(running.largest[h] - largest);
    scores[h] = score == -INFINITY ? 0.0f : expf(score - largest);
    running.denominator[h] = running.denominator[h] * shrink + warp_sum(scores[h]);
    running.largest[h] = largest;
    for (int i = 0; i < kDims; ++i) running.sums[h][i] *= shrink;
  }
#pragma unroll 8
  for (int j = 0; j < kTile; ++j) {
    const std::int64_t at = __shfl_sync(0xFFFFFFFFu, offset, j);
    const float* value = a.value_pages + at + heads.kv_head * a.dim;
    float v[kDims];
    for (int i = 0; i < kDims; ++i) {
      const std::int64_t d = lane + i * 32;
      v[i] = at >= 0 && d < a.dim ? value[d] : 0.0f;
    }
    for (int h = 0; h < kHeads; ++h) {
      const float p = __shfl_sync(0xFFFFFFFFu, scores[h], j);
      for (int i = 0; i < kDims; ++i) running.sums[h][i] += p * v[i];
    }
  }
}

// Joins the warps' sums of one head: scaled to the largest of all, in the order of the warps.
// `shared`: f32 [2 kWarps + kWarps dim].
template <int kHeads, int kDims>
__device__ void join_head(const AttentionKernel& a, const Heads& heads, int h,
                          const Running<kHeads, kDims>& running, float* shared) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const std::int64_t head = heads.first + h;
  float* largest = shared;
  float* denominator = shared + kWarps;
  float* values = shared + 2 * kWarps;  // [warps][dim]
  __syncthreads();
  if (lane == 0) {
    largest[warp] = running.largest[h];
    denominator[warp] = running.denominator[h];
  }
  for (int i = 0; i < kDims; ++i) {
    const std::int64_t d = lane + i * 32;
    if (d < a.dim) values[warp * a.dim + d] = running.sums[h][i];
  }
  __syncthreads();
  const float sink = sink_at(a, head);
  float most = sink;
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, largest[w]);
  float total = expf(sink - most);
  for (int w = 0; w < kWarps; ++w) {
    if (largest[w] != -INFINITY) total += denominator[w] * expf(largest[w] - most);
  }
  const std::int64_t row = blockIdx.x;
  for (std::int64_t d = threadIdx.x; d < a.dim; d += kWarps * 32) {
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      if (largest[w] != -INFINITY) sum += values[w * a.dim + d] * expf(largest[w] - most);
    }
    a.out[(row * a.query_heads + head) * a.dim + d] = sum / total;
  }
}

// Shared memory, f32: queries [kHeads][dim], then what join_head needs.
template <int kHeads, int kDims>
__global__ void __launch_bounds__(kWarps * 32) attention_kernel(AttentionKernel a) {
  extern __shared__ float4 shared_words[];
  float* queries = reinterpret_cast<float*>(shared_words);
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  const std::int64_t group = a.query_heads / a.kv_heads;
  const std::int64_t slices = (group + kHeads - 1) / kHeads;
  Heads heads{.kv_head = blockIdx.y / slices, .queries = queries};
  heads.first = heads.kv_head * group + blockIdx.y % slices * kHeads;
  heads.count = static_cast<int>(smaller(kHeads, (heads.kv_head + 1) * group - heads.first));
  const std::int64_t position = a.positions[row];
  const std::int64_t sequence = a.row_sequence[row];
  const bool visible = position >= 0 && sequence >= 0 && sequence < a.sequences;
  for (std::int64_t i = threadIdx.x; i < kHeads * a.dim; i += kWarps * 32) {
    const bool there = i / a.dim < heads.count;
    queries[i] = there ? a.qkv[row * a.width + heads.first * a.dim + i] : 0.0f;
  }
  if (!visible) {
    for (std::int64_t i = threadIdx.x; i < heads.count * a.dim; i += kWarps * 32) {
      a.out[(row * a.query_heads + heads.first) * a.dim + i] = 0.0f;
    }
    return;
  }
  __syncthreads();
  Running<kHeads, kDims> running = {};
  for (int h = 0; h < kHeads; ++h) running.largest[h] = -INFINITY;
  const std::int64_t begin =
      a.window > 0 && position - a.window + 1 > 0 ? position - a.window + 1 : 0;
  const std::int64_t end = smaller(position + 1, a.blocks * a.page_size);
  const std::int32_t* table = a.block_tables + sequence * a.blocks;
  for (std::int64_t tile = begin / kTile; tile * kTile < end; ++tile) {
    if (tile % kWarps != threadIdx.x / 32) continue;
    const std::int64_t j = tile * kTile + threadIdx.x % 32;
    const std::int64_t offset = j >= begin && j < end ? key_offset(a, table, j) : -1;
    attend_tile<kHeads, kDims>(a, offset, heads, running);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < heads.count) join_head(a, heads, h, running, queries + kHeads * a.dim);
  }
}

// Few rows need many blocks: they get fewer heads each, whose arithmetic is the same.
constexpr int kFewHeads = 2;
constexpr int kManyHeads = 8;
constexpr std::int64_t kFewRows = 16;

template <int kHeads>
auto kernel_of(std::int64_t dim) {
  if (dim <= 64) return attention_kernel<kHeads, 2>;
  if (dim <= 128) return attention_kernel<kHeads, 4>;
  return attention_kernel<kHeads, 8>;
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
  const std::int64_t heads = rows <= kFewRows ? kFewHeads : kManyHeads;
  const std::int64_t slices = (query_heads / pages[2] + heads - 1) / heads;
  const device::cuda::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(pages[2] * slices)),
      .block = dim3(kWarps * 32),
      .shared_bytes =
          sizeof(float) * static_cast<std::size_t>(heads * dim + 2 * kWarps + kWarps * dim)};
  const auto function = rows <= kFewRows ? kernel_of<kFewHeads>(dim) : kernel_of<kManyHeads>(dim);
  return launch_cuda(
      stream, {"paged_attention", shape}, function, kernel,
      {reads("qkv", a.qkv), reads("positions", a.positions), reads("row_sequence", a.row_sequence),
       reads("block_tables", a.block_tables), reads("key_pages", a.key_pages),
       reads("value_pages", a.value_pages), reads("sinks", a.sinks),
       reads("active_rows", a.active_rows), writes("out", a.out)});
}

}  // namespace holdfast::ops::cuda
