#include "tensor/tensor_view.h"

#include <algorithm>
#include <array>

#include "base/assert.h"

namespace holdfast::tensor {
namespace {

std::size_t checked_bytes(DType dtype, const Shape& shape) {
  const auto bytes = byte_size(dtype, shape);
  HF_ASSERT(bytes.ok(), bytes.error().message());
  return *bytes;
}

// `shape` with its first axis replaced by `dims` (none, or one).
Shape with_first_axis(const Shape& shape, std::initializer_list<std::int64_t> dims) {
  std::array<std::int64_t, Shape::kMaxRank> all{};
  auto end = std::copy(dims.begin(), dims.end(), all.begin());
  const auto rest = shape.dims().subspan(1);
  end = std::copy(rest.begin(), rest.end(), end);
  auto made = Shape::from_dims({all.begin(), end});
  HF_ASSERT(made.ok(), made.error().message());
  return *made;
}

}  // namespace

std::size_t TensorView::bytes() const { return checked_bytes(dtype, shape); }

TensorView TensorView::row(std::int64_t index) const {
  HF_ASSERT(shape.rank() >= 1, "row() of a scalar");
  HF_ASSERT(index >= 0 && index < shape[0], "row() out of bounds");
  const Shape row_shape = with_first_axis(shape, {});
  const std::size_t stride = checked_bytes(dtype, row_shape);
  return {address + static_cast<std::size_t>(index) * stride, dtype, row_shape};
}

TensorView TensorView::rows(std::int64_t begin, std::int64_t count) const {
  HF_ASSERT(shape.rank() >= 1, "rows() of a scalar");
  HF_ASSERT(begin >= 0 && count >= 0 && begin <= shape[0] && count <= shape[0] - begin,
            "rows() out of bounds");
  const std::size_t stride = checked_bytes(dtype, with_first_axis(shape, {}));
  return {address + static_cast<std::size_t>(begin) * stride, dtype,
          with_first_axis(shape, {count})};
}

}  // namespace holdfast::tensor
