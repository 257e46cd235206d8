#include "tensor/shape.h"

#include <fmt/ranges.h>

#include <limits>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::tensor {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 62;

std::string describe(std::span<const std::int64_t> dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

}  // namespace

Shape::Shape(std::initializer_list<std::int64_t> dims) {
  auto shape = from_dims({dims.begin(), dims.size()});
  HF_ASSERT(shape.ok(), shape.error().message());
  *this = *shape;
}

Result<Shape> Shape::from_dims(std::span<const std::int64_t> dims) {
  if (dims.size() > std::size_t{kMaxRank}) {
    return make_error(ErrorCode::kInvalidArgument, "a shape of rank {}, the most is {}",
                      dims.size(), kMaxRank);
  }
  Shape shape;
  // Zeros are left out of the product, so that the verdict does not depend on where a zero stands.
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) {
    if (dim < 0) {
      return make_error(ErrorCode::kInvalidArgument, "shape {} has the negative dimension {}",
                        describe(dims), dim);
    }
    if (dim > 0 && product > kMaxElements / dim) {
      return make_error(ErrorCode::kInvalidArgument,
                        "the product of shape {} overflows, the most is 2^62 elements",
                        describe(dims));
    }
    if (dim > 0) product *= dim;
    shape.dims_[static_cast<std::size_t>(shape.rank_++)] = dim;
  }
  return shape;
}

std::int64_t Shape::operator[](int axis) const {
  HF_ASSERT(axis >= 0 && axis < rank_, "axis out of the shape's rank");
  return dims_[static_cast<std::size_t>(axis)];
}

std::int64_t Shape::element_count() const {
  std::int64_t count = 1;
  for (const std::int64_t dim : dims()) {
    if (dim == 0) return 0;
    count *= dim;
  }
  return count;
}

std::string Shape::to_string() const { return describe(dims()); }

Result<std::size_t> byte_size(DType dtype, const Shape& shape) {
  const auto count = static_cast<std::uint64_t>(shape.element_count());
  const auto bits = static_cast<std::uint64_t>(dtype_bits(dtype));
  if (bits < 8) {
    const std::uint64_t per_byte = 8 / bits;
    if (count % per_byte != 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{} of shape {}: {} elements do not fill whole bytes", dtype_name(dtype),
                        shape.to_string(), count);
    }
    return static_cast<std::size_t>(count / per_byte);
  }
  if (count > std::numeric_limits<std::size_t>::max() / (bits / 8)) {
    return make_error(ErrorCode::kInvalidArgument, "{} of shape {}: the size in bytes overflows",
                      dtype_name(dtype), shape.to_string());
  }
  return static_cast<std::size_t>(count * (bits / 8));
}

}  // namespace holdfast::tensor
