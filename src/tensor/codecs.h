// Scalar reference codecs: one element to float32 and back. They state the formats; every faster
// decoder is tested against them on every code. Rounding is to nearest, ties to even, saturating
// where the format has no infinity. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "holdfast/result.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace holdfast::tensor {

float bf16_to_f32(std::uint16_t bits);
std::uint16_t f32_to_bf16(float value);  // NaN stays NaN (quiet)
float f16_to_f32(std::uint16_t bits);    // IEEE binary16, subnormals included
std::uint16_t f32_to_f16(float value);   // overflow gives infinity, as IEEE
float f8_e4m3_to_f32(std::uint8_t bits);
std::uint8_t f32_to_f8_e4m3(float value);  // saturates at +-448; NaN to 0x7F
float f8_e5m2_to_f32(std::uint8_t bits);
std::uint8_t f32_to_f8_e5m2(float value);  // overflow gives infinity
float f8_e8m0_to_f32(std::uint8_t bits);  // 2^(bits - 127); 0 gives 2^-127 (subnormal); 0xFF NaN
// 0..15: 0 .5 1 1.5 2 3 4 6 and the negatives; higher bits of `code` are ignored.
float f4_e2m1_to_f32(std::uint8_t code);
// Ties to the even code, saturates at 6. The format has no NaN: a NaN gives 6 of its sign.
std::uint8_t f32_to_f4_e2m1(float value);

// MXFP4 (OCP Microscaling 1.0): blocks of 32 elements along the last axis share one e8m0 scale.
inline constexpr int kMxBlock = 32;
// 16 bytes of codes (low nibble first) and one scale byte to 32 floats.
void decode_mxfp4_block(std::span<const std::uint8_t, 16> codes, std::uint8_t scale,
                        std::span<float, 32> out);
// Scale 2^(floor(log2 amax) - 2), as the fixtures' writer; a zero block gets scale byte 0, a block
// with a NaN or an infinity gets 0xFF (it decodes to NaN, so the damage stays visible).
void encode_mxfp4_block(std::span<const float, 32> values, std::span<std::uint8_t, 16> codes,
                        std::uint8_t* scale);

// `count` elements of any floating dtype (kF32, kF16, kBF16, kF8*, kF4E2M1) to float32.
// Errors: kInvalidArgument for an integer dtype.
Status decode_to_f32(DType dtype, const std::byte* from, std::int64_t count, float* to);

}  // namespace holdfast::tensor
