#include "tensor/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tensor/tensor_view.h"

namespace holdfast::tensor {
namespace {

using ::testing::HasSubstr;
constexpr std::int64_t kHuge = std::int64_t{1} << 40;

TEST(DType, NamesAreUniqueAndSafetensorsNamesRoundTrip) {
  std::set<std::string_view> names, published;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(dtype_name(dtype)).second);
    EXPECT_TRUE(published.insert(safetensors_dtype_name(dtype)).second);
    EXPECT_EQ(dtype_from_safetensors(safetensors_dtype_name(dtype)), dtype);
  }
  EXPECT_EQ(dtype_from_safetensors("F64"), std::nullopt);
  EXPECT_EQ(dtype_from_safetensors("bf16"), std::nullopt);
  EXPECT_EQ(dtype_bits(DType::kF4E2M1), 4);
  EXPECT_EQ(dtype_bits(DType::kI64), 64);
}

TEST(Shape, CountsItsElementsAndPrintsItself) {
  EXPECT_EQ(Shape({}).element_count(), 1);
  EXPECT_EQ(Shape({}).to_string(), "[]");
  const Shape shape{32, 5760, 90, 16};
  EXPECT_EQ(shape.rank(), 4);
  EXPECT_EQ(shape[1], 5760);
  EXPECT_EQ(shape.element_count(), 32LL * 5760 * 90 * 16);
  EXPECT_EQ(shape.to_string(), "[32, 5760, 90, 16]");
  EXPECT_EQ(Shape({4, 0, 3}).element_count(), 0);
  EXPECT_NE(Shape({2, 3}), Shape({3, 2}));
  EXPECT_NE(Shape({2}), Shape({2, 0}));
}

TEST(Shape, RefusesWhatCannotBeAShape) {
  const auto error_of = [](std::vector<std::int64_t> dims) {
    const auto shape = Shape::from_dims(dims);
    return shape.ok() ? std::string("accepted") : shape.error().message();
  };
  EXPECT_THAT(error_of({3, -1}), HasSubstr("[3, -1] has the negative dimension -1"));
  EXPECT_THAT(error_of({1, 1, 1, 1, 1, 1, 1}), HasSubstr("rank 7, the most is 6"));
  EXPECT_THAT(error_of({kHuge, kHuge}), HasSubstr("overflows"));
  EXPECT_THAT(error_of({kHuge, 0, kHuge}), HasSubstr("overflows"));
  EXPECT_EQ(error_of({std::int64_t{1} << 62}), "accepted");
  EXPECT_THAT(error_of({std::int64_t{1} << 62, 2}), HasSubstr("overflows"));
}

TEST(Shape, ByteSizeChecksOverflowAndPacking) {
  EXPECT_EQ(*byte_size(DType::kBF16, {3, 5}), 30u);
  EXPECT_EQ(*byte_size(DType::kF4E2M1, {3, 2}), 3u);
  EXPECT_EQ(*byte_size(DType::kI64, {}), 8u);
  EXPECT_THAT(byte_size(DType::kF4E2M1, {3, 3}).error().message(),
              HasSubstr("9 elements do not fill whole bytes"));
  EXPECT_THAT(byte_size(DType::kF32, {std::int64_t{1} << 62}).error().message(),
              HasSubstr("overflows"));
}

TEST(TensorView, RowsLieWhereRowMajorOrderPutsThem) {
  std::vector<std::byte> memory(4 * 6 * 2);
  const TensorView view{memory.data(), DType::kBF16, {4, 2, 3}};
  EXPECT_EQ(view.bytes(), 48u);
  EXPECT_EQ(view.row(2).address, memory.data() + 24);
  EXPECT_EQ(view.row(2).shape, Shape({2, 3}));
  EXPECT_EQ(view.row(1).row(1).row(2).address, memory.data() + 12 + 6 + 4);
  EXPECT_EQ(view.row(1).row(1).row(2).shape, Shape({}));
  const TensorView middle = view.rows(1, 2);
  EXPECT_EQ(middle.address, memory.data() + 12);
  EXPECT_EQ(middle.shape, Shape({2, 2, 3}));
  EXPECT_EQ(view.rows(4, 0).bytes(), 0u);
  const TensorView packed{memory.data(), DType::kF4E2M1, {3, 32}};
  EXPECT_EQ(packed.row(1).address, memory.data() + 16);
}

TEST(TensorViewDeathTest, OutOfBoundsIsAProgrammerError) {
  std::byte memory[8];
  const TensorView view{memory, DType::kU8, {2, 4}};
  EXPECT_DEATH((void)view.row(2), "out of bounds");
  EXPECT_DEATH((void)view.rows(1, 2), "out of bounds");
  EXPECT_DEATH((void)view.row(0).row(0).row(0), "scalar");
  EXPECT_DEATH((void)Shape({1, -2}), "negative");
  EXPECT_DEATH((void)(TensorView{memory, DType::kF4E2M1, {2, 3}}.row(1)), "whole bytes");
}

}  // namespace
}  // namespace holdfast::tensor
