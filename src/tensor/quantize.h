// One matrix of f32, f16 or bf16 values to a scheme's codes and scales, in ranges of rows: what
// `holdfast quantize` and quantising on arrival are made of. Bit for bit what the scalar codecs
// give, on every instruction set and however rows are shared among threads. Pure functions on the
// caller's memory; any thread, ranges of one matrix also at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "holdfast/result.h"
#include "tensor/dtype.h"
#include "tensor/fp8_codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::tensor {

// Ranges begin at multiples of it. A call holds kQuantizeUnit * cols float32 values at most.
inline constexpr std::int64_t kQuantizeUnit = 128;

// Where a matrix [rows, cols] (rows are outputs, cols inputs) has its values: element (r, c) is
// number r * row_stride + c * col_stride of `data`. An input-major matrix has row_stride 1, the
// gate of an interleaved gate_up has twice the row stride.
struct MatrixValues {
  DType dtype = DType::kBF16;  // kF32, kF16 or kBF16
  const std::byte* data = nullptr;
  MatrixSize size = {};
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
};

enum class MatrixCode : std::uint8_t { kCast, kMxfp4, kMxfp8, kFp8, kNvfp4, kInt4 };

// What is done to a matrix. Rules and rounding are those of the codecs' headers: MXFP4 takes
// E8m0Rule::kFloor, MXFP8 kCeil, FP8 kWeight.
struct QuantizeRule {
  MatrixCode code = MatrixCode::kCast;
  // kCast: of the result. kFp8 and kInt4: of the scales (kF32, kF16, kBF16), which are rounded to
  // it before codes are made with them.
  DType dtype = DType::kBF16;
  MatrixSize group = {1, 1};  // kFp8: values to a scale; kInt4: {1, inputs to a scale}
  Int4Zeros zeros = Int4Zeros::kSymmetric;  // kInt4
  // What one scale of a whole matrix needs to know of all of it: kNvfp4: the multiplier, finite and
  // positive; kFp8 with a group that covers the matrix: matrix_amax of it.
  float whole = 1.0f;
};

// Bytes of a quantised matrix.
// - codes, row-major: kCast dtype [rows, cols]; e4m3 [rows, cols]; 4-bit [rows, cols / 2], the
//   first in the low nibble (also kInt4: compressed-tensors' words in little endian).
// - scales: u8 e8m0 [rows, cols / 32]; u8 e4m3 [rows, cols / 16]; kFp8 and kInt4 of the rule's
//   dtype [ceil(rows / group.rows), ceil(cols / group.cols)].
// - zeros: u8 [rows, cols / group], kInt4 with Int4Zeros::kAsymmetric only.
struct QuantizedBytes {
  std::size_t codes = 0, scales = 0, zeros = 0;
};
// Errors: kInvalidArgument naming the sizes: no positive dimension, inputs that are no multiple of
// a block or group (or odd, for 4 bits), a dtype that is not f32, f16 or bf16, no positive group.
Result<QuantizedBytes> quantized_bytes(const QuantizeRule& rule, MatrixSize size);

struct QuantizedMatrix {
  std::span<std::byte> codes, scales, zeros;
};
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// finite_amax of rows [begin, end): NaN when one of their values is not finite.
// Errors: kInvalidArgument for a dtype or a range out of the matrix.
Result<float> matrix_amax(const MatrixValues& values, RowRange rows);

// Quantises rows [begin, end) into their places of `out`; `begin` is a multiple of kQuantizeUnit,
// `end` another or the last row. Errors: as quantized_bytes and matrix_amax; kMismatch for spans of
// other sizes.
Status quantize_rows(const QuantizeRule& rule, const MatrixValues& values, RowRange rows,
                     const QuantizedMatrix& out);

// A matrix's global scale of NVFP4, from the amax of all matrices that share it: what a checkpoint
// of that convention stores, in float32 (amax / 2688, or 2688 / amax; 1 where the first is below
// 2^-126), and the multiplier that a reader makes of it. `amax` is finite and not negative.
struct Nvfp4Global {
  float stored = 1.0f;
  float multiplier = 1.0f;
};
Nvfp4Global choose_nvfp4_global(GlobalScale kind, float amax);

}  // namespace holdfast::tensor
