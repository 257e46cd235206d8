// The two sets of CPU kernels behind ops::Kernels, and what both need to read operands. Kernels are
// free of state and allocate nothing; they run on the thread that launches them and its workers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "device/cpu/worker_pool.h"
#include "ops/ops.h"
#include "tensor/codecs.h"

namespace holdfast::ops::cpu {

// Plain scalar loops, on the launching thread alone.
struct Reference {
  static void embedding(const EmbeddingArgs& args, device::WorkerPool& workers);
  static void rms_norm(const RmsNormArgs& args, device::WorkerPool& workers);
  static void linear(const LinearArgs& args, device::WorkerPool& workers);
  static void rope(const RopeArgs& args, device::WorkerPool& workers);
  static void kv_write(const KvWriteArgs& args, device::WorkerPool& workers);
  static void paged_attention(const PagedAttentionArgs& args, device::WorkerPool& workers);
  static void router_top_k(const RouterTopKArgs& args, device::WorkerPool& workers);
  static void gather_rows(const GatherRowsArgs& args, device::WorkerPool& workers);
};

// Highway, on all workers; each output element is computed wholly inside one task.
struct Fast {
  static void embedding(const EmbeddingArgs& args, device::WorkerPool& workers);
  static void rms_norm(const RmsNormArgs& args, device::WorkerPool& workers);
  static void linear(const LinearArgs& args, device::WorkerPool& workers);
  static void rope(const RopeArgs& args, device::WorkerPool& workers);
  static void kv_write(const KvWriteArgs& args, device::WorkerPool& workers);
  static void paged_attention(const PagedAttentionArgs& args, device::WorkerPool& workers);
  static void router_top_k(const RouterTopKArgs& args, device::WorkerPool& workers);
  static void gather_rows(const GatherRowsArgs& args, device::WorkerPool& workers);
};

// *active_rows as it is now, clamped to [0, n].
inline std::int64_t active_row_count(const TensorView& active_rows, std::int64_t n) {
  return std::clamp<std::int64_t>(*active_rows.as<const std::int32_t>(), 0, n);
}

// Element `index` of a bf16 or f32 view.
inline float weight_at(const TensorView& view, std::int64_t index) {
  if (view.dtype == tensor::DType::kF32) return view.as<const float>()[index];
  return tensor::bf16_to_f32(view.as<const std::uint16_t>()[index]);
}

// Where the keys of one row lie: page `j / page_size` of its block table, if that page exists.
struct PagedKeys {
  const std::int32_t* table = nullptr;  // nullptr: the row sees nothing
  std::int64_t begin = 0;               // first visible key
  std::int64_t end = 0;                 // one past the last
  std::int64_t page_size = 1;
  std::int64_t page_count = 0;
  std::int64_t key_stride = 0;  // elements from one key to the next, Hkv * d

  // Offset in elements of key j's first head; -1 when its page is out of range.
  std::int64_t offset(std::int64_t j) const {
    const std::int64_t page = table[j / page_size];
    if (page < 0 || page >= page_count) return -1;
    return (page * page_size + j % page_size) * key_stride;
  }
};

// The keys that row `row` sees (the contract of PagedAttentionArgs).
inline PagedKeys visible_keys(const PagedAttentionArgs& args, std::int64_t row) {
  const std::int64_t position = args.positions.as<const std::int32_t>()[row];
  const std::int64_t sequence = args.row_sequence.as<const std::int32_t>()[row];
  if (position < 0 || sequence < 0 || sequence >= args.block_tables.shape[0]) return {};
  const tensor::Shape& pages = args.key_pages.shape;
  const std::int64_t blocks = args.block_tables.shape[1];
  return PagedKeys{
      .table = args.block_tables.as<const std::int32_t>() + sequence * blocks,
      .begin = args.window > 0 ? std::max<std::int64_t>(0, position - args.window + 1) : 0,
      .end = std::min(position + 1, blocks * pages[1]),
      .page_size = pages[1],
      .page_count = pages[0],
      .key_stride = pages[2] * pages[3]};
}

}  // namespace holdfast::ops::cpu
