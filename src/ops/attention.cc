// Contracts of the ops around attention: rope, kv_write, paged_attention, router_top_k.
#include "base/error.h"
#include "ops/check.h"
#include "ops/check_ops.h"
#include "ops/ops.h"

namespace holdfast::ops {
namespace {

using tensor::DType;

// What qkv and the pages of one attention layer must agree on.
struct HeadLayout {
  std::int64_t kv_heads = 0;
  std::int64_t query_heads = 0;
  std::int64_t head_dim = 0;
};

// Derives the heads from pages [P, page, Hkv, d] and qkv [n, (Hq + 2 Hkv) d].
Result<HeadLayout> check_heads(const TensorView& qkv, const TensorView& key_pages,
                               const TensorView& value_pages, const char* op) {
  HF_TRY(check_rank(qkv, 2, op, "qkv"));
  HF_TRY(check_rank(key_pages, 4, op, "key_pages"));
  HF_TRY(check_operand(qkv, {op, "qkv", {DType::kF32}, qkv.shape}));
  HF_TRY(check_operand(key_pages, {op, "key_pages", {DType::kF32}, key_pages.shape}));
  HF_TRY(check_operand(value_pages, {op, "value_pages", {DType::kF32}, key_pages.shape}));
  HeadLayout heads{.kv_heads = key_pages.shape[2], .head_dim = key_pages.shape[3]};
  const std::int64_t width = qkv.shape[1];
  const std::int64_t kv_width = heads.kv_heads * heads.head_dim;
  if (kv_width == 0 || key_pages.shape[1] == 0 || width <= 2 * kv_width || width % kv_width != 0) {
    return make_error(ErrorCode::kMismatch,
                      "{}: operand qkv is {} wide, must be a multiple of {} ({} kv heads of {}) "
                      "and hold q, k and v; key_pages is {}",
                      op, width, kv_width, heads.kv_heads, heads.head_dim,
                      key_pages.shape.to_string());
  }
  if (heads.head_dim > kMaxHeadDim) {
    return make_error(ErrorCode::kMismatch,
                      "{}: operand key_pages has head_dim {}, at most {} fits", op, heads.head_dim,
                      kMaxHeadDim);
  }
  heads.query_heads = width / heads.head_dim - 2 * heads.kv_heads;
  return heads;
}

}  // namespace

Status check_rope(const RopeArgs& args) {
  constexpr const char* kOp = "rope";
  HF_TRY(check_rank(args.x, 2, kOp, "x"));
  HF_TRY(check_rank(args.cos_table, 2, kOp, "cos_table"));
  const std::int64_t width = args.x.shape[1];
  if (args.head_dim <= 0 || args.head_dim % 2 != 0 || args.head_count < 0 ||
      args.head_count > width / args.head_dim) {
    return make_error(ErrorCode::kMismatch,
                      "rope: {} heads of {} do not fit operand x {} (head_dim must be even)",
                      args.head_count, args.head_dim, args.x.shape.to_string());
  }
  const tensor::Shape table{args.cos_table.shape[0], args.head_dim / 2};
  HF_TRY(check_operand(args.x, {kOp, "x", {DType::kF32}, args.x.shape}));
  HF_TRY(check_operand(args.positions, {kOp, "positions", {DType::kI32}, {args.x.shape[0]}}));
  HF_TRY(check_operand(args.cos_table, {kOp, "cos_table", {DType::kF32}, table}));
  HF_TRY(check_operand(args.sin_table, {kOp, "sin_table", {DType::kF32}, table}));
  return check_active_rows(args.active_rows, kOp);
}

Status rope(const OpContext& context, const RopeArgs& args) {
  HF_TRY(check_rope(args));
  return context.kernels.rope(context.stream, args);
}

Status check_kv_write(const KvWriteArgs& args) {
  constexpr const char* kOp = "kv_write";
  HF_TRY(check_heads(args.qkv, args.key_pages, args.value_pages, kOp));
  HF_TRY(check_operand(args.slot_mapping,
                       {kOp, "slot_mapping", {DType::kI32}, {args.qkv.shape[0]}}));
  return check_active_rows(args.active_rows, kOp);
}

Status kv_write(const OpContext& context, const KvWriteArgs& args) {
  HF_TRY(check_kv_write(args));
  return context.kernels.kv_write(context.stream, args);
}

Status paged_attention(const OpContext& context, const PagedAttentionArgs& args) {
  constexpr const char* kOp = "paged_attention";
  HF_ASSIGN(const HeadLayout heads,
            check_heads(args.qkv, args.key_pages, args.value_pages, kOp));
  const std::int64_t n = args.qkv.shape[0];
  if (heads.query_heads % heads.kv_heads != 0) {
    return make_error(ErrorCode::kMismatch,
                      "paged_attention: {} query heads are no multiple of {} kv heads",
                      heads.query_heads, heads.kv_heads);
  }
  if (args.window < 0) {
    return make_error(ErrorCode::kMismatch, "paged_attention: window is {}, must be 0 or more",
                      args.window);
  }
  HF_TRY(check_rank(args.block_tables, 2, kOp, "block_tables"));
  HF_TRY(check_operand(args.positions, {kOp, "positions", {DType::kI32}, {n}}));
  HF_TRY(check_operand(args.row_sequence, {kOp, "row_sequence", {DType::kI32}, {n}}));
  HF_TRY(check_operand(args.block_tables,
                       {kOp, "block_tables", {DType::kI32}, args.block_tables.shape}));
  HF_TRY(check_operand(args.sinks, {kOp, "sinks", {DType::kBF16, DType::kF32},
                                    {heads.query_heads}}));
  HF_TRY(check_operand(args.out, {kOp, "out", {DType::kF32},
                                  {n, heads.query_heads * heads.head_dim}}));
  HF_TRY(check_disjoint(args.qkv, args.out, kOp, "qkv and out"));
  HF_TRY(check_active_rows(args.active_rows, kOp));
  return context.kernels.paged_attention(context.stream, args);
}

Status check_router_top_k(const Kernels& kernels, const RouterTopKArgs& args) {
  constexpr const char* kOp = "router_top_k";
  if (args.over_all && !kernels.routes_over_all()) {
    return make_error(ErrorCode::kUnsupported,
                      "router_top_k: this device has no kernel for a softmax over all experts "
                      "(norm_topk_prob false); choose the cpu");
  }
  HF_TRY(check_rank(args.logits, 2, kOp, "logits"));
  HF_TRY(check_rank(args.ids, 2, kOp, "ids"));
  const std::int64_t n = args.logits.shape[0];
  const std::int64_t k = args.ids.shape[1];
  if (k < 1 || k > args.logits.shape[1]) {
    return make_error(ErrorCode::kMismatch, "router_top_k: k is {}, must be 1 to {} experts", k,
                      args.logits.shape[1]);
  }
  HF_TRY(check_operand(args.logits, {kOp, "logits", {DType::kF32}, args.logits.shape}));
  HF_TRY(check_operand(args.ids, {kOp, "ids", {DType::kI32}, {n, k}}));
  HF_TRY(check_operand(args.weights, {kOp, "weights", {DType::kF32}, {n, k}}));
  return check_active_rows(args.active_rows, kOp);
}

Status router_top_k(const OpContext& context, const RouterTopKArgs& args) {
  HF_TRY(check_router_top_k(context.kernels, args));
  return context.kernels.router_top_k(context.stream, args);
}

}  // namespace holdfast::ops
