// The contracts of all ops: what each computes, its operands, dtypes and shapes. The free functions
// check once and hand over to the kernels of the stream's device. Activations are f32 on the CPU.
//
// Notation: n rows (tokens) of a step; every op touches only rows [0, *active_rows) of its row-wise
// operands, read from memory when it runs, so that one captured graph serves any count up to n.
// Rows are independent: a row's bits never depend on n, on the other rows, or on thread count.
// Errors of the free functions: kMismatch naming op, operand and both shapes or dtypes;
// kUnsupported for an op that the device has no kernel for.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "holdfast/result.h"
#include "tensor/tensor_view.h"

namespace holdfast::ops {

using tensor::TensorView;

// What the attention kernels' fixed scratch holds.
inline constexpr std::int64_t kMaxHeadDim = 256;

// Indices come from memory when a kernel runs, so they cannot be checked before: one that is out of
// range reads and writes nothing. embedding and gather_rows give a zero row, rope leaves the row,
// kv_write skips it, paged_attention gives zeros (row_sequence) or does not see the page.

// out[r] = table[ids[r]]. ids i32 [n], each in [0, V); table bf16|f32 [V, H]; out f32 [n, H].
struct EmbeddingArgs {
  TensorView ids, table, out;
  TensorView active_rows;  // i32 [1]
};

// out[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * weight (semantics.md 3.9, multiply in f32).
// x f32 [n, H]; weight bf16|f32 [H]; out f32 [n, H], may be x.
struct RmsNormArgs {
  TensorView x, weight, out;
  TensorView active_rows;
  float eps = 1e-5f;
};

// RMSNorm of single heads, in place: the first query_head_count heads of each row under
// query_weight, the next key_head_count under key_weight; what follows is left alone.
// x f32 [n, W], W >= (query_head_count + key_head_count) * d; weights bf16|f32 [d].
struct HeadNormArgs {
  TensorView x, query_weight, key_weight;
  TensorView active_rows;
  std::int64_t query_head_count = 0;
  std::int64_t key_head_count = 0;
  float eps = 1e-6f;
};

// out[r, i] = silu(x[r, i]) * x[r, I + i] with silu(g) = g / (1 + exp(-g)).
// x f32 [n, 2 I]; out f32 [n, I], must not overlap x.
struct SiluGateArgs {
  TensorView x, out;
  TensorView active_rows;
};

// out[r] = x[r] W^T + bias + residual[r]. x f32 [n, K]; weight bf16|f32 [N, K]; bias bf16|f32 [N]
// or empty; residual f32 [n, N] or empty, may be out; out f32 [n, N], must not overlap x.
struct LinearArgs {
  TensorView x, weight, bias, residual, out;
  TensorView active_rows;
};

// Rotates the first `head_count` heads of each row in place, as halves (semantics.md 4.4):
// (a, b) = (a c - b s, b c + a s) with c, s = tables[positions[r]].
// x f32 [n, W], W >= head_count * head_dim; positions i32 [n];
// tables f32 [max_positions, head_dim / 2].
struct RopeArgs {
  TensorView x, positions, cos_table, sin_table;
  TensorView active_rows;
  std::int64_t head_count = 0;
  std::int64_t head_dim = 0;
};

// Stores k and v of each row into its cache slot. qkv f32 [n, (Hq + 2 Hkv) d], laid out q, k, v;
// pages f32 [P, page, Hkv, d]; slot_mapping i32 [n] = page_index * page + offset, -1: do not store.
struct KvWriteArgs {
  TensorView qkv, slot_mapping, key_pages, value_pages;
  TensorView active_rows;
};

// Causal attention of each row over its sequence's cached keys [0, positions[r]], sliding when
// window > 0: key j is visible iff 0 <= positions[r] - j < window. Sinks (semantics.md 4.3): one
// more unscaled logit per query head in the softmax's denominator, without a value; -inf is none.
// qkv as above (q part); positions i32 [n]; row_sequence i32 [n]: row of block_tables;
// block_tables i32 [S, B] page indices; sinks bf16|f32 [Hq]; out f32 [n, Hq d].
// A row with positions[r] < 0 gets zeros. d <= kMaxHeadDim.
struct PagedAttentionArgs {
  TensorView qkv, positions, row_sequence, block_tables, key_pages, value_pages, sinks, out;
  TensorView active_rows;
  std::int64_t window = 0;
  float scale = 1.0f;
};

// The k largest logits of each row, largest first, ties to the lower index; weights = softmax over
// those k, or over all E (then their sum is below 1) (semantics.md 3.8). A softmax over all that is
// renormalised is the one over those k. NaN counts as -inf.
// logits f32 [n, E]; ids i32 [n, k]; weights f32 [n, k].
struct RouterTopKArgs {
  TensorView logits, ids, weights;
  TensorView active_rows;
  bool over_all = false;
};

// out[r] = x[rows[r]] for r < *active_rows. x f32 [n, H]; rows i32 [m]; out f32 [m, H].
struct GatherRowsArgs {
  TensorView x, rows, out;
  TensorView active_rows;
};

// Takes a token of each row of logits where they are, for hosts that cannot read them cheaply: the
// largest at temperature 0 (ties to the lower id), else one draw over softmax(logits / temperature)
// in the order of ids with the uniform number of the row. The arithmetic is choose_math.h's, on
// every device and in the host's sampler, so that it does not matter who takes a token.
// logits f32 [n, V]; temperatures f32 [n]; draws i32 [n, 2], a float64 in [0, 1) each;
// scratch i32 [n, choose_chunks(V), 8]; choices i32 [n, 8], a Choice each.
struct ChooseArgs {
  TensorView logits, temperatures, draws, scratch, choices;
  TensorView active_rows;
};
struct Choice {
  std::int32_t id = 0;
  std::int32_t broken = -1;  // the first logit that is not finite; then `logit` is its value, and
                             // nothing else is right
  float logit = 0;           // of id
  float largest = 0;
  double total = 0;  // log p(id) = logit - largest - log(total), at temperature 1
  std::int64_t zero = 0;
};
inline constexpr std::int64_t kChooseWords = 8;
inline constexpr std::int64_t kChooseChunk = 4096;
inline constexpr std::int64_t choose_chunks(std::int64_t vocab) {
  return (vocab + kChooseChunk - 1) / kChooseChunk;
}

// Ops that a device may run as fewer kernels. Each gives what its parts give one after the other;
// what is marked scratch is left with any contents.

// rms_norm, linear (q, k and v), rope on its output, kv_write. norm.out = linear.x is scratch, and
// so are k and v of linear.out = rope.x = write.qkv.
struct QkvArgs {
  RmsNormArgs norm;
  LinearArgs linear;
  RopeArgs rope;
  KvWriteArgs write;
};

// rms_norm, linear, router_top_k. norm.out = linear.x holds the rows; linear.out = top_k.logits is
// scratch.
struct RouteArgs {
  RmsNormArgs norm;
  LinearArgs linear;
  RouterTopKArgs top_k;
};

// gather_rows, rms_norm, linear (a head). gather.out = norm.x = norm.out = linear.x is scratch.
struct HeadArgs {
  GatherRowsArgs gather;
  RmsNormArgs norm;
  LinearArgs linear;
};

// One device's implementation of every op: enqueues on the stream, allocates nothing. Arguments are
// already checked. Stateless; any thread.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual Status embedding(device::Stream& stream, const EmbeddingArgs& args) = 0;
  virtual Status rms_norm(device::Stream& stream, const RmsNormArgs& args) = 0;
  virtual Status linear(device::Stream& stream, const LinearArgs& args) = 0;
  virtual Status rope(device::Stream& stream, const RopeArgs& args) = 0;
  virtual Status kv_write(device::Stream& stream, const KvWriteArgs& args) = 0;
  virtual Status paged_attention(device::Stream& stream, const PagedAttentionArgs& args) = 0;
  virtual Status router_top_k(device::Stream& stream, const RouterTopKArgs& args) = 0;
  virtual Status gather_rows(device::Stream& stream, const GatherRowsArgs& args) = 0;
  // Not on every device: kUnsupported unless one has them.
  virtual Status head_norm(device::Stream& stream, const HeadNormArgs& args);
  virtual Status silu_gate(device::Stream& stream, const SiluGateArgs& args);
  // Whether router_top_k and route know RouterTopKArgs::over_all.
  virtual bool routes_over_all() const { return false; }
  // The parts in turn, unless a device does better.
  virtual Status qkv(device::Stream& stream, const QkvArgs& args);
  virtual Status route(device::Stream& stream, const RouteArgs& args);
  virtual Status head(device::Stream& stream, const HeadArgs& args);
  virtual Status choose(device::Stream& stream, const ChooseArgs& args);
};

// Plain scalar loops: the formulas.
std::unique_ptr<Kernels> make_cpu_reference_kernels();
// SIMD on all workers of the stream (Highway, chosen at run time); bounds in ops_test.cc.
std::unique_ptr<Kernels> make_cpu_fast_kernels();
// For CUDA streams; bounds in ops/cuda/ops_cuda_test.cc. Asserts that the build has CUDA.
std::unique_ptr<Kernels> make_cuda_kernels();

// Where ops run. A value that borrows.
struct OpContext {
  device::Stream& stream;
  Kernels& kernels;
};

Status embedding(const OpContext& context, const EmbeddingArgs& args);
Status rms_norm(const OpContext& context, const RmsNormArgs& args);
Status linear(const OpContext& context, const LinearArgs& args);
Status rope(const OpContext& context, const RopeArgs& args);
Status kv_write(const OpContext& context, const KvWriteArgs& args);
Status paged_attention(const OpContext& context, const PagedAttentionArgs& args);
Status router_top_k(const OpContext& context, const RouterTopKArgs& args);
Status gather_rows(const OpContext& context, const GatherRowsArgs& args);
Status head_norm(const OpContext& context, const HeadNormArgs& args);
Status silu_gate(const OpContext& context, const SiluGateArgs& args);
// Errors: those of the parts, and kMismatch where one part's output is not the next one's input.
Status qkv(const OpContext& context, const QkvArgs& args);
Status route(const OpContext& context, const RouteArgs& args);
Status head(const OpContext& context, const HeadArgs& args);
Status choose(const OpContext& context, const ChooseArgs& args);

}  // namespace holdfast::ops
