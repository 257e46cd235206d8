#include "tensor/fp8_codecs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "tensor/codecs.h"
#include "tensor/shape.h"
#include "tensor/span_checks.h"

namespace holdfast::tensor {
namespace {

std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

Status check_layout(const Fp8Layout& layout, std::size_t values, std::size_t codes,
                    std::size_t scales) {
  const MatrixSize size = layout.size;
  const MatrixSize group = layout.group;
  const std::int64_t dims[] = {size.rows, size.cols};
  HF_ASSIGN(const Shape shape, Shape::from_dims(dims));
  if (group.rows < 1 || group.cols < 1) {
    return make_error(ErrorCode::kInvalidArgument, "fp8: a scale covers {} x {} values; at least "
                      "1 x 1", group.rows, group.cols);
  }
  HF_TRY(check_count("fp8 values", values, shape.element_count(), shape.to_string()));
  HF_TRY(check_count("fp8 codes", codes, shape.element_count(), shape.to_string()));
  const MatrixSize grid = layout.scales();
  return check_count("fp8 scales", scales, grid.rows * grid.cols,
                     fmt::format("one for each {} x {} of {}", group.rows, group.cols,
                                 shape.to_string()));
}

}  // namespace

MatrixSize Fp8Layout::scales() const {
  return {ceil_div(size.rows, group.rows), ceil_div(size.cols, group.cols)};
}

std::int64_t Fp8Layout::scale_index(std::int64_t row, std::int64_t col) const {
  return row / group.rows * scales().cols + col / group.cols;
}

Fp8Layout fp8_per_tensor(MatrixSize size) {
  return {size, {std::max<std::int64_t>(size.rows, 1), std::max<std::int64_t>(size.cols, 1)}};
}

Fp8Layout fp8_per_row(MatrixSize size) {
  return {size, {1, std::max<std::int64_t>(size.cols, 1)}};
}

Fp8Layout fp8_blocks(MatrixSize size) { return {size, {kFp8Block, kFp8Block}}; }

Fp8Layout fp8_token_groups(MatrixSize size) { return {size, {1, kFp8Block}}; }

float fp8_scale(Fp8ScaleRule rule, float amax) {
  if (std::isnan(amax)) return amax;
  switch (rule) {
    case Fp8ScaleRule::kToken: return std::max(amax / kF8E4M3Max, 1.0f / (kF8E4M3Max * 512.0f));
    case Fp8ScaleRule::kTokenGroup: return std::max(amax, 1e-10f) * (1.0f / kF8E4M3Max);
    case Fp8ScaleRule::kWeight: break;
  }
  const float scale = amax / kF8E4M3Max;
  return scale < kFp8SmallestScale ? 1.0f : scale;
}

Status encode_fp8(const Fp8Layout& layout, Fp8ScaleRule rule, std::span<const float> values,
                  Fp8Encoded out) {
  HF_TRY(check_layout(layout, values.size(), out.codes.size(), out.scales.size()));
  std::vector<float> amax(out.scales.size(), 0.0f);
  const auto [rows, cols] = layout.size;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t begin = 0; begin < cols; begin += layout.group.cols) {
      const std::int64_t end = std::min(begin + layout.group.cols, cols);
      float& largest = amax[static_cast<std::size_t>(layout.scale_index(row, begin))];
      const float here = finite_amax(values.subspan(static_cast<std::size_t>(row * cols + begin),
                                                    static_cast<std::size_t>(end - begin)));
      largest = here > largest || std::isnan(here) ? here : largest;
    }
  }
  for (std::size_t i = 0; i < amax.size(); ++i) out.scales[i] = fp8_scale(rule, amax[i]);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto at = static_cast<std::size_t>(row * cols + col);
      const float scale = out.scales[static_cast<std::size_t>(layout.scale_index(row, col))];
      out.codes[at] = f32_to_f8_e4m3(values[at] / scale);
    }
  }
  return {};
}

Status encode_fp8_static(const Fp8Layout& layout, std::span<const float> values,
                         std::span<const float> scales, std::span<std::uint8_t> codes) {
  HF_TRY(check_layout(layout, values.size(), codes.size(), scales.size()));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (!std::isfinite(scales[i]) || scales[i] <= 0.0f) {
      return make_error(ErrorCode::kCorrupt, "fp8: scale {} is {}; a scale is finite and positive",
                        i, scales[i]);
    }
  }
  const auto [rows, cols] = layout.size;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto at = static_cast<std::size_t>(row * cols + col);
      const float scale = scales[static_cast<std::size_t>(layout.scale_index(row, col))];
      codes[at] = f32_to_f8_e4m3(values[at] / scale);
    }
  }
  return {};
}

Status decode_fp8(const Fp8Layout& layout, std::span<const std::uint8_t> codes,
                  std::span<const float> scales, std::span<float> out) {
  HF_TRY(check_layout(layout, out.size(), codes.size(), scales.size()));
  const auto [rows, cols] = layout.size;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      const auto at = static_cast<std::size_t>(row * cols + col);
      out[at] = f8_e4m3_to_f32(codes[at]) *
                scales[static_cast<std::size_t>(layout.scale_index(row, col))];
    }
  }
  return {};
}

}  // namespace holdfast::tensor
