// Operands: what a kernel launch tells the manifest. Values; any thread.
#pragma once

#include "device/memory.h"
#include "tensor/tensor_view.h"

namespace holdfast::device {

// One operand of a kernel: what the manifest records.
struct Operand {
  const char* role = "";
  AddressRange range = {};
  Access access = Access::kRead;
};
// The bytes of `view` as an operand; an empty view gives an empty range, which is not recorded.
Operand reads(const char* role, const tensor::TensorView& view);
Operand writes(const char* role, const tensor::TensorView& view);
Operand updates(const char* role, const tensor::TensorView& view);

}  // namespace holdfast::device
