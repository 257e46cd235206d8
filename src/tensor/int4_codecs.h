// INT4 with a scale and a zero point for each group of inputs: the codes both ways, and the
// packings of GPTQ, AWQ and compressed-tensors. The scalar reference of the scheme int4. Pure
// functions on the caller's memory; any thread.
//
// value[row][col] = scale[row][g] * (code[row][col] - zero[row][g]), g the group of the column: one
// float32 multiplication, exact for f16 and bf16 scales unless it overflows. Rows are outputs,
// columns inputs, as in a bf16 weight [rows, cols]. Sources: GPTQ checkpoints as AutoGPTQ and
// GPTQModel write them (`qweight`, `qzeros`, `scales`, `g_idx`; checkpoint_format gptq = v1), AWQ's
// GEMM version as AutoAWQ writes it, compressed-tensors' pack-quantized (`weight_packed`,
// `weight_scale`, `weight_shape`, `weight_zero_point`, `weight_g_idx`).
#pragma once

#include <cstdint>
#include <span>

#include "holdfast/result.h"
#include "tensor/dtype.h"

namespace holdfast::tensor {

inline constexpr int kInt4PerWord = 8;
inline constexpr std::uint8_t kInt4SymmetricZero = 8;

struct Int4Size {
  std::int64_t rows = 0;   // outputs
  std::int64_t cols = 0;   // inputs
  std::int64_t group = 0;  // inputs to a scale; a checkpoint's group_size -1 is `cols`

  std::int64_t groups() const { return cols / group; }
};
// kInvalidArgument unless all are positive and `group` divides `cols`.
Status check_int4_size(const Int4Size& size);

// The unpacked form.
struct Int4View {
  std::span<const std::uint8_t> codes;       // [rows, cols], 0 ... 15
  std::span<const float> scales;             // [rows, groups]
  std::span<const std::uint8_t> zeros;       // [rows, groups], 0 ... 16 (16: GPTQ v1's 15 plus one)
  std::span<const std::int32_t> group_index;  // [cols], act-order; empty: column / group
};
// Errors: kInvalidArgument for the size; kMismatch for spans of other sizes; kCorrupt for a code, a
// zero or a group index out of range.
Status decode_int4(const Int4Size& size, const Int4View& in, std::span<float> out);

// How scale and zero follow from a group's values, in float32, nearest even; `scale` is rounded to
// the scale's dtype before codes are made with it:
// - kSymmetric: scale = amax / 7.5, zero = 8.
// - kAsymmetric: with low = min(values, 0) and high = max(values, 0): scale = (high - low) / 15,
//   zero = round(-low / scale) within 0 ... 15.
// Then code = round(value / scale) + zero within 0 ... 15, rounding half to even. Where the rounded
// scale is 0 it is 1, and so the codes are the zero. A group with a NaN or an infinity, or whose
// scale overflows its dtype, gets the scale NaN and codes of the zero 8: it decodes to NaN.
enum class Int4Zeros : std::uint8_t { kSymmetric, kAsymmetric };
struct Int4Rule {
  Int4Zeros zeros = Int4Zeros::kSymmetric;
  DType scale_dtype = DType::kBF16;  // kF16, kBF16 or kF32
};
// By that rule, for a group whose values reach from `low` <= 0 to `high` >= 0; `damaged` is one
// with a NaN or an infinity. A scale of NaN goes with the zero 8.
struct Int4Group {
  float scale = 1.0f;  // a value of the rule's dtype
  std::uint8_t zero = kInt4SymmetricZero;
};
struct Int4Range {
  float low = 0.0f;
  float high = 0.0f;
  bool damaged = false;
};
Int4Group choose_int4_group(const Int4Rule& rule, const Int4Range& range);

struct Int4Encoded {
  std::span<std::uint8_t> codes;  // as in Int4View
  std::span<float> scales;        // values of the scale's dtype
  std::span<std::uint8_t> zeros;
};
// Groups are columns [g * group, (g + 1) * group), or those with group_index[col] == g when it is
// given. Errors: as decode_int4, and kInvalidArgument for another scale dtype.
Status encode_int4(const Int4Size& size, const Int4Rule& rule, std::span<const float> values,
                   std::span<const std::int32_t> group_index, const Int4Encoded& out);

// Eight codes to an int32, nibble i at bits 4i ... 4i + 3:
// - kGptqV1: weight words [cols / 8, rows], nibble i is column 8w + i; zero words [groups, rows /
//   8], nibble i is row 8w + i, and what is stored is the zero minus one (a symmetric 8 is a 7).
// - kGptqV2: the same with zeros stored as they are.
// - kAwq: weight words [cols, rows / 8] and zero words [groups, rows / 8]; nibble i is row
//   8w + {0, 2, 4, 6, 1, 3, 5, 7}[i]; zeros as they are.
// - kCompressedTensors: weight words [rows, cols / 8], nibble i is column 8w + i; zero words [rows
//   / 8, groups], nibble i is row 8w + i. Codes and zeros are two's complement plus 8, so both are
//   as they are here.
// Scales lie [groups, rows] in the first three, [rows, groups] in the last.
enum class Int4Packing : std::uint8_t { kGptqV1, kGptqV2, kAwq, kCompressedTensors };

// Where the scale of (row, group) lies in the checkpoint's tensor.
std::int64_t int4_scale_index(Int4Packing packing, const Int4Size& size, std::int64_t row,
                              std::int64_t group);

// Errors of all four: kInvalidArgument for the size, also when it is no multiple of 8 along the
// packed axis; kMismatch for spans of other sizes. Packing: kInvalidArgument for a code over 15 or
// a zero that the packing cannot store (kGptqV1 1 ... 16, the others 0 ... 15).
Status pack_int4_weight(Int4Packing packing, const Int4Size& size,
                        std::span<const std::uint8_t> codes, std::span<std::int32_t> words);
Status unpack_int4_weight(Int4Packing packing, const Int4Size& size,
                          std::span<const std::int32_t> words, std::span<std::uint8_t> codes);
Status pack_int4_zeros(Int4Packing packing, const Int4Size& size,
                       std::span<const std::uint8_t> zeros, std::span<std::int32_t> words);
Status unpack_int4_zeros(Int4Packing packing, const Int4Size& size,
                         std::span<const std::int32_t> words, std::span<std::uint8_t> zeros);

}  // namespace holdfast::tensor
