// Shape: up to 6 dimensions, row-major, with overflow-checked sizes. A value; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "holdfast/result.h"
#include "tensor/dtype.h"

namespace holdfast::tensor {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  constexpr Shape() = default;  // a scalar: rank 0, one element
  // Asserts rank <= kMaxRank and no negative dimension: for shapes that our own code states.
  Shape(std::initializer_list<std::int64_t> dims);
  // For shapes from outside: errors on rank, negative dimension, or an element count over 2^62.
  static Result<Shape> from_dims(std::span<const std::int64_t> dims);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const;
  std::span<const std::int64_t> dims() const { return {dims_.data(), std::size_t(rank_)}; }
  std::int64_t element_count() const;
  // "[32, 5760, 90, 16]"
  std::string to_string() const;
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// Bytes of a dense tensor; errors when the count times the width overflows, or when a packed 4-bit
// tensor has an odd element count.
Result<std::size_t> byte_size(DType dtype, const Shape& shape);

}  // namespace holdfast::tensor
