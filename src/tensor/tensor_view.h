// TensorView: where a dense row-major tensor lies and what it is. Trivially copyable, owns nothing,
// cannot resize; the memory's owner is an Arena, a mapped file or a caller's buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace holdfast::tensor {

struct TensorView {
  std::byte* address = nullptr;
  DType dtype = DType::kU8;
  Shape shape;

  bool empty() const { return address == nullptr; }
  std::size_t bytes() const;  // asserts that the size does not overflow
  std::span<std::byte> span() const { return {address, bytes()}; }
  std::span<const std::byte> const_span() const { return {address, bytes()}; }
  // The element pointer; the caller vouches for T matching dtype.
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(address);
  }
  // Row `index` of the first axis. Asserts rank >= 1 and the bound.
  TensorView row(std::int64_t index) const;
  // Rows [begin, begin + count) of the first axis. Asserts the bound.
  TensorView rows(std::int64_t begin, std::int64_t count) const;
};
static_assert(std::is_trivially_copyable_v<TensorView>);

}  // namespace holdfast::tensor
