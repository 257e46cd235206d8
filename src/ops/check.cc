#include "ops/check.h"

#include <string>

#include "base/error.h"

namespace holdfast::ops {
namespace {

using tensor::DType;
using tensor::TensorView;

std::string describe(const TensorView& view) {
  return fmt::format("{} {}", tensor::dtype_name(view.dtype), view.shape.to_string());
}

std::string describe(const OperandRule& rule) {
  std::string text;
  for (const DType dtype : rule.dtypes) {
    if (!text.empty()) text += " or ";
    text += tensor::dtype_name(dtype);
  }
  return fmt::format("{} {}", text, rule.shape.to_string());
}

bool dtype_allowed(DType dtype, const OperandRule& rule) {
  for (const DType allowed : rule.dtypes) {
    if (dtype == allowed) return true;
  }
  return false;
}

}  // namespace

Status check_operand(const TensorView& view, const OperandRule& rule) {
  if (view.empty()) {
    return make_error(ErrorCode::kMismatch, "{}: operand {} is missing, must be {}", rule.op,
                      rule.operand, describe(rule));
  }
  if (!dtype_allowed(view.dtype, rule) || view.shape != rule.shape) {
    return make_error(ErrorCode::kMismatch, "{}: operand {} is {}, must be {}", rule.op,
                      rule.operand, describe(view), describe(rule));
  }
  const auto element_bytes = static_cast<std::uintptr_t>(tensor::dtype_bits(view.dtype) + 7) / 8;
  if (reinterpret_cast<std::uintptr_t>(view.address) % element_bytes != 0) {
    return make_error(ErrorCode::kMismatch,
                      "{}: operand {} lies at {}, must be aligned to {} bytes", rule.op,
                      rule.operand, fmt::ptr(view.address), element_bytes);
  }
  return {};
}

Status check_optional_operand(const TensorView& view, const OperandRule& rule) {
  return view.empty() ? Status{} : check_operand(view, rule);
}

Status check_rank(const TensorView& view, int rank, const char* op, const char* operand) {
  if (view.shape.rank() == rank) return {};
  return make_error(ErrorCode::kMismatch, "{}: operand {} is {}, must have {} dimensions", op,
                    operand, describe(view), rank);
}

Status check_disjoint(const TensorView& a, const TensorView& b, const char* op,
                      const char* operands) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.address);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.address);
  if (a_begin + a.bytes() <= b_begin || b_begin + b.bytes() <= a_begin) return {};
  return make_error(ErrorCode::kMismatch, "{}: {} overlap ({} bytes at {}, {} bytes at {})", op,
                    operands, a.bytes(), fmt::ptr(a.address), b.bytes(), fmt::ptr(b.address));
}

Status check_active_rows(const TensorView& view, const char* op) {
  return check_operand(view, {.op = op, .operand = "active_rows", .dtypes = {DType::kI32},
                              .shape = {1}});
}

}  // namespace holdfast::ops
