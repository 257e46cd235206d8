// Contracts of the ops on whole rows of activations: embedding, rms_norm, head_norm, linear,
// silu_gate, gather_rows.
#include "base/error.h"
#include "ops/check.h"
#include "ops/check_ops.h"
#include "ops/ops.h"

namespace holdfast::ops {
namespace {
using tensor::DType;
}

Status embedding(const OpContext& context, const EmbeddingArgs& args) {
  constexpr const char* kOp = "embedding";
  HF_TRY(check_rank(args.table, 2, kOp, "table"));
  HF_TRY(check_rank(args.ids, 1, kOp, "ids"));
  const std::int64_t n = args.ids.shape[0];
  HF_TRY(check_operand(args.ids, {kOp, "ids", {DType::kI32}, {n}}));
  HF_TRY(check_operand(args.table, {kOp, "table", {DType::kBF16, DType::kF32}, args.table.shape}));
  HF_TRY(check_operand(args.out, {kOp, "out", {DType::kF32}, {n, args.table.shape[1]}}));
  HF_TRY(check_active_rows(args.active_rows, kOp));
  return context.kernels.embedding(context.stream, args);
}

Status check_rms_norm(const RmsNormArgs& args) {
  constexpr const char* kOp = "rms_norm";
  HF_TRY(check_rank(args.x, 2, kOp, "x"));
  HF_TRY(check_operand(args.x, {kOp, "x", {DType::kF32}, args.x.shape}));
  HF_TRY(check_operand(args.weight,
                       {kOp, "weight", {DType::kBF16, DType::kF32}, {args.x.shape[1]}}));
  HF_TRY(check_operand(args.out, {kOp, "out", {DType::kF32}, args.x.shape}));
  return check_active_rows(args.active_rows, kOp);
}

Status rms_norm(const OpContext& context, const RmsNormArgs& args) {
  HF_TRY(check_rms_norm(args));
  return context.kernels.rms_norm(context.stream, args);
}

Status head_norm(const OpContext& context, const HeadNormArgs& args) {
  constexpr const char* kOp = "head_norm";
  HF_TRY(check_rank(args.x, 2, kOp, "x"));
  HF_TRY(check_rank(args.query_weight, 1, kOp, "query_weight"));
  const std::int64_t dim = args.query_weight.shape[0];
  const std::int64_t width = args.x.shape[1];
  if (dim < 1 || args.query_head_count < 0 || args.key_head_count < 0 ||
      args.query_head_count > width / dim ||
      args.key_head_count > width / dim - args.query_head_count) {
    return make_error(ErrorCode::kMismatch,
                      "head_norm: {} query and {} key heads of {} do not fit operand x {}",
                      args.query_head_count, args.key_head_count, dim, args.x.shape.to_string());
  }
  HF_TRY(check_operand(args.x, {kOp, "x", {DType::kF32}, args.x.shape}));
  HF_TRY(check_operand(args.query_weight,
                       {kOp, "query_weight", {DType::kBF16, DType::kF32}, {dim}}));
  HF_TRY(check_operand(args.key_weight, {kOp, "key_weight", {DType::kBF16, DType::kF32}, {dim}}));
  HF_TRY(check_active_rows(args.active_rows, kOp));
  return context.kernels.head_norm(context.stream, args);
}

Status silu_gate(const OpContext& context, const SiluGateArgs& args) {
  constexpr const char* kOp = "silu_gate";
  HF_TRY(check_rank(args.x, 2, kOp, "x"));
  HF_TRY(check_rank(args.out, 2, kOp, "out"));
  const std::int64_t n = args.out.shape[0];
  const std::int64_t inner = args.out.shape[1];
  HF_TRY(check_operand(args.x, {kOp, "x", {DType::kF32}, {n, 2 * inner}}));
  HF_TRY(check_operand(args.out, {kOp, "out", {DType::kF32}, {n, inner}}));
  HF_TRY(check_disjoint(args.x, args.out, kOp, "x and out"));
  HF_TRY(check_active_rows(args.active_rows, kOp));
  return context.kernels.silu_gate(context.stream, args);
}

Status check_linear(const LinearArgs& args) {
  constexpr const char* kOp = "linear";
  HF_TRY(check_rank(args.x, 2, kOp, "x"));
  HF_TRY(check_rank(args.weight, 2, kOp, "weight"));
  const std::int64_t n = args.x.shape[0];
  const std::int64_t outputs = args.weight.shape[0];
  HF_TRY(check_operand(args.x, {kOp, "x", {DType::kF32}, args.x.shape}));
  HF_TRY(check_operand(args.weight, {kOp, "weight", {DType::kBF16, DType::kF32},
                                     {outputs, args.x.shape[1]}}));
  HF_TRY(check_optional_operand(args.bias, {kOp, "bias", {DType::kBF16, DType::kF32}, {outputs}}));
  HF_TRY(check_optional_operand(args.residual, {kOp, "residual", {DType::kF32}, {n, outputs}}));
  HF_TRY(check_operand(args.out, {kOp, "out", {DType::kF32}, {n, outputs}}));
  HF_TRY(check_disjoint(args.x, args.out, kOp, "x and out"));
  return check_active_rows(args.active_rows, kOp);
}

Status linear(const OpContext& context, const LinearArgs& args) {
  HF_TRY(check_linear(args));
  return context.kernels.linear(context.stream, args);
}

Status check_gather_rows(const GatherRowsArgs& args) {
  constexpr const char* kOp = "gather_rows";
  HF_TRY(check_rank(args.x, 2, kOp, "x"));
  HF_TRY(check_rank(args.rows, 1, kOp, "rows"));
  const std::int64_t count = args.rows.shape[0];
  HF_TRY(check_operand(args.x, {kOp, "x", {DType::kF32}, args.x.shape}));
  HF_TRY(check_operand(args.rows, {kOp, "rows", {DType::kI32}, {count}}));
  HF_TRY(check_operand(args.out, {kOp, "out", {DType::kF32}, {count, args.x.shape[1]}}));
  HF_TRY(check_disjoint(args.x, args.out, kOp, "x and out"));
  return check_active_rows(args.active_rows, kOp);
}

Status gather_rows(const OpContext& context, const GatherRowsArgs& args) {
  HF_TRY(check_gather_rows(args));
  return context.kernels.gather_rows(context.stream, args);
}

}  // namespace holdfast::ops
