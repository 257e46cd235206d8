// Runs of float32 values to codes with the processor's vector instructions: what tensor/quantize.h
// is made of. Each gives the bits of the scalar codec that it names, on every instruction set. Pure
// functions on the caller's memory; they check nothing; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/mx_codecs.h"

namespace holdfast::tensor {

// The largest bit pattern of the magnitudes: 0x7F800000 or more where a value is not finite, as
// finite_amax tells.
std::uint32_t magnitude_bits(const float* values, std::size_t count);

// `blocks` blocks of 32, as encode_mxfp4 and encode_mxfp8.
void encode_mxfp4_run(E8m0Rule rule, const float* values, std::size_t blocks, std::uint8_t* codes,
                      std::uint8_t* scales);
void encode_mxfp8_run(E8m0Rule rule, const float* values, std::size_t blocks, std::uint8_t* codes,
                      std::uint8_t* scales);
// `blocks` blocks of 16, as encode_nvfp4.
void encode_nvfp4_run(float global, const float* values, std::size_t blocks, std::uint8_t* codes,
                      std::uint8_t* scales);
// e4m3(value / scale), as encode_fp8_static; 0x7F under a NaN.
void encode_e4m3_run(float scale, const float* values, std::size_t count, std::uint8_t* codes);

// The least and the largest of the values and of 0, and magnitude_bits of the values.
struct ValueRange {
  float low = 0.0f;
  float high = 0.0f;
  std::uint32_t magnitude = 0;
};
ValueRange value_range(const float* values, std::size_t count);
// round(value / scale) + zero within 0 ... 15, as encode_int4, two to a byte with the first in the
// low nibble; `count` is even. The scale is no NaN.
void encode_int4_run(float scale, std::uint8_t zero, const float* values, std::size_t count,
                     std::uint8_t* bytes);

// As f32_to_bf16, f32_to_f16 and bf16_to_f32.
void narrow_to_bf16(const float* values, std::size_t count, std::uint16_t* to);
void narrow_to_f16(const float* values, std::size_t count, std::uint16_t* to);
void widen_bf16(const std::uint16_t* from, std::size_t count, float* to);

// kTransposed rows of an input-major bf16 matrix: element (r, c) is from[r + c * strides.from], and
// goes to to[r * strides.to + c]. `cols` is a multiple of kTransposed.
struct Strides {
  std::int64_t from = 0;
  std::int64_t to = 0;
};
void transpose_bf16_rows(const std::uint16_t* from, Strides strides, std::int64_t cols, float* to);
inline constexpr std::int64_t kTransposed = 8;

}  // namespace holdfast::tensor
