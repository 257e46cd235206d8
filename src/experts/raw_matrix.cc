#include "experts/raw_matrix.h"

#include <array>
#include <span>

#include "base/assert.h"
#include "experts/expert_parameters.h"
#include "experts/layer_parameters.h"
#include "experts/quantized_inputs.h"
#include "tensor/codecs.h"
#include "tensor/fp8_codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts {
namespace {

using config::ExpertScheme;
using config::Projection;
using config::TensorRole;
using storage::SlotId;
using tensor::DType;

float plain(std::int64_t dtype, const std::byte* from, std::int64_t index) {
  const auto type = static_cast<DType>(dtype);
  float value = 0.0f;
  const Status decoded =
      tensor::decode_to_f32(type, from + index * (tensor::dtype_bits(type) / 8), 1, &value);
  HF_ASSERT(decoded.ok(), "scales are of a float dtype");
  return value;
}

// Elements of a tensor of plain floats, the last one kept: neighbours mostly share their scale.
class Floats {
 public:
  Floats(std::int64_t dtype, const std::byte* from) : dtype_(dtype), from_(from) {}
  float at(std::int64_t index) {
    if (index != index_) value_ = plain(dtype_, from_, index_ = index);
    return value_;
  }

 private:
  std::int64_t dtype_;
  const std::byte* from_;
  std::int64_t index_ = -1;
  float value_ = 0.0f;
};

float multiplier(const RawMatrix& matrix, const std::byte* from, std::int64_t expert) {
  const float stored = plain(matrix.scalar_dtype, from, expert);
  return matrix.divides != 0 ? 1.0f / stored : stored;
}

std::uint8_t byte_at(const std::byte* from, std::int64_t index) {
  return std::to_integer<std::uint8_t>(from[index]);
}

std::uint8_t nibble_at(const std::byte* from, std::int64_t index) {
  return static_cast<std::uint8_t>(byte_at(from, index / 2) >> (index % 2 * 4) & 15);
}

void decode_plain(const RawMatrix& m, DType dtype, std::int64_t expert, std::int64_t row,
                  float* out) {
  if (m.input_major == 0) {
    const std::int64_t at = (expert * m.rows + row) * m.columns;
    const Status decoded = tensor::decode_to_f32(
        dtype, m.weights + at * (tensor::dtype_bits(dtype) / 8), m.columns, out);
    HF_ASSERT(decoded.ok(), "plain weights are of a float dtype");
    return;
  }
  for (std::int64_t k = 0; k < m.columns; ++k) {
    out[k] = plain(static_cast<std::int64_t>(dtype), m.weights,
                   (expert * m.columns + k) * m.rows + row);
  }
}

void decode_mx(const RawMatrix& m, std::int64_t index, bool nibbles, float* out) {
  for (std::int64_t k = 0; k < m.columns; ++k) {
    const std::int64_t at = index * m.columns + k;
    const float scale = tensor::f8_e8m0_to_f32(byte_at(m.scales, at / tensor::kMxBlock));
    out[k] = scale * (nibbles ? tensor::f4_e2m1_to_f32(nibble_at(m.weights, at))
                              : tensor::f8_e4m3_to_f32(byte_at(m.weights, at)));
  }
}

// `index`: the row among those of all experts.
void decode_fp8_row(const RawMatrix& m, std::int64_t expert, std::int64_t row, float* out) {
  const auto scheme = static_cast<ExpertScheme>(m.scheme);
  const tensor::MatrixSize size{m.rows, m.columns};
  const tensor::Fp8Layout layout = scheme == ExpertScheme::kFp8Tensor ? tensor::fp8_per_tensor(size)
                                   : scheme == ExpertScheme::kFp8Channel
                                       ? tensor::fp8_per_row(size)
                                       : tensor::fp8_blocks(size);
  const tensor::MatrixSize size_of_scales = layout.scales();
  Floats scales(m.scale_dtype, m.scales);
  for (std::int64_t k = 0; k < m.columns; ++k) {
    const std::int64_t at = expert * size_of_scales.rows * size_of_scales.cols +
                            layout.scale_index(row, k);
    const std::int64_t code = (expert * m.rows + row) * m.columns + k;
    out[k] = tensor::f8_e4m3_to_f32(byte_at(m.weights, code)) * scales.at(at);
  }
}

void decode_nvfp4_row(const RawMatrix& m, std::int64_t expert, std::int64_t row, float* out) {
  const float global = multiplier(m, m.global_scale, expert);
  for (std::int64_t k = 0; k < m.columns; ++k) {
    const std::int64_t at = (expert * m.rows + row) * m.columns + k;
    const float scale = tensor::f8_e4m3_to_f32(byte_at(m.scales, at / tensor::kNvfp4Block));
    out[k] = tensor::f4_e2m1_to_f32(nibble_at(m.weights, at)) * scale * global;
  }
}

int nibble_of_word(const std::byte* words, std::int64_t word, std::int64_t nibble) {
  return nibble_at(words, word * tensor::kInt4PerWord + nibble);
}

// int4_codecs.h, Int4Packing.
int int4_code(const RawMatrix& m, std::int64_t expert, std::int64_t row, std::int64_t k) {
  constexpr std::int64_t kPer = tensor::kInt4PerWord;
  constexpr std::array<std::int64_t, 8> kAwqNibble{0, 4, 1, 5, 2, 6, 3, 7};
  const std::int64_t first = expert * m.rows * m.columns / kPer;
  switch (static_cast<tensor::Int4Packing>(m.packing)) {
    case tensor::Int4Packing::kAwq:
      return nibble_of_word(m.weights, first + k * (m.rows / kPer) + row / kPer,
                            kAwqNibble[static_cast<std::size_t>(row % kPer)]);
    case tensor::Int4Packing::kCompressedTensors:
      return nibble_of_word(m.weights, first + row * (m.columns / kPer) + k / kPer, k % kPer);
    default: return nibble_of_word(m.weights, first + k / kPer * m.rows + row, k % kPer);
  }
}

int int4_zero(const RawMatrix& m, std::int64_t expert, std::int64_t row, std::int64_t group) {
  if (m.zeros == nullptr) return tensor::kInt4SymmetricZero;
  constexpr std::int64_t kPer = tensor::kInt4PerWord;
  constexpr std::array<std::int64_t, 8> kAwqNibble{0, 4, 1, 5, 2, 6, 3, 7};
  const std::int64_t groups = m.columns / m.group;
  const std::int64_t first = expert * groups * m.rows / kPer;
  const std::int64_t wide = first + group * (m.rows / kPer) + row / kPer;
  switch (static_cast<tensor::Int4Packing>(m.packing)) {
    case tensor::Int4Packing::kAwq:
      return nibble_of_word(m.zeros, wide, kAwqNibble[static_cast<std::size_t>(row % kPer)]);
    case tensor::Int4Packing::kCompressedTensors:
      return nibble_of_word(m.zeros, first + row / kPer * groups + group, row % kPer);
    case tensor::Int4Packing::kGptqV1: return nibble_of_word(m.zeros, wide, row % kPer) + 1;
    case tensor::Int4Packing::kGptqV2: break;
  }
  return nibble_of_word(m.zeros, wide, row % kPer);
}

void decode_int4_row(const RawMatrix& m, std::int64_t expert, std::int64_t row, float* out) {
  const tensor::Int4Size size{.rows = m.rows, .cols = m.columns, .group = m.group};
  const auto packing = static_cast<tensor::Int4Packing>(m.packing);
  Floats scales(m.scale_dtype, m.scales);
  for (std::int64_t k = 0; k < m.columns; ++k) {
    const std::int64_t group =
        m.group_index != nullptr ? m.group_index[expert * m.columns + k] : k / m.group;
    const std::int64_t at = expert * m.rows * size.groups() +
                            tensor::int4_scale_index(packing, size, row, group);
    const int steps = int4_code(m, expert, row, k) - int4_zero(m, expert, row, group);
    out[k] = scales.at(at) * static_cast<float>(steps);
  }
}

}  // namespace

void decode_row(const RawMatrix& matrix, std::int64_t expert, std::int64_t row, float* out) {
  switch (static_cast<ExpertScheme>(matrix.scheme)) {
    case ExpertScheme::kBF16: return decode_plain(matrix, DType::kBF16, expert, row, out);
    case ExpertScheme::kF16: return decode_plain(matrix, DType::kF16, expert, row, out);
    case ExpertScheme::kF32: return decode_plain(matrix, DType::kF32, expert, row, out);
    case ExpertScheme::kMxfp4: return decode_mx(matrix, expert * matrix.rows + row, true, out);
    case ExpertScheme::kMxfp8: return decode_mx(matrix, expert * matrix.rows + row, false, out);
    case ExpertScheme::kFp8Tensor:
    case ExpertScheme::kFp8Channel:
    case ExpertScheme::kFp8Block: return decode_fp8_row(matrix, expert, row, out);
    case ExpertScheme::kNvfp4: return decode_nvfp4_row(matrix, expert, row, out);
    case ExpertScheme::kInt4: return decode_int4_row(matrix, expert, row, out);
  }
}

float bias_of(const RawMatrix& matrix, std::int64_t expert, std::int64_t row) {
  if (matrix.bias == nullptr) return 0.0f;
  return tensor::bf16_to_f32(matrix.bias[expert * matrix.rows + row]);
}

float input_scale_of(const RawMatrix& matrix, std::int64_t expert) {
  return matrix.input_scale == nullptr ? 1.0f : multiplier(matrix, matrix.input_scale, expert);
}

Result<RawSlots> define_raw_slots(storage::Registry& registry, const ExpertsSpec& spec,
                                  Projection projection) {
  RawSlots slots;
  const std::pair<TensorRole, std::optional<SlotId> RawSlots::*> roles[] = {
      {TensorRole::kWeight, &RawSlots::weights},
      {TensorRole::kScale, &RawSlots::scales},
      {TensorRole::kGlobalScale, &RawSlots::global_scale},
      {TensorRole::kInputScale, &RawSlots::input_scale},
      {TensorRole::kZeros, &RawSlots::zeros},
      {TensorRole::kGroupIndex, &RawSlots::group_index},
      {TensorRole::kShape, &RawSlots::shape},
      {TensorRole::kBias, &RawSlots::bias}};
  HF_TRY(need_tensor(spec, projection, TensorRole::kWeight));
  for (const auto& [role, field] : roles) {
    const config::ExpertTensor* tensor = find_tensor(spec, projection, role);
    if (tensor == nullptr) continue;
    HF_ASSIGN(slots.*field, is_made(spec, *tensor) ? define_made(registry, spec, *tensor)
                                                   : define_resident(registry, spec, *tensor));
  }
  return slots;
}

RawMatrix resolve_raw(const storage::Registry& registry, const ExpertsSpec& spec,
                      Projection projection, const RawSlots& slots) {
  const config::ExpertTensor& weight = *find_tensor(spec, projection, TensorRole::kWeight);
  const bool down = projection == Projection::kDown;
  const std::int64_t inner =
      spec.shape.intermediate_size * (projection == Projection::kGateUp ? 2 : 1);
  const auto at = [&](const std::optional<SlotId>& slot) {
    return slot ? registry.view(*slot) : tensor::TensorView{};
  };
  RawMatrix matrix{.scheme = static_cast<std::int64_t>(spec.format.scheme),
                   .rows = down ? spec.shape.hidden_size : inner,
                   .columns = down ? spec.shape.intermediate_size : spec.shape.hidden_size,
                   .input_major = weight.input_major ? 1 : 0,
                   .packing = static_cast<std::int64_t>(int4_packing(spec.format)),
                   .group = spec.format.group_size,
                   .divides =
                       spec.format.dialect == config::ExpertDialect::kCompressedNvfp4 ? 1 : 0,
                   .scale_dtype = static_cast<std::int64_t>(at(slots.scales).dtype),
                   .scalar_dtype = 0,
                   .weights = at(slots.weights).address,
                   .scales = at(slots.scales).address,
                   .global_scale = at(slots.global_scale).address,
                   .input_scale = at(slots.input_scale).address,
                   .zeros = at(slots.zeros).address,
                   .group_index = at(slots.group_index).as<const std::int32_t>(),
                   .bias = at(slots.bias).as<const std::uint16_t>()};
  const tensor::TensorView scalar = at(slots.global_scale ? slots.global_scale : slots.input_scale);
  matrix.scalar_dtype = static_cast<std::int64_t>(scalar.dtype);
  return matrix;
}

}  // namespace holdfast::experts
