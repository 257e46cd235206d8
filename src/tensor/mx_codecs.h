// OCP microscaling formats over whole matrices: MXFP8 (e4m3 codes) and MXFP4 (e2m1 codes), blocks
// of 32 along the last axis that share an e8m0 scale. The scalar reference of the schemes mxfp4 and
// mxfp8. Pure functions on the caller's memory; any thread.
//
// value = element(code) * 2^(scale - 127), exact in float32 unless it overflows. Rows are whole
// blocks, so a row-major matrix is encoded as one run of blocks: codes and scales lie in the same
// order, [rows, cols] (MXFP4: [rows, cols / 2] bytes, low nibble first) and [rows, cols / 32].
// Source: OCP Microscaling Formats (MX) 1.0; it leaves the choice of the scale to the encoder.
#pragma once

#include <cstdint>
#include <span>

#include "holdfast/result.h"
#include "tensor/codecs.h"

namespace holdfast::tensor {

enum class MxElement : std::uint8_t { kE2M1, kE4M3 };

// How the power of two follows from the block's largest magnitude (exactly, not through a float32
// logarithm); e is then limited to what e8m0 has, -127 ... 127:
// - kFloor: floor(log2 amax) - (2 for e2m1, 8 for e4m3). MX 1.0's own example; the largest values
//   of a block may saturate. What encode_mxfp4_block and holdfast's MXFP4 checkpoints use.
// - kCeil: the least e with amax <= largest element * 2^e (6 or 448), so nothing saturates. MXFP8
//   in FlashInfer and vLLM; what holdfast uses for MXFP8.
// - kEven: as kFloor after rounding amax to the element's mantissa, ties upwards (1 bit for e2m1, 3
//   for e4m3). AMD Quark's MXFP4.
enum class E8m0Rule : std::uint8_t { kFloor, kCeil, kEven };

// The scale byte; 0 for amax 0, 0xFF for a NaN amax (finite_amax). `amax` is not negative.
std::uint8_t e8m0_scale(MxElement element, E8m0Rule rule, float amax);

// values [n], n a multiple of 32; codes [n] (kE4M3) or [n / 2] (kE2M1); scales [n / 32]. The
// element is value * 2^(127 - scale) to nearest even, saturating. A block with a NaN or an infinity
// gets the scale 0xFF and zero codes: it decodes to NaN. A zero keeps its sign, except in such a
// block and in an MXFP4 block of zeros only (as encode_mxfp4_block). Errors: kMismatch for spans of
// other sizes.
Status encode_mxfp8(E8m0Rule rule, std::span<const float> values, std::span<std::uint8_t> codes,
                    std::span<std::uint8_t> scales);
Status decode_mxfp8(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                    std::span<float> out);
Status encode_mxfp4(E8m0Rule rule, std::span<const float> values, std::span<std::uint8_t> codes,
                    std::span<std::uint8_t> scales);
Status decode_mxfp4(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                    std::span<float> out);

}  // namespace holdfast::tensor
