#include "model/decode_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/assert.h"
#include "base/error.h"
#include "experts/layer_parameters.h"
#include "tensor/codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/nvfp4_codecs.h"

// Values that share a scale are looked up in a table of what their codes decode to under it.
namespace holdfast::model {
namespace {

using config::ExpertFormat;
using config::ExpertScheme;
using config::TensorRole;
using tensor::DType;
using tensor::MatrixSize;
using tensor::TensorView;

constexpr std::size_t kFp4Codes = 16;
constexpr std::size_t kFp8Codes = 256;
constexpr std::uint16_t kBF16Exponent = 0x7F80;

const std::uint8_t* bytes_of(const TensorView& view) { return view.as<const std::uint8_t>(); }

std::uint8_t nibble(const std::uint8_t* bytes, std::int64_t index) {
  return static_cast<std::uint8_t>(bytes[index / 2] >> (index % 2 * 4) & 15);
}

Result<std::vector<float>> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.shape.element_count()));
  HF_TRY(tensor::decode_to_f32(view.dtype, view.address, view.shape.element_count(),
                               values.data()));
  return values;
}

std::array<float, kFp8Codes> e4m3_values() {
  std::array<float, kFp8Codes> values{};
  for (std::size_t code = 0; code < kFp8Codes; ++code) {
    values[code] = tensor::f8_e4m3_to_f32(static_cast<std::uint8_t>(code));
  }
  return values;
}

std::array<float, kFp4Codes> e2m1_values() {
  std::array<float, kFp4Codes> values{};
  for (std::size_t code = 0; code < kFp4Codes; ++code) {
    values[code] = tensor::f4_e2m1_to_f32(static_cast<std::uint8_t>(code));
  }
  return values;
}

Status decode_fp8(const tensor::Fp8Layout& layout, const PublishedMatrix& matrix,
                  std::uint16_t* out) {
  HF_ASSIGN(const std::vector<float> scales, floats_of(matrix.scale));
  const std::uint8_t* codes = bytes_of(matrix.weight);
  const auto values = e4m3_values();
  const auto [rows, cols] = layout.size;
  const MatrixSize groups = layout.scales();
  std::array<std::uint16_t, kFp8Codes> table{};
  for (std::int64_t group = 0; group < groups.rows * groups.cols; ++group) {
    const float scale = scales[static_cast<std::size_t>(group)];
    std::transform(values.begin(), values.end(), table.begin(),
                   [scale](float value) { return tensor::f32_to_bf16(value * scale); });
    const std::int64_t first_row = group / groups.cols * layout.group.rows;
    const std::int64_t first_col = group % groups.cols * layout.group.cols;
    const std::int64_t last_col = std::min(first_col + layout.group.cols, cols);
    for (std::int64_t row = first_row; row < std::min(first_row + layout.group.rows, rows); ++row) {
      for (std::int64_t at = row * cols + first_col; at < row * cols + last_col; ++at) {
        out[at] = table[codes[at]];
      }
    }
  }
  return {};
}

void decode_mxfp8(const PublishedMatrix& matrix, std::uint16_t* out) {
  const std::uint8_t* codes = bytes_of(matrix.weight);
  const std::uint8_t* scales = bytes_of(matrix.scale);
  const auto values = e4m3_values();
  const std::int64_t count = matrix.size.rows * matrix.size.cols;
  for (std::int64_t at = 0; at < count; ++at) {
    const float scale = tensor::f8_e8m0_to_f32(scales[at / tensor::kMxBlock]);
    out[at] = tensor::f32_to_bf16(values[codes[at]] * scale);
  }
}

// Blocks of `block` codes, four bits each, whose value is (e2m1 * block's scale) * whole's scale.
template <typename ScaleOf>
void decode_fp4(const PublishedMatrix& matrix, std::int64_t block, const ScaleOf& scale_of,
                float whole, std::uint16_t* out) {
  const std::uint8_t* codes = bytes_of(matrix.weight);
  const std::uint8_t* scales = bytes_of(matrix.scale);
  const auto values = e2m1_values();
  const std::int64_t blocks = matrix.size.rows * matrix.size.cols / block;
  std::array<std::uint16_t, kFp4Codes> table{};
  for (std::int64_t b = 0; b < blocks; ++b) {
    const float scale = scale_of(scales[b]);
    std::transform(values.begin(), values.end(), table.begin(), [scale, whole](float value) {
      return tensor::f32_to_bf16(value * scale * whole);
    });
    for (std::int64_t at = b * block; at < (b + 1) * block; ++at) {
      out[at] = table[nibble(codes, at)];
    }
  }
}

tensor::GlobalScale convention(const ExpertFormat& format) {
  return format.dialect == config::ExpertDialect::kCompressedNvfp4
             ? tensor::GlobalScale::kDivisor
             : tensor::GlobalScale::kMultiplier;
}

// The multiplier that a scalar scale means.
Result<float> multiplier(const ExpertFormat& format, const TensorView& view, const char* role) {
  HF_ASSIGN(const std::vector<float> stored, floats_of(view));
  return tensor::nvfp4_multiplier(convention(format), stored.front(), role);
}

Status check_shape(const PublishedMatrix& matrix) {
  if (matrix.shape.empty()) return {};
  const std::int64_t* stated = matrix.shape.as<const std::int64_t>();
  if (stated[0] == matrix.size.rows && stated[1] == matrix.size.cols) return {};
  return make_error(ErrorCode::kMismatch, "weight_shape is [{}, {}], the matrix is [{}, {}]",
                    stated[0], stated[1], matrix.size.rows, matrix.size.cols);
}

std::span<const std::int32_t> words_of(const TensorView& view) {
  return {view.as<const std::int32_t>(), view.bytes() / sizeof(std::int32_t)};
}

Status decode_int4(const ExpertFormat& format, const PublishedMatrix& matrix, std::uint16_t* out) {
  const tensor::Int4Size size{matrix.size.rows, matrix.size.cols, format.group_size};
  const tensor::Int4Packing packing = experts::int4_packing(format);
  HF_TRY(check_shape(matrix));
  std::vector<std::int32_t> group_of(static_cast<std::size_t>(size.cols));
  for (std::int64_t k = 0; k < size.cols; ++k) {
    group_of[static_cast<std::size_t>(k)] = static_cast<std::int32_t>(k / size.group);
  }
  if (!matrix.group_index.empty()) {
    const auto stated = words_of(matrix.group_index);
    HF_TRY(experts::int4_order(size, format.act_order, stated));
    group_of.assign(stated.begin(), stated.end());
  }
  HF_ASSIGN(const std::vector<float> scales, floats_of(matrix.scale));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(size.rows * size.cols));
  HF_TRY(tensor::unpack_int4_weight(packing, size, words_of(matrix.weight), codes));
  std::vector<std::uint8_t> zeros(scales.size(), tensor::kInt4SymmetricZero);
  if (!matrix.zeros.empty()) {
    HF_TRY(tensor::unpack_int4_zeros(packing, size, words_of(matrix.zeros), zeros));
  }
  // Of one row: what each code of each group decodes to.
  const auto groups = static_cast<std::size_t>(size.groups());
  std::vector<std::uint16_t> table(groups * kFp4Codes);
  for (std::int64_t row = 0; row < size.rows; ++row) {
    for (std::size_t group = 0; group < groups; ++group) {
      const auto g = static_cast<std::int64_t>(group);
      const float scale =
          scales[static_cast<std::size_t>(tensor::int4_scale_index(packing, size, row, g))];
      const int zero = zeros[static_cast<std::size_t>(row) * groups + group];
      for (int code = 0; code < int{kFp4Codes}; ++code) {
        table[group * kFp4Codes + static_cast<std::size_t>(code)] =
            tensor::f32_to_bf16(scale * static_cast<float>(code - zero));
      }
    }
    const std::uint8_t* from = codes.data() + row * size.cols;
    for (std::int64_t k = 0; k < size.cols; ++k) {
      const auto group = static_cast<std::size_t>(group_of[static_cast<std::size_t>(k)]);
      out[row * size.cols + k] = table[group * kFp4Codes + from[k]];
    }
  }
  return {};
}

Status decode(const ExpertFormat& format, const PublishedMatrix& matrix, std::uint16_t* out) {
  if (!matrix.input_scale.empty()) {
    HF_TRY(multiplier(format, matrix.input_scale, "input scale"));
  }
  switch (format.scheme) {
    case ExpertScheme::kFp8Tensor: {
      HF_TRY(multiplier(format, matrix.scale, "weight scale"));
      return decode_fp8(tensor::fp8_per_tensor(matrix.size), matrix, out);
    }
    case ExpertScheme::kFp8Channel:
      return decode_fp8(tensor::fp8_per_row(matrix.size), matrix, out);
    case ExpertScheme::kFp8Block: return decode_fp8(tensor::fp8_blocks(matrix.size), matrix, out);
    case ExpertScheme::kMxfp8: decode_mxfp8(matrix, out); return {};
    case ExpertScheme::kMxfp4:
      decode_fp4(matrix, tensor::kMxBlock, tensor::f8_e8m0_to_f32, 1.0f, out);
      return {};
    case ExpertScheme::kNvfp4: {
      HF_ASSIGN(const float whole, multiplier(format, matrix.global_scale, "global scale"));
      decode_fp4(matrix, tensor::kNvfp4Block, tensor::f8_e4m3_to_f32, whole, out);
      return {};
    }
    case ExpertScheme::kInt4: return decode_int4(format, matrix, out);
    case ExpertScheme::kBF16:
    case ExpertScheme::kF16:
    case ExpertScheme::kF32: break;
  }
  return make_error(ErrorCode::kUnsupported, "{} is no format of quantised linear layers",
                    to_text(format));
}

Status check_values(const MatrixSize& size, const std::uint16_t* values) {
  for (std::int64_t row = 0; row < size.rows; ++row) {
    const std::uint16_t* begin = values + row * size.cols;
    const std::uint16_t* end = begin + size.cols;
    const std::uint16_t* found = std::find_if(begin, end, [](std::uint16_t value) {
      return (value & kBF16Exponent) == kBF16Exponent;
    });
    if (found == end) continue;
    return make_error(ErrorCode::kCorrupt,
                      "value [{}, {}] decodes to no finite bf16: the scale is too large, or the "
                      "code is NaN",
                      row, found - begin);
  }
  return {};
}

}  // namespace

TensorView& PublishedMatrix::of(TensorRole role) {
  switch (role) {
    case TensorRole::kWeight: return weight;
    case TensorRole::kScale: return scale;
    case TensorRole::kGlobalScale: return global_scale;
    case TensorRole::kInputScale: return input_scale;
    case TensorRole::kZeros: return zeros;
    case TensorRole::kGroupIndex: return group_index;
    case TensorRole::kShape: return shape;
    case TensorRole::kBias: break;
  }
  HF_ASSERT(false, "a bias is no part of a linear layer's matrix");
  return weight;
}

Status decode_matrix(const ExpertFormat& format, const PublishedMatrix& matrix,
                     std::uint16_t* out) {
  if (matrix.weight.dtype == DType::kBF16) {
    std::memcpy(out, matrix.weight.address, matrix.weight.bytes());
    return {};
  }
  Status status = decode(format, matrix, out);
  if (status.ok()) status = check_values(matrix.size, out);
  return status.ok() ? status : Status(status.error().with_context(matrix.name));
}

std::uint64_t decode_scratch_bytes(const ExpertFormat& format, MatrixSize size) {
  const auto values = static_cast<std::uint64_t>(size.rows * size.cols);
  if (format.scheme == ExpertScheme::kInt4) {
    // Codes; a scale and a zero of each group.
    return values + values / static_cast<std::uint64_t>(format.group_size) * (sizeof(float) + 1);
  }
  return format.scheme == ExpertScheme::kFp8Channel
             ? static_cast<std::uint64_t>(size.rows) * sizeof(float)
             : 0;
}

}  // namespace holdfast::model
