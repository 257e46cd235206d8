#include "tensor/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "tensor/codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/row_encoders.h"
#include "tensor/span_checks.h"

namespace holdfast::tensor {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7F800000u;
constexpr std::int64_t kGatherCols = 32;  // columns that are gathered for all rows in turn
static_assert(kGatherCols % kTransposed == 0);

bool is_real(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

std::size_t bytes_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

std::size_t as_size(std::int64_t value) { return static_cast<std::size_t>(value); }

float amax_of(std::uint32_t magnitude) {
  return magnitude >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN()
                                    : std::bit_cast<float>(magnitude);
}

Status check_values(const MatrixValues& values, RowRange rows) {
  if (!is_real(values.dtype)) {
    return make_error(ErrorCode::kInvalidArgument, "values of {} cannot be quantised; f32, f16 or "
                      "bf16 can", dtype_name(values.dtype));
  }
  if (rows.begin < 0 || rows.begin > rows.end || rows.end > values.size.rows) {
    return make_error(ErrorCode::kInvalidArgument, "rows {} to {} are not of a matrix [{}, {}]",
                      rows.begin, rows.end, values.size.rows, values.size.cols);
  }
  return {};
}

// Element (row, col) to float32, bits kept.
template <typename T>
float element(const MatrixValues& values, std::int64_t row, std::int64_t col) {
  const std::int64_t index = row * values.row_stride + col * values.col_stride;
  T stored;
  std::memcpy(&stored, values.data + as_size(index) * sizeof(T), sizeof(T));
  if constexpr (sizeof(T) == sizeof(float)) {
    return stored;
  } else {
    return values.dtype == DType::kBF16 ? bf16_to_f32(stored) : f16_to_f32(stored);
  }
}

// Some rows of a matrix as float32: where they lie, if that is what they are, or else a copy.
class FloatRows {
 public:
  FloatRows(const MatrixValues& values, std::int64_t most_rows)
      : values_(values),
        in_place_(values.dtype == DType::kF32 && values.col_stride == 1 &&
                  reinterpret_cast<std::uintptr_t>(values.data) % alignof(float) == 0),
        // Rows a power of two apart would share few cache sets.
        stride_(in_place_ ? values.row_stride : (values.size.cols | 15) + 17) {
    if (!in_place_) copy_.resize(as_size(std::min(most_rows, values.size.rows) * stride_));
  }

  // At most `most_rows`; what `row` gave before is overwritten.
  void load(RowRange rows) {
    first_ = rows.begin;
    if (in_place_) return;
    if (values_.col_stride == 1) {
      for (std::int64_t row = rows.begin; row < rows.end; ++row) widen(row);
    } else if (values_.dtype == DType::kF32) {
      gather<float>(rows);
    } else {
      gather<std::uint16_t>(rows);
    }
  }
  const float* row(std::int64_t row) const {
    if (in_place_) return reinterpret_cast<const float*>(values_.data) + row * stride_;
    return copy_.data() + (row - first_) * stride_;
  }

 private:
  void widen(std::int64_t row) {
    const std::byte* from = values_.data + as_size(row * values_.row_stride) *
                                               bytes_of(values_.dtype);
    float* to = copy_.data() + (row - first_) * stride_;
    const std::int64_t cols = values_.size.cols;
    if (values_.dtype == DType::kBF16) {
      widen_bf16(reinterpret_cast<const std::uint16_t*>(from), as_size(cols), to);
    } else if (values_.dtype == DType::kF32) {
      std::memcpy(to, from, as_size(cols) * sizeof(float));
    } else {
      for (std::int64_t col = 0; col < cols; ++col) {
        to[col] = element<std::uint16_t>(values_, row, col);
      }
    }
  }
  // A few columns at a time, so that what is read for one row is in the cache for the next.
  template <typename T>
  void gather(RowRange rows) {
    const std::int64_t cols = values_.size.cols;
    const bool eights = values_.dtype == DType::kBF16 && values_.row_stride == 1;
    for (std::int64_t begin = 0; begin < cols; begin += kGatherCols) {
      const std::int64_t end = std::min(begin + kGatherCols, cols);
      std::int64_t row = rows.begin;
      while (eights && end - begin == kGatherCols && row + kTransposed <= rows.end) {
        const auto* from = reinterpret_cast<const std::uint16_t*>(values_.data) + row +
                           begin * values_.col_stride;
        transpose_bf16_rows(from, {values_.col_stride, stride_}, kGatherCols,
                            copy_.data() + (row - first_) * stride_ + begin);
        row += kTransposed;
      }
      for (; row < rows.end; ++row) {
        float* to = copy_.data() + (row - first_) * stride_;
        for (std::int64_t col = begin; col < end; ++col) to[col] = element<T>(values_, row, col);
      }
    }
  }

  const MatrixValues& values_;
  bool in_place_;
  std::int64_t stride_;
  std::int64_t first_ = 0;
  std::vector<float> copy_;
};

float round_to(DType dtype, float value) {
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
  return dtype == DType::kF16 ? f16_to_f32(f32_to_f16(value)) : value;
}

// Writes a scale that is a value of `dtype`.
void store_scale(DType dtype, float scale, std::span<std::byte> scales, std::int64_t index) {
  std::byte* to = scales.data() + as_size(index) * bytes_of(dtype);
  if (dtype == DType::kF32) {
    std::memcpy(to, &scale, sizeof(scale));
    return;
  }
  const std::uint16_t bits = dtype == DType::kBF16 ? f32_to_bf16(scale) : f32_to_f16(scale);
  std::memcpy(to, &bits, sizeof(bits));
}

// One call's work: the rows that are loaded, into their places.
struct Task {
  const QuantizeRule& rule;
  MatrixSize size;
  const QuantizedMatrix& out;
  const FloatRows& rows;

  std::uint8_t* codes(std::int64_t row, std::int64_t row_bytes) const {
    return reinterpret_cast<std::uint8_t*>(out.codes.data()) + row * row_bytes;
  }
  std::uint8_t* scales(std::int64_t row, std::int64_t row_scales) const {
    return reinterpret_cast<std::uint8_t*>(out.scales.data()) + row * row_scales;
  }
};

void cast_row(const Task& task, std::int64_t row) {
  const auto cols = as_size(task.size.cols);
  const DType dtype = task.rule.dtype;
  const auto width = static_cast<std::int64_t>(bytes_of(dtype));
  std::uint8_t* to = task.codes(row, task.size.cols * width);
  if (dtype == DType::kF32) {
    std::memcpy(to, task.rows.row(row), cols * sizeof(float));
  } else if (dtype == DType::kBF16) {
    narrow_to_bf16(task.rows.row(row), cols, reinterpret_cast<std::uint16_t*>(to));
  } else {
    narrow_to_f16(task.rows.row(row), cols, reinterpret_cast<std::uint16_t*>(to));
  }
}

void block_scaled_row(const Task& task, std::int64_t row) {
  const std::int64_t cols = task.size.cols;
  const float* values = task.rows.row(row);
  if (task.rule.code == MatrixCode::kNvfp4) {
    const std::int64_t blocks = cols / kNvfp4Block;
    encode_nvfp4_run(task.rule.whole, values, as_size(blocks), task.codes(row, cols / 2),
                     task.scales(row, blocks));
    return;
  }
  const std::int64_t blocks = cols / kMxBlock;
  if (task.rule.code == MatrixCode::kMxfp4) {
    encode_mxfp4_run(E8m0Rule::kFloor, values, as_size(blocks), task.codes(row, cols / 2),
                     task.scales(row, blocks));
  } else {
    encode_mxfp8_run(E8m0Rule::kCeil, values, as_size(blocks), task.codes(row, cols),
                     task.scales(row, blocks));
  }
}

// Rows that share scales: group.rows of them, or a part of a matrix that has one scale.
void fp8_rows(const Task& task, RowRange rows, bool whole) {
  const Fp8Layout layout{task.size, task.rule.group};
  const std::int64_t cols = task.size.cols;
  for (std::int64_t begin = 0; begin < cols; begin += task.rule.group.cols) {
    const auto count = as_size(std::min(task.rule.group.cols, cols - begin));
    std::uint32_t magnitude = 0;
    for (std::int64_t row = rows.begin; row < rows.end && !whole; ++row) {
      magnitude = std::max(magnitude, magnitude_bits(task.rows.row(row) + begin, count));
    }
    const float amax = whole ? task.rule.whole : amax_of(magnitude);
    const float scale = round_to(task.rule.dtype, fp8_scale(Fp8ScaleRule::kWeight, amax));
    if (!whole || rows.begin == 0) {
      store_scale(task.rule.dtype, scale, task.out.scales, layout.scale_index(rows.begin, begin));
    }
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      encode_e4m3_run(scale, task.rows.row(row) + begin, count, task.codes(row, cols) + begin);
    }
  }
}

void int4_row(const Task& task, std::int64_t row) {
  const std::int64_t group = task.rule.group.cols;
  const std::int64_t groups = task.size.cols / group;
  const Int4Rule rule{task.rule.zeros, task.rule.dtype};
  for (std::int64_t g = 0; g < groups; ++g) {
    const float* values = task.rows.row(row) + g * group;
    const ValueRange range = value_range(values, as_size(group));
    const Int4Group chosen = choose_int4_group(
        rule, {range.low, range.high, range.magnitude >= kInfinityBits});
    store_scale(rule.scale_dtype, chosen.scale, task.out.scales, row * groups + g);
    if (rule.zeros == Int4Zeros::kAsymmetric) {
      task.out.zeros[as_size(row * groups + g)] = std::byte{chosen.zero};
    }
    std::uint8_t* to = task.codes(row, task.size.cols / 2) + g * group / 2;
    if (std::isnan(chosen.scale)) {
      std::memset(to, chosen.zero | (chosen.zero << 4), as_size(group / 2));
    } else {
      encode_int4_run(chosen.scale, chosen.zero, values, as_size(group), to);
    }
  }
}

bool covers(MatrixSize group, MatrixSize size) {
  return group.rows >= size.rows && group.cols >= size.cols;
}

void quantize_loaded(const Task& task, RowRange rows) {
  if (task.rule.code == MatrixCode::kFp8) {
    const bool whole = covers(task.rule.group, task.size);
    const std::int64_t step = whole ? rows.end - rows.begin : task.rule.group.rows;
    for (std::int64_t row = rows.begin; row < rows.end; row += step) {
      fp8_rows(task, {row, std::min(row + step, rows.end)}, whole);
    }
    return;
  }
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    switch (task.rule.code) {
      case MatrixCode::kCast: cast_row(task, row); break;
      case MatrixCode::kInt4: int4_row(task, row); break;
      default: block_scaled_row(task, row);
    }
  }
}

// Inputs that a row of this code is whole multiples of.
std::int64_t inputs_unit(const QuantizeRule& rule) {
  switch (rule.code) {
    case MatrixCode::kMxfp4:
    case MatrixCode::kMxfp8: return kMxBlock;
    case MatrixCode::kNvfp4: return kNvfp4Block;
    case MatrixCode::kInt4: return rule.group.cols;
    case MatrixCode::kCast:
    case MatrixCode::kFp8: break;
  }
  return 1;
}

// Rows in a group of scales must be loaded together.
Status check_rule(const QuantizeRule& rule, MatrixSize size) {
  const bool grouped = rule.code == MatrixCode::kFp8 || rule.code == MatrixCode::kInt4;
  const std::int64_t unit = inputs_unit(rule);
  const bool odd = rule.code == MatrixCode::kInt4 && unit % 2 != 0;
  if (size.rows < 1 || size.cols < 1 || unit < 1 || size.cols % unit != 0 || odd) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a matrix [{}, {}] cannot be quantised in groups of {} inputs: a group is "
                      "positive{} and divides the inputs", size.rows, size.cols, unit,
                      rule.code == MatrixCode::kInt4 ? ", even" : "");
  }
  if (rule.code == MatrixCode::kFp8 && (rule.group.rows < 1 || rule.group.cols < 1 ||
                                        (!covers(rule.group, size) &&
                                         kQuantizeUnit % rule.group.rows != 0))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "fp8: a scale for {} x {} of [{}, {}]: all of it, or rows that divide {}",
                      rule.group.rows, rule.group.cols, size.rows, size.cols, kQuantizeUnit);
  }
  if ((grouped || rule.code == MatrixCode::kCast) && !is_real(rule.dtype)) {
    return make_error(ErrorCode::kInvalidArgument, "{} is no dtype of {}; f32, f16 or bf16",
                      dtype_name(rule.dtype), grouped ? "scales" : "values");
  }
  if (rule.code == MatrixCode::kNvfp4 && !(std::isfinite(rule.whole) && rule.whole > 0.0f)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "nvfp4: the global scale is {}; it is finite and positive", rule.whole);
  }
  return {};
}

}  // namespace

Result<QuantizedBytes> quantized_bytes(const QuantizeRule& rule, MatrixSize size) {
  HF_TRY(check_rule(rule, size));
  const auto count = as_size(size.rows * size.cols);
  switch (rule.code) {
    case MatrixCode::kCast: return QuantizedBytes{count * bytes_of(rule.dtype), 0, 0};
    case MatrixCode::kMxfp4: return QuantizedBytes{count / 2, count / kMxBlock, 0};
    case MatrixCode::kMxfp8: return QuantizedBytes{count, count / kMxBlock, 0};
    case MatrixCode::kNvfp4: return QuantizedBytes{count / 2, count / kNvfp4Block, 0};
    case MatrixCode::kInt4: {
      const auto groups = count / as_size(rule.group.cols);
      const bool zeros = rule.zeros == Int4Zeros::kAsymmetric;
      return QuantizedBytes{count / 2, groups * bytes_of(rule.dtype), zeros ? groups : 0};
    }
    case MatrixCode::kFp8: break;
  }
  const MatrixSize scales = Fp8Layout{size, rule.group}.scales();
  return QuantizedBytes{count, as_size(scales.rows * scales.cols) * bytes_of(rule.dtype), 0};
}

Result<float> matrix_amax(const MatrixValues& values, RowRange rows) {
  HF_TRY(check_values(values, rows));
  constexpr std::int64_t kRows = 32;
  FloatRows loaded(values, kRows);
  std::uint32_t magnitude = 0;
  for (std::int64_t begin = rows.begin; begin < rows.end; begin += kRows) {
    const RowRange some{begin, std::min(begin + kRows, rows.end)};
    loaded.load(some);
    for (std::int64_t row = some.begin; row < some.end; ++row) {
      magnitude = std::max(magnitude, magnitude_bits(loaded.row(row), as_size(values.size.cols)));
    }
  }
  return amax_of(magnitude);
}

Status quantize_rows(const QuantizeRule& rule, const MatrixValues& values, RowRange rows,
                     const QuantizedMatrix& out) {
  HF_TRY(check_values(values, rows));
  HF_ASSIGN(const QuantizedBytes bytes, quantized_bytes(rule, values.size));
  const auto size = [](std::size_t count) { return static_cast<std::int64_t>(count); };
  HF_TRY(check_count("quantised codes", out.codes.size(), size(bytes.codes), "bytes"));
  HF_TRY(check_count("quantised scales", out.scales.size(), size(bytes.scales), "bytes"));
  HF_TRY(check_count("quantised zeros", out.zeros.size(), size(bytes.zeros), "bytes"));
  if (rows.begin % kQuantizeUnit != 0 ||
      (rows.end % kQuantizeUnit != 0 && rows.end != values.size.rows)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "rows {} to {} of {} are quantised together: a range begins and ends at "
                      "multiples of {}", rows.begin, rows.end, values.size.rows, kQuantizeUnit);
  }
  // As many rows as share scales, and few enough to stay in the cache where none do.
  const bool blocks = rule.code == MatrixCode::kFp8 && rule.group.rows > 1 &&
                      !covers(rule.group, values.size);
  const std::int64_t step = blocks ? kQuantizeUnit : kQuantizeUnit / 4;
  FloatRows loaded(values, step);
  const Task task{rule, values.size, out, loaded};
  for (std::int64_t begin = rows.begin; begin < rows.end; begin += step) {
    const RowRange some{begin, std::min(begin + step, rows.end)};
    loaded.load(some);
    quantize_loaded(task, some);
  }
  return {};
}

Nvfp4Global choose_nvfp4_global(GlobalScale kind, float amax) {
  const float multiplier = nvfp4_global(amax);
  if (kind == GlobalScale::kMultiplier) return {multiplier, multiplier};
  const float stored = amax / kNvfp4Largest == multiplier ? kNvfp4Largest / amax : 1.0f;
  return {stored, 1.0f / stored};
}

}  // namespace holdfast::tensor
