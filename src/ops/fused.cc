// What a device may lack: the fused ops, which are then their parts in turn, and ops that few
// models need. With the checks of the fused ops.
#include "base/error.h"
#include "ops/check.h"
#include "ops/check_ops.h"

namespace holdfast::ops {
namespace {

// Errors: kMismatch naming both operands when they are not the same memory and shape.
Status check_same(const TensorView& from, const TensorView& to, const char* op,
                  const char* operands) {
  if (from.address == to.address && from.shape == to.shape) return {};
  return make_error(ErrorCode::kMismatch, "{}: operands {} must be one tensor, and are {} and {}",
                    op, operands, from.shape.to_string(), to.shape.to_string());
}

Status no_kernel(const char* op) {
  return make_error(ErrorCode::kUnsupported,
                    "{}: this device has no kernel for it; choose the cpu for this model", op);
}

}  // namespace

Status Kernels::head_norm(device::Stream&, const HeadNormArgs&) { return no_kernel("head_norm"); }

Status Kernels::silu_gate(device::Stream&, const SiluGateArgs&) { return no_kernel("silu_gate"); }

Status Kernels::choose(device::Stream&, const ChooseArgs&) { return no_kernel("choose"); }

Status Kernels::qkv(device::Stream& stream, const QkvArgs& args) {
  HF_TRY(rms_norm(stream, args.norm));
  HF_TRY(linear(stream, args.linear));
  HF_TRY(rope(stream, args.rope));
  return kv_write(stream, args.write);
}

Status Kernels::route(device::Stream& stream, const RouteArgs& args) {
  HF_TRY(rms_norm(stream, args.norm));
  HF_TRY(linear(stream, args.linear));
  return router_top_k(stream, args.top_k);
}

Status Kernels::head(device::Stream& stream, const HeadArgs& args) {
  HF_TRY(gather_rows(stream, args.gather));
  HF_TRY(rms_norm(stream, args.norm));
  return linear(stream, args.linear);
}

Status qkv(const OpContext& context, const QkvArgs& args) {
  HF_TRY(check_rms_norm(args.norm));
  HF_TRY(check_linear(args.linear));
  HF_TRY(check_rope(args.rope));
  HF_TRY(check_kv_write(args.write));
  HF_TRY(check_same(args.norm.out, args.linear.x, "qkv", "norm.out and linear.x"));
  HF_TRY(check_same(args.linear.out, args.rope.x, "qkv", "linear.out and rope.x"));
  HF_TRY(check_same(args.linear.out, args.write.qkv, "qkv", "linear.out and write.qkv"));
  return context.kernels.qkv(context.stream, args);
}

Status route(const OpContext& context, const RouteArgs& args) {
  HF_TRY(check_rms_norm(args.norm));
  HF_TRY(check_linear(args.linear));
  HF_TRY(check_router_top_k(context.kernels, args.top_k));
  HF_TRY(check_same(args.norm.out, args.linear.x, "route", "norm.out and linear.x"));
  HF_TRY(check_same(args.linear.out, args.top_k.logits, "route", "linear.out and top_k.logits"));
  return context.kernels.route(context.stream, args);
}

Status head(const OpContext& context, const HeadArgs& args) {
  HF_TRY(check_gather_rows(args.gather));
  HF_TRY(check_rms_norm(args.norm));
  HF_TRY(check_linear(args.linear));
  HF_TRY(check_same(args.gather.out, args.norm.x, "head", "gather.out and norm.x"));
  HF_TRY(check_same(args.norm.x, args.norm.out, "head", "norm.x and norm.out"));
  HF_TRY(check_same(args.norm.out, args.linear.x, "head", "norm.out and linear.x"));
  return context.kernels.head(context.stream, args);
}

Status choose(const OpContext& context, const ChooseArgs& args) {
  using tensor::DType;
  constexpr const char* kOp = "choose";
  HF_TRY(check_rank(args.logits, 2, kOp, "logits"));
  const std::int64_t n = args.logits.shape[0];
  const std::int64_t chunks = choose_chunks(args.logits.shape[1]);
  HF_TRY(check_operand(args.logits, {kOp, "logits", {DType::kF32}, args.logits.shape}));
  HF_TRY(check_operand(args.temperatures, {kOp, "temperatures", {DType::kF32}, {n}}));
  HF_TRY(check_operand(args.draws, {kOp, "draws", {DType::kI32}, {n, 2}}));
  HF_TRY(check_operand(args.scratch,
                       {kOp, "scratch", {DType::kI32}, {n, chunks, kChooseWords}}));
  HF_TRY(check_operand(args.choices, {kOp, "choices", {DType::kI32}, {n, kChooseWords}}));
  HF_TRY(check_active_rows(args.active_rows, kOp));
  return context.kernels.choose(context.stream, args);
}

}  // namespace holdfast::ops
