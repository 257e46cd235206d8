// Checks of operands that every op's contract makes before its kernel is launched. Used by the ops
// and the experts backends; pure functions, any thread.
#pragma once

#include <initializer_list>

#include "holdfast/result.h"
#include "tensor/tensor_view.h"

namespace holdfast::ops {

// One operand as a contract states it.
struct OperandRule {
  const char* op = "";
  const char* operand = "";
  std::initializer_list<tensor::DType> dtypes;
  tensor::Shape shape;
};

// Errors: kMismatch naming op, operand, and what it has and must have: no address, another dtype,
// another shape, an address that is not aligned to its element.
Status check_operand(const tensor::TensorView& view, const OperandRule& rule);
// As check_operand, but an empty view is fine.
Status check_optional_operand(const tensor::TensorView& view, const OperandRule& rule);
// Errors: kMismatch when the view has another rank, naming op, operand and both ranks.
Status check_rank(const tensor::TensorView& view, int rank, const char* op, const char* operand);
// Errors: kMismatch when the byte ranges of two operands overlap.
Status check_disjoint(const tensor::TensorView& a, const tensor::TensorView& b, const char* op,
                      const char* operands);
// The operand that says how many rows of a step are alive: i32 [1].
Status check_active_rows(const tensor::TensorView& view, const char* op);

}  // namespace holdfast::ops
