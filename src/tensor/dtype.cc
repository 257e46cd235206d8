#include "tensor/dtype.h"

#include <array>

#include "base/assert.h"

namespace holdfast::tensor {
namespace {

struct DTypeRow {
  DType dtype;
  int bits;
  std::string_view name;
  std::string_view safetensors_name;
};

// Indexed by the enumerator; the order is checked in row_of.
constexpr std::array<DTypeRow, kDTypeCount> kRows = {{
    {DType::kF32, 32, "f32", "F32"},
    {DType::kF16, 16, "f16", "F16"},
    {DType::kBF16, 16, "bf16", "BF16"},
    {DType::kF8E4M3, 8, "f8_e4m3", "F8_E4M3"},
    {DType::kF8E5M2, 8, "f8_e5m2", "F8_E5M2"},
    {DType::kF8E8M0, 8, "f8_e8m0", "F8_E8M0"},
    {DType::kF4E2M1, 4, "f4_e2m1", "F4"},
    {DType::kU8, 8, "u8", "U8"},
    {DType::kI32, 32, "i32", "I32"},
    {DType::kI64, 64, "i64", "I64"},
}};

const DTypeRow& row_of(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  HF_ASSERT(index < kRows.size() && kRows[index].dtype == dtype, "not a DType");
  return kRows[index];
}

}  // namespace

int dtype_bits(DType dtype) { return row_of(dtype).bits; }

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }

std::string_view safetensors_dtype_name(DType dtype) { return row_of(dtype).safetensors_name; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const DTypeRow& row : kRows) {
    if (row.safetensors_name == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace holdfast::tensor
