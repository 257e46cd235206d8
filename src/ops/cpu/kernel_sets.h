// The two sets of CPU kernels behind ops::Kernels, and what both need to read operands. Kernels are
// free of state and allocate nothing; they run on the thread that launches them and its workers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "device/cpu/worker_pool.h"
#include "ops/ops.h"
#include "tensor/codecs.h"

namespace holdfast::ops::cpu {

// An operand as a kernel sees it. Unlike a TensorView it has no padding: a capture looks for
// pointers in every word of a kernel's arguments, and stale bytes between members could pass for
// one.
struct View {
  std::byte* address = nullptr;
  std::int64_t is_f32 = 0;  // else bf16, or i32 where the contract says so
  std::array<std::int64_t, 4> shape{};

  bool empty() const { return address == nullptr; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(address);
  }
};

// At most four dimensions, which the contracts have checked.
inline View kernel_view(const TensorView& view) {
  View out{.address = view.address, .is_f32 = view.dtype == tensor::DType::kF32 ? 1 : 0};
  std::ranges::copy(view.shape.dims(), out.shape.begin());
  return out;
}

// The arguments of each op's kernel; see the struct of the same name in ops.h.
struct EmbeddingKernel {
  View ids, table, out, active_rows;
};
struct RmsNormKernel {
  View x, weight, out, active_rows;
  double eps = 0;
};
struct HeadNormKernel {
  View x, query_weight, key_weight, active_rows;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  double eps = 0;
};
struct SiluGateKernel {
  View x, out, active_rows;
};
struct LinearKernel {
  View x, weight, bias, residual, out, active_rows;
};
struct RopeKernel {
  View x, positions, cos_table, sin_table, active_rows;
  std::int64_t head_count = 0;
  std::int64_t head_dim = 0;
};
struct KvWriteKernel {
  View qkv, slot_mapping, key_pages, value_pages, active_rows;
};
struct PagedAttentionKernel {
  View qkv, positions, row_sequence, block_tables, key_pages, value_pages, sinks, out, active_rows;
  std::int64_t window = 0;
  double scale = 0;
};
struct RouterTopKKernel {
  View logits, ids, weights, active_rows;
  std::int64_t over_all = 0;
};
struct GatherRowsKernel {
  View x, rows, out, active_rows;
};
struct ChooseKernel {
  View logits, temperatures, draws, choices, active_rows;
};
static_assert(sizeof(View) == 48 && std::has_unique_object_representations_v<LinearKernel>);
static_assert(sizeof(RmsNormKernel) == 4 * sizeof(View) + 8);
static_assert(sizeof(HeadNormKernel) == 4 * sizeof(View) + 24);
static_assert(sizeof(PagedAttentionKernel) == 9 * sizeof(View) + 16);

// Plain scalar loops, on the launching thread alone.
struct Reference {
  static void embedding(const EmbeddingKernel& args, device::WorkerPool& workers);
  static void rms_norm(const RmsNormKernel& args, device::WorkerPool& workers);
  static void head_norm(const HeadNormKernel& args, device::WorkerPool& workers);
  static void silu_gate(const SiluGateKernel& args, device::WorkerPool& workers);
  static void linear(const LinearKernel& args, device::WorkerPool& workers);
  static void rope(const RopeKernel& args, device::WorkerPool& workers);
  static void kv_write(const KvWriteKernel& args, device::WorkerPool& workers);
  static void paged_attention(const PagedAttentionKernel& args, device::WorkerPool& workers);
  static void router_top_k(const RouterTopKKernel& args, device::WorkerPool& workers);
  static void gather_rows(const GatherRowsKernel& args, device::WorkerPool& workers);
};

// Highway, on all workers; each output element is computed wholly inside one task.
struct Fast {
  static void embedding(const EmbeddingKernel& args, device::WorkerPool& workers);
  static void rms_norm(const RmsNormKernel& args, device::WorkerPool& workers);
  static void head_norm(const HeadNormKernel& args, device::WorkerPool& workers);
  static void silu_gate(const SiluGateKernel& args, device::WorkerPool& workers);
  static void linear(const LinearKernel& args, device::WorkerPool& workers);
  static void rope(const RopeKernel& args, device::WorkerPool& workers);
  static void kv_write(const KvWriteKernel& args, device::WorkerPool& workers);
  static void paged_attention(const PagedAttentionKernel& args, device::WorkerPool& workers);
  static void router_top_k(const RouterTopKKernel& args, device::WorkerPool& workers);
  static void gather_rows(const GatherRowsKernel& args, device::WorkerPool& workers);
};

// choose_math.h's, of both sets; a row is a task.
void choose(const ChooseKernel& args, device::WorkerPool& workers);

// *active_rows as it is now, clamped to [0, n].
inline std::int64_t active_row_count(const View& active_rows, std::int64_t n) {
  return std::clamp<std::int64_t>(*active_rows.as<const std::int32_t>(), 0, n);
}

// Element `index` of a bf16 or f32 view.
inline float weight_at(const View& view, std::int64_t index) {
  if (view.is_f32 != 0) return view.as<const float>()[index];
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
inline PagedKeys visible_keys(const PagedAttentionKernel& args, std::int64_t row) {
  const std::int64_t position = args.positions.as<const std::int32_t>()[row];
  const std::int64_t sequence = args.row_sequence.as<const std::int32_t>()[row];
  if (position < 0 || sequence < 0 || sequence >= args.block_tables.shape[0]) return {};
  const auto& pages = args.key_pages.shape;
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
