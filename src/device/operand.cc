#include "device/operand.h"

namespace holdfast::device {
namespace {

Operand operand_of(const char* role, const tensor::TensorView& view, Access access) {
  if (view.empty()) return {role, {}, access};
  return {role, {reinterpret_cast<std::uintptr_t>(view.address), view.bytes()}, access};
}

}  // namespace

Operand reads(const char* role, const tensor::TensorView& view) {
  return operand_of(role, view, Access::kRead);
}

Operand writes(const char* role, const tensor::TensorView& view) {
  return operand_of(role, view, Access::kWrite);
}

Operand updates(const char* role, const tensor::TensorView& view) {
  return operand_of(role, view, Access::kReadWrite);
}

}  // namespace holdfast::device
