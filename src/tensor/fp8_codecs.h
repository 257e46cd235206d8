// FP8 e4m3 with float32 scales: which values share a scale, how the scale follows from them, and
// the codes both ways. The scalar reference of the schemes fp8 per tensor, per channel x per token
// and block 128 x 128 x token group 128. Pure functions on the caller's memory; any thread.
//
// value = e4m3(code) * scale, one float32 multiplication. A checkpoint's `weight_scale` and
// `weight_scale_inv` (in spite of its name) and `input_scale` are this scale, a multiplier.
// code = e4m3(value / scale): one float32 division, rounded to nearest even, then to e4m3, nearest
// even and saturating at 448. Sources: OCP 8-bit floating point (OFP8) 1.0 for e4m3; DeepSeek-V3's
// published checkpoints and Qwen3 FP8's for the 128 x 128 blocks and `weight_scale_inv`.
#pragma once

#include <cstdint>
#include <span>

#include "holdfast/result.h"

namespace holdfast::tensor {

inline constexpr float kF8E4M3Max = 448.0f;
inline constexpr int kFp8Block = 128;
inline constexpr float kFp8SmallestScale = 0x1p-126f;  // the smallest normal float32

struct MatrixSize {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  friend bool operator==(const MatrixSize&, const MatrixSize&) = default;
};

// A row-major matrix cut into groups of `group` values, the last ones smaller when the sizes are no
// multiples. Its scales are the row-major matrix scales(), one for each group.
struct Fp8Layout {
  MatrixSize size;
  MatrixSize group;

  MatrixSize scales() const;  // [ceil(rows / group.rows), ceil(cols / group.cols)]
  std::int64_t scale_index(std::int64_t row, std::int64_t col) const;
};
Fp8Layout fp8_per_tensor(MatrixSize size);    // one scale
Fp8Layout fp8_per_row(MatrixSize size);       // a weight's output channel, or an activation's token
Fp8Layout fp8_blocks(MatrixSize size);        // 128 x 128
Fp8Layout fp8_token_groups(MatrixSize size);  // 1 x 128

// How a scale follows from the largest magnitude of its group, in float32, nearest even:
// - kWeight: amax / 448; 1 where that is below kFp8SmallestScale (a group of zeros, or of values so
//   small that their scale would be subnormal: all of its codes are then zeros).
// - kToken: max(amax / 448, 1 / (448 * 512)): an activation's row (vLLM's per-token quantisation).
// - kTokenGroup: max(amax, 1e-10) * (1 / 448), the reciprocal rounded first: an activation's group
//   of 128 (DeepSeek-V3's activation quantisation as vLLM computes it).
// A NaN amax (finite_amax of a group with a NaN or an infinity) gives NaN.
enum class Fp8ScaleRule : std::uint8_t { kWeight, kToken, kTokenGroup };
float fp8_scale(Fp8ScaleRule rule, float amax);

// The codes and the scales of `values`. A group with a NaN or an infinity gets the scale NaN and
// codes 0x7F, so that the damage stays visible. -0 keeps its sign. A dynamic scale of a whole
// activation tensor would tie the rows of a batch to each other; holdfast takes fp8_per_row there,
// so that a row's bits depend on that row alone. Errors: kInvalidArgument for a layout with a
// negative size or an empty group; kMismatch for spans of other sizes.
struct Fp8Encoded {
  std::span<std::uint8_t> codes;
  std::span<float> scales;
};
Status encode_fp8(const Fp8Layout& layout, Fp8ScaleRule rule, std::span<const float> values,
                  Fp8Encoded out);

// The codes of `values` under scales that are given (static activation scales, a fused matrix's
// common scale). A NaN gives 0x7F, what lies beyond 448 * scale saturates.
// Errors: as encode_fp8, and kCorrupt for a scale that is not finite and positive.
Status encode_fp8_static(const Fp8Layout& layout, std::span<const float> values,
                         std::span<const float> scales, std::span<std::uint8_t> codes);

// e4m3(code) * scale. Errors: as encode_fp8. Scales are taken as they are; a NaN decodes to NaN.
Status decode_fp8(const Fp8Layout& layout, std::span<const std::uint8_t> codes,
                  std::span<const float> scales, std::span<float> out);

}  // namespace holdfast::tensor
