// DType: the element types that checkpoints and kernels use. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace holdfast::tensor {

enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,   // e4m3fn: no infinities, max 448, 0x7F and 0xFF are NaN
  kF8E5M2,
  kF8E8M0,   // a power of two, 2^(b-127); 0xFF is NaN
  kF4E2M1,   // two to a byte, the even element in the low nibble
  kU8,
  kI32,
  kI64,
};
inline constexpr int kDTypeCount = 10;

// Bits of one element: 4 for kF4E2M1.
int dtype_bits(DType dtype);
// holdfast's name: "f32", "bf16", "f8_e4m3", ...
std::string_view dtype_name(DType dtype);
// safetensors': "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "U8", "I32", "I64"
std::string_view safetensors_dtype_name(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

}  // namespace holdfast::tensor
