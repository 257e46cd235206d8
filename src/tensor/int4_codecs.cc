#include "tensor/int4_codecs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "tensor/codecs.h"
#include "tensor/shape.h"
#include "tensor/span_checks.h"

namespace holdfast::tensor {
namespace {

constexpr int kLargest = 15;
// A GPTQ v1 zero of 15 is read as 16: the one that was taken off is added without a wrap.
constexpr int kLargestZero = 16;

std::size_t at(std::int64_t row, std::int64_t col, std::int64_t cols) {
  return static_cast<std::size_t>(row * cols + col);
}

Status check_group_index(const Int4Size& size, std::span<const std::int32_t> group_index) {
  if (group_index.empty()) return {};
  HF_TRY(check_count("int4 group index", group_index.size(), size.cols, "one for each input"));
  for (std::size_t col = 0; col < group_index.size(); ++col) {
    if (group_index[col] < 0 || group_index[col] >= size.groups()) {
      return make_error(ErrorCode::kCorrupt, "int4: input {} is of group {}; there are {} groups",
                        col, group_index[col], size.groups());
    }
  }
  return {};
}

Status check_unpacked(const Int4Size& size, std::size_t codes, std::size_t scales,
                      std::size_t zeros) {
  HF_TRY(check_int4_size(size));
  HF_TRY(check_count("int4 codes", codes, size.rows * size.cols, "[rows, cols]"));
  HF_TRY(check_count("int4 scales", scales, size.rows * size.groups(), "[rows, groups]"));
  return check_count("int4 zeros", zeros, size.rows * size.groups(), "[rows, groups]");
}

Status check_range(std::string_view what, std::span<const std::uint8_t> values, int largest) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] > largest) {
      return make_error(ErrorCode::kCorrupt, "int4: {} {} is {}, at most {}", what, i, values[i],
                        largest);
    }
  }
  return {};
}

std::int64_t group_of(const Int4Size& size, std::span<const std::int32_t> group_index,
                      std::int64_t col) {
  return group_index.empty() ? col / size.group : group_index[static_cast<std::size_t>(col)];
}

float round_scale(float scale, DType dtype) {
  if (dtype == DType::kF16) scale = f16_to_f32(f32_to_f16(scale));
  if (dtype == DType::kBF16) scale = bf16_to_f32(f32_to_bf16(scale));
  if (!std::isfinite(scale)) return std::numeric_limits<float>::quiet_NaN();
  return scale == 0.0f ? 1.0f : scale;
}

std::uint8_t encode_value(float value, Int4Group group) {
  if (std::isnan(group.scale)) return group.zero;
  const float steps = std::nearbyint(value / group.scale) + static_cast<float>(group.zero);
  return static_cast<std::uint8_t>(std::clamp(steps, 0.0f, float{kLargest}));
}

// How a packing lies in memory: word (w, other) holds elements 8w ... 8w + 7 of the packed axis.
struct WordGrid {
  std::int64_t words;        // along the packed axis
  std::int64_t others;       // along the other axis
  bool words_are_rows;       // word index first in memory
  std::array<int, kInt4PerWord> order;

  std::size_t index(std::int64_t word, std::int64_t other) const {
    return words_are_rows ? at(word, other, others) : at(other, word, words);
  }
};
constexpr std::array<int, kInt4PerWord> kPlainOrder = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::array<int, kInt4PerWord> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

// `packs_rows`: the packed axis is the rows of the unpacked matrix [rows, cols].
struct Packed {
  WordGrid grid;
  bool packs_rows;
  std::int64_t cols;  // of the unpacked matrix

  std::size_t element(std::int64_t word, int nibble, std::int64_t other) const {
    const std::int64_t along =
        word * kInt4PerWord + grid.order[static_cast<std::size_t>(nibble)];
    return packs_rows ? at(along, other, cols) : at(other, along, cols);
  }
};

Packed weight_layout(Int4Packing packing, const Int4Size& size) {
  switch (packing) {
    case Int4Packing::kAwq:
      return {{size.rows / kInt4PerWord, size.cols, false, kAwqOrder}, true, size.cols};
    case Int4Packing::kCompressedTensors:
      return {{size.cols / kInt4PerWord, size.rows, false, kPlainOrder}, false, size.cols};
    case Int4Packing::kGptqV1:
    case Int4Packing::kGptqV2: break;
  }
  return {{size.cols / kInt4PerWord, size.rows, true, kPlainOrder}, false, size.cols};
}

Packed zeros_layout(Int4Packing packing, const Int4Size& size) {
  const std::int64_t groups = size.groups();
  const bool words_are_rows = packing == Int4Packing::kCompressedTensors;
  return {{size.rows / kInt4PerWord, groups, words_are_rows,
           packing == Int4Packing::kAwq ? kAwqOrder : kPlainOrder},
          true,
          groups};
}

Status check_packed(const Packed& layout, std::int64_t packed_axis, std::size_t words,
                    std::size_t elements) {
  if (packed_axis % kInt4PerWord != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "int4: the packed axis has {} elements, no multiple of {}", packed_axis,
                      kInt4PerWord);
  }
  const std::int64_t word_count = layout.grid.words * layout.grid.others;
  HF_TRY(check_count("int4 words", words, word_count, "eight codes to a word"));
  return check_count("int4 elements", elements, word_count * kInt4PerWord,
                     "eight codes to a word");
}

// Elements lie in storage minus `offset`: a GPTQ v1 zero is stored minus one.
Status pack(const Packed& layout, int offset, std::span<const std::uint8_t> elements,
            std::span<std::int32_t> words) {
  for (std::int64_t word = 0; word < layout.grid.words; ++word) {
    for (std::int64_t other = 0; other < layout.grid.others; ++other) {
      std::uint32_t bits = 0;
      for (int nibble = 0; nibble < kInt4PerWord; ++nibble) {
        const int stored = elements[layout.element(word, nibble, other)] - offset;
        if (stored < 0 || stored > kLargest) {
          return make_error(ErrorCode::kInvalidArgument,
                            "int4: {} cannot be stored; this packing has {} ... {}",
                            stored + offset, offset, kLargest + offset);
        }
        bits |= static_cast<std::uint32_t>(stored) << (4 * nibble);
      }
      words[layout.grid.index(word, other)] = static_cast<std::int32_t>(bits);
    }
  }
  return {};
}

void unpack(const Packed& layout, int offset, std::span<const std::int32_t> words,
            std::span<std::uint8_t> elements) {
  for (std::int64_t word = 0; word < layout.grid.words; ++word) {
    for (std::int64_t other = 0; other < layout.grid.others; ++other) {
      const auto bits = static_cast<std::uint32_t>(words[layout.grid.index(word, other)]);
      for (int nibble = 0; nibble < kInt4PerWord; ++nibble) {
        elements[layout.element(word, nibble, other)] =
            static_cast<std::uint8_t>(((bits >> (4 * nibble)) & 0xFu) + unsigned(offset));
      }
    }
  }
}

std::int64_t packed_weight_axis(Int4Packing packing, const Int4Size& size) {
  return packing == Int4Packing::kAwq ? size.rows : size.cols;
}

int zero_offset(Int4Packing packing) { return packing == Int4Packing::kGptqV1 ? 1 : 0; }

}  // namespace

Status check_int4_size(const Int4Size& size) {
  const std::int64_t dims[] = {size.rows, size.cols};
  HF_TRY(Shape::from_dims(dims));
  if (size.rows < 1 || size.cols < 1 || size.group < 1 || size.cols % size.group != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "int4: [{}, {}] in groups of {}: all are positive and the group size divides "
                      "the inputs", size.rows, size.cols, size.group);
  }
  return {};
}

Int4Group choose_int4_group(const Int4Rule& rule, const Int4Range& range) {
  const Int4Group damaged{std::numeric_limits<float>::quiet_NaN(), kInt4SymmetricZero};
  if (range.damaged) return damaged;
  const bool symmetric = rule.zeros == Int4Zeros::kSymmetric;
  const float exact = symmetric ? std::max(-range.low, range.high) / 7.5f
                                : (range.high - range.low) / 15.0f;
  const float scale = round_scale(exact, rule.scale_dtype);
  if (std::isnan(scale)) return damaged;
  if (symmetric) return {scale, kInt4SymmetricZero};
  const float zero = std::clamp(std::nearbyint(-range.low / scale), 0.0f, float{kLargest});
  return {scale, static_cast<std::uint8_t>(zero)};
}

Status decode_int4(const Int4Size& size, const Int4View& in, std::span<float> out) {
  HF_TRY(check_unpacked(size, in.codes.size(), in.scales.size(), in.zeros.size()));
  HF_TRY(check_count("int4 values", out.size(), size.rows * size.cols, "[rows, cols]"));
  HF_TRY(check_group_index(size, in.group_index));
  HF_TRY(check_range("code", in.codes, kLargest));
  HF_TRY(check_range("zero", in.zeros, kLargestZero));
  for (std::int64_t row = 0; row < size.rows; ++row) {
    for (std::int64_t col = 0; col < size.cols; ++col) {
      const std::size_t group = at(row, group_of(size, in.group_index, col), size.groups());
      const std::size_t here = at(row, col, size.cols);
      out[here] = in.scales[group] * static_cast<float>(in.codes[here] - in.zeros[group]);
    }
  }
  return {};
}

Status encode_int4(const Int4Size& size, const Int4Rule& rule, std::span<const float> values,
                   std::span<const std::int32_t> group_index, const Int4Encoded& out) {
  HF_TRY(check_unpacked(size, out.codes.size(), out.scales.size(), out.zeros.size()));
  HF_TRY(check_count("int4 values", values.size(), size.rows * size.cols, "[rows, cols]"));
  HF_TRY(check_group_index(size, group_index));
  if (rule.scale_dtype != DType::kF16 && rule.scale_dtype != DType::kBF16 &&
      rule.scale_dtype != DType::kF32) {
    return make_error(ErrorCode::kInvalidArgument, "int4: no scales of {}; f16, bf16 or f32",
                      dtype_name(rule.scale_dtype));
  }
  std::vector<Int4Range> ranges(static_cast<std::size_t>(size.groups()));
  for (std::int64_t row = 0; row < size.rows; ++row) {
    std::fill(ranges.begin(), ranges.end(), Int4Range{});
    for (std::int64_t col = 0; col < size.cols; ++col) {
      Int4Range& range = ranges[static_cast<std::size_t>(group_of(size, group_index, col))];
      const float value = values[at(row, col, size.cols)];
      range.damaged = range.damaged || !std::isfinite(value);
      range.low = std::min(range.low, value);
      range.high = std::max(range.high, value);
    }
    for (std::int64_t group = 0; group < size.groups(); ++group) {
      const auto chosen = choose_int4_group(rule, ranges[static_cast<std::size_t>(group)]);
      out.scales[at(row, group, size.groups())] = chosen.scale;
      out.zeros[at(row, group, size.groups())] = chosen.zero;
    }
    for (std::int64_t col = 0; col < size.cols; ++col) {
      const std::size_t group = at(row, group_of(size, group_index, col), size.groups());
      const std::size_t here = at(row, col, size.cols);
      out.codes[here] = encode_value(values[here], {out.scales[group], out.zeros[group]});
    }
  }
  return {};
}

std::int64_t int4_scale_index(Int4Packing packing, const Int4Size& size, std::int64_t row,
                              std::int64_t group) {
  return packing == Int4Packing::kCompressedTensors ? row * size.groups() + group
                                                    : group * size.rows + row;
}

Status pack_int4_weight(Int4Packing packing, const Int4Size& size,
                        std::span<const std::uint8_t> codes, std::span<std::int32_t> words) {
  HF_TRY(check_int4_size(size));
  const Packed layout = weight_layout(packing, size);
  HF_TRY(check_packed(layout, packed_weight_axis(packing, size), words.size(), codes.size()));
  return pack(layout, 0, codes, words);
}

Status unpack_int4_weight(Int4Packing packing, const Int4Size& size,
                          std::span<const std::int32_t> words, std::span<std::uint8_t> codes) {
  HF_TRY(check_int4_size(size));
  const Packed layout = weight_layout(packing, size);
  HF_TRY(check_packed(layout, packed_weight_axis(packing, size), words.size(), codes.size()));
  unpack(layout, 0, words, codes);
  return {};
}

Status pack_int4_zeros(Int4Packing packing, const Int4Size& size,
                       std::span<const std::uint8_t> zeros, std::span<std::int32_t> words) {
  HF_TRY(check_int4_size(size));
  const Packed layout = zeros_layout(packing, size);
  HF_TRY(check_packed(layout, size.rows, words.size(), zeros.size()));
  return pack(layout, zero_offset(packing), zeros, words);
}

Status unpack_int4_zeros(Int4Packing packing, const Int4Size& size,
                         std::span<const std::int32_t> words, std::span<std::uint8_t> zeros) {
  HF_TRY(check_int4_size(size));
  const Packed layout = zeros_layout(packing, size);
  HF_TRY(check_packed(layout, size.rows, words.size(), zeros.size()));
  unpack(layout, zero_offset(packing), words, zeros);
  return {};
}

}  // namespace holdfast::tensor
