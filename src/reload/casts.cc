#include "reload/casts.h"

#include <cstdint>
#include <cstring>

#include "base/assert.h"
#include "tensor/codecs.h"

namespace holdfast::reload {
namespace {

using tensor::DType;

// Bits of exponent and mantissa; a format holds another's values when it has at least both.
struct FloatFormat {
  int exponent = 0;
  int mantissa = 0;
};

FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {8, 23};
    case DType::kF16: return {5, 10};
    case DType::kBF16: return {8, 7};
    case DType::kF8E4M3: return {4, 3};
    case DType::kF8E5M2: return {5, 2};
    case DType::kF8E8M0:
    case DType::kF4E2M1:
    case DType::kU8:
    case DType::kI32:
    case DType::kI64: break;
  }
  return {};
}

template <typename T>
void store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
}

void encode(float value, DType dtype, std::byte* to) {
  switch (dtype) {
    case DType::kF32: return store(value, to);
    case DType::kF16: return store(tensor::f32_to_f16(value), to);
    case DType::kBF16: return store(tensor::f32_to_bf16(value), to);
    case DType::kF8E4M3: return store(tensor::f32_to_f8_e4m3(value), to);
    case DType::kF8E5M2: return store(tensor::f32_to_f8_e5m2(value), to);
    default: HF_ASSERT(false, "a cast to a dtype that is not castable");
  }
}

}  // namespace

bool takes_rounded(const storage::ParameterSpec& parameter, DType from) {
  return parameter.any_float && parameter.dtype == DType::kBF16 &&
         (from == DType::kF32 || from == DType::kF16 || from == DType::kBF16);
}

std::string taken_dtypes(const storage::ParameterSpec& parameter) {
  if (takes_rounded(parameter, DType::kF32)) return "bf16, f16 or f32";
  return std::string(tensor::dtype_name(parameter.dtype));
}

bool castable(DType from, DType to) {
  return from != to && format_of(from).exponent > 0 && format_of(to).exponent > 0;
}

bool is_narrowing(DType from, DType to) {
  return format_of(to).exponent < format_of(from).exponent ||
         format_of(to).mantissa < format_of(from).mantissa;
}

void cast_elements(DType from, std::span<const std::byte> source, DType to,
                   std::span<std::byte> target) {
  HF_ASSERT(castable(from, to), "a cast between dtypes that are not castable");
  const std::size_t from_bytes = static_cast<std::size_t>(tensor::dtype_bits(from)) / 8;
  const std::size_t to_bytes = static_cast<std::size_t>(tensor::dtype_bits(to)) / 8;
  for (std::size_t i = 0; i < source.size() / from_bytes; ++i) {
    float value = 0;
    tensor::decode_to_f32(from, source.data() + i * from_bytes, 1, &value).value();
    encode(value, to, target.data() + i * to_bytes);
  }
}

}  // namespace holdfast::reload
