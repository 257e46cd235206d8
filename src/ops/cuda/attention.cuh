// What the kernels of paged_attention share (attention.cu). Device code and one choice.
#pragma once

#include <cstdint>

#include "device/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"

namespace holdfast::ops::cuda {

using cuda_kernels::bf16_bits_to_float;
using cuda_kernels::smaller;

constexpr int kWarps = 8;
constexpr int kTile = 32;
constexpr int kStrands = 32;
constexpr int kShortTiles = 8;  // at most, of a window that is short

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

__device__ inline float sink_at(const AttentionKernel& a, std::int64_t head) {
  if (a.sinks_are_f32 != 0) return static_cast<const float*>(a.sinks)[head];
  return bf16_bits_to_float(static_cast<const std::uint16_t*>(a.sinks)[head]);
}

// Offset in elements of key j's first head; -1 when its page is out of range.
__device__ inline std::int64_t key_offset(const AttentionKernel& a, const std::int32_t* table,
                                   std::int64_t j) {
  const auto size = static_cast<unsigned>(a.page_size);
  const auto block = static_cast<unsigned>(j) / size;
  const std::int64_t page = table[block];
  if (page < 0 || page >= a.page_count) return -1;
  return (page * a.page_size + (static_cast<unsigned>(j) - block * size)) * a.kv_heads * a.dim;
}

__device__ inline float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  return value;
}
__device__ inline float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}

// The query heads of one block.
struct Heads {
  std::int64_t kv_head = 0, first = 0;
  int count = 0;
};

// The keys that a row sees.
struct Span {
  std::int64_t begin = 0, end = 0;
  const std::int32_t* table = nullptr;
};

// The keys that a lane's first tile of strand `strand` reads, and their values, on their way into
// the L2 cache. They were written by earlier steps, all but a few.
__device__ inline void prefetch_tile(const AttentionKernel& a, const Span& span,
                                     std::int64_t kv_head, int strand) {
  const std::int64_t first = span.begin / kTile;
  const std::int64_t tile = first + (strand - first % kStrands + kStrands) % kStrands;
  const std::int64_t j = tile * kTile + threadIdx.x % 32;
  if (j < span.begin || j >= span.end) return;
  const std::int64_t key = key_offset(a, span.table, j);
  if (key < 0) return;
  const auto bytes = static_cast<unsigned>(a.dim) * 4;
  device::cuda::prefetch(a.key_pages + key + kv_head * a.dim, bytes);
  device::cuda::prefetch(a.value_pages + key + kv_head * a.dim, bytes);
}

// Where the strands of a row lie in shared memory: in their order, or, of a short window, from the
// strand of its first tile on.
template <int kShare, bool kShort>
struct Places {
  static constexpr int kHere = kShort ? kShortTiles : kStrands / kShare;
  int first = 0;  // that strand

  __device__ int of(int strand) const {
    return kShort ? (strand - first + kStrands) % kStrands : strand % kHere;
  }
  __device__ bool holds(int strand) const { return !kShort || of(strand) < kHere; }
  // The i-th strand of those that are held, in order.
  __device__ int strand(int i) const {
    if constexpr (!kShort) return i;
    const int wrapped = max(first + kHere - kStrands, 0);
    return i < wrapped ? i : first + i - wrapped;
  }
};

// What a block works on.
struct RowWork {
  std::int64_t row = 0;
  Heads heads;
  bool is_active = false, visible = false;  // visible: the row has a sequence
  Span span;
};
// Of kHeads query heads a block. What the host wrote before the step can be read at once.
__device__ inline RowWork row_work(const AttentionKernel& a, std::int64_t row,
                                   int heads_of_block) {
  const std::int64_t group =
      static_cast<unsigned>(a.query_heads) / static_cast<unsigned>(a.kv_heads);
  const std::int64_t slices = (group + heads_of_block - 1) / heads_of_block;
  RowWork work{.row = row, .heads = {.kv_head = blockIdx.y / static_cast<unsigned>(slices)}};
  Heads& heads = work.heads;
  heads.first = heads.kv_head * group + (blockIdx.y - heads.kv_head * slices) * heads_of_block;
  heads.count =
      static_cast<int>(smaller(heads_of_block, (heads.kv_head + 1) * group - heads.first));
  work.is_active = row < *a.active_rows;
  const std::int64_t position = work.is_active ? a.positions[row] : -1;
  const std::int64_t sequence = work.is_active ? a.row_sequence[row] : -1;
  work.visible = position >= 0 && sequence >= 0 && sequence < a.sequences;
  work.span = {
      .begin = a.window > 0 && position - a.window + 1 > 0 ? position - a.window + 1 : 0,
      .end = smaller(position + 1, a.blocks * a.page_size),
      .table = a.block_tables + (work.visible ? sequence : 0) * a.blocks};
  return work;
}
// Of a row that has no sequence.
__device__ inline void store_nothing(const AttentionKernel& a, const RowWork& work) {
  for (std::int64_t i = threadIdx.x; i < work.heads.count * a.dim; i += kWarps * 32) {
    a.out[(work.row * a.query_heads + work.heads.first) * a.dim + i] = 0.0f;
  }
}

// The kernel for many rows with heads of 64 dimensions (attention_many.cu).
struct ManyAttention {
  void (*function)(AttentionKernel) = nullptr;
  std::size_t shared_bytes = 0;
};
ManyAttention many_attention(bool is_short);

}  // namespace holdfast::ops::cuda
