// NVFP4: e2m1 codes, an e4m3 scale for each 16 values along the last axis, and one float32 scale of
// the whole matrix. The scalar reference of the scheme nvfp4, weights and activations alike. Pure
// functions on the caller's memory; any thread.
//
// value = (e2m1(code) * e4m3(scale)) * global, global being a MULTIPLIER; the inner product is
// exact. Rows are whole blocks: codes [rows, cols / 2] bytes, low nibble first, scales [rows, cols
// / 16]. Sources: NVIDIA's NVFP4 as TensorRT Model Optimizer exports it (`weight`, `weight_scale`,
// `weight_scale_2`, `input_scale`) and compressed-tensors' nvfp4-pack-quantized (`weight_packed`,
// `weight_scale`, `weight_global_scale`, `input_global_scale`).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "holdfast/result.h"

namespace holdfast::tensor {

inline constexpr int kNvfp4Block = 16;
inline constexpr float kNvfp4Largest = 6.0f * 448.0f;  // 2688: e2m1's largest times e4m3's

// What a checkpoint's global scale is: ModelOpt stores the multiplier (small: amax / 2688),
// compressed-tensors its inverse (large: 2688 / amax).
enum class GlobalScale : std::uint8_t { kMultiplier, kDivisor };

// The multiplier that `stored` means: `stored`, or 1 / stored in float32. `name` is for the
// message. Errors: kCorrupt when either of the two is not finite and positive.
Result<float> nvfp4_multiplier(GlobalScale kind, float stored, std::string_view name);

// The multiplier for a matrix of this amax: amax / 2688, or 1 where that is below 2^-126 (all codes
// are then zeros); NaN for a NaN amax (finite_amax of a matrix with a NaN or an infinity).
float nvfp4_global(float amax);

// The factor of a GEMM's accumulator over e2m1 * e4m3 products of both sides, float32:
// weight_scale_2 * input_scale, both multipliers.
float nvfp4_alpha(float weight_multiplier, float input_multiplier);

// values [n], n a multiple of 16; codes [n / 2]; scales [n / 16] e4m3. In float32, nearest even:
//   scale = e4m3(amax / (6 * global)), saturating at 448
//   step  = e4m3(scale) * global
//   code  = e2m1(value / step), saturating at 6; where step is 0, a zero of the value's sign
// A block with a NaN or an infinity gets the scale 0x7F (NaN) and zero codes: it decodes to NaN.
// Errors: kMismatch for spans of other sizes; kInvalidArgument for a global that is not finite and
// positive.
struct Nvfp4Encoded {
  std::span<std::uint8_t> codes;
  std::span<std::uint8_t> scales;
};
Status encode_nvfp4(float global, std::span<const float> values, Nvfp4Encoded out);
// Errors: as encode_nvfp4.
Status decode_nvfp4(float global, std::span<const std::uint8_t> codes,
                    std::span<const std::uint8_t> scales, std::span<float> out);

}  // namespace holdfast::tensor
