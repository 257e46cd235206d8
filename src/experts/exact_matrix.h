// One expert's matrix in double precision by the codecs' whole-matrix decoders: what the tests
// measure backends against. Tests only.
#pragma once

#include <vector>

#include "experts/layer_parameters.h"
#include "experts/test_layer.h"
#include "experts/test_schemes.h"
#include "tensor/fp8_codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts::testing {

using config::ActivationScheme;
using config::ExpertDialect;
using config::ExpertFormat;
using config::ExpertScheme;
using config::ExpertTensor;
using config::Projection;
using config::TensorRole;

// One expert's matrix of one projection, [rows, columns], by the codecs of whole matrices.
class ExactMatrix {
 public:
  ExactMatrix(const SchemeCase& c, const Tensors& tensors, Projection projection,
              std::int64_t expert)
      : format_(c.format), tensors_(tensors), expert_(expert) {
    const ExpertsShape& s = c.shape;
    const bool down = projection == Projection::kDown;
    columns_ = down ? s.intermediate_size : s.hidden_size;
    rows_ = down ? s.hidden_size : s.intermediate_size;
    list_ = tensors_of(c.format, s);
    projection_ = projection;
    if (!down && find(Projection::kGateUp, TensorRole::kWeight) != nullptr) {
      projection_ = Projection::kGateUp;
      whole_rows_ = 2 * rows_;
      step_ = 2;
      first_ = projection == Projection::kUp ? 1 : 0;
    } else {
      whole_rows_ = rows_;
    }
    values_.resize(static_cast<std::size_t>(whole_rows_ * columns_));
    decode();
  }
  double value(std::int64_t row, std::int64_t k) const {
    return values_[static_cast<std::size_t>((row * step_ + first_) * columns_ + k)];
  }
  double bias(std::int64_t row) const {
    const ExpertTensor* tensor = find(projection_, TensorRole::kBias);
    if (tensor == nullptr) return 0;
    return tensor::bf16_to_f32(bytes<std::uint16_t>(*tensor)[row * step_ + first_]);
  }
  std::int64_t columns() const { return columns_; }
  float input_scale() const {
    const ExpertTensor* tensor = find(projection_, TensorRole::kInputScale);
    return tensor == nullptr ? 1.0f : multiplier(*tensor);
  }

 private:
  const ExpertTensor* find(Projection projection, TensorRole role) const {
    for (const ExpertTensor& tensor : list_) {
      if (tensor.projection == projection && tensor.role == role) return &tensor;
    }
    return nullptr;
  }
  const ExpertTensor& of(TensorRole role) const { return *find(projection_, role); }
  template <typename T>
  std::span<const T> bytes(const ExpertTensor& tensor) const {
    const auto all = tensors_.at(tensor.name).as<T>();
    const std::int64_t experts = tensors_.at(tensor.name).view().shape[0];
    const auto count = all.size() / static_cast<std::size_t>(experts);
    return all.subspan(static_cast<std::size_t>(expert_) * count, count);
  }
  std::vector<float> floats(const ExpertTensor& tensor) const {
    const auto view = tensors_.at(tensor.name).view().row(expert_);
    return ops::testing::decode(view);
  }
  float multiplier(const ExpertTensor& tensor) const {
    const float stored = floats(tensor).front();
    return format_.dialect == ExpertDialect::kCompressedNvfp4 ? 1.0f / stored : stored;
  }
  void decode() {
    const ExpertTensor& weight = of(TensorRole::kWeight);
    switch (format_.scheme) {
      case ExpertScheme::kBF16:
      case ExpertScheme::kF16:
      case ExpertScheme::kF32: return decode_plain(weight);
      case ExpertScheme::kMxfp4:
        return tensor::decode_mxfp4(bytes<std::uint8_t>(weight),
                                    bytes<std::uint8_t>(of(TensorRole::kScale)), values_)
            .value();
      case ExpertScheme::kMxfp8:
        return tensor::decode_mxfp8(bytes<std::uint8_t>(weight),
                                    bytes<std::uint8_t>(of(TensorRole::kScale)), values_)
            .value();
      case ExpertScheme::kNvfp4:
        return tensor::decode_nvfp4(multiplier(of(TensorRole::kGlobalScale)),
                                    bytes<std::uint8_t>(weight),
                                    bytes<std::uint8_t>(of(TensorRole::kScale)), values_)
            .value();
      case ExpertScheme::kInt4: return decode_int4(weight);
      default: break;
    }
    const tensor::MatrixSize size{rows_, columns_};
    const tensor::Fp8Layout layout =
        format_.scheme == ExpertScheme::kFp8Tensor    ? tensor::fp8_per_tensor(size)
        : format_.scheme == ExpertScheme::kFp8Channel ? tensor::fp8_per_row(size)
                                                      : tensor::fp8_blocks(size);
    tensor::decode_fp8(layout, bytes<std::uint8_t>(weight), floats(of(TensorRole::kScale)),
                       values_)
        .value();
  }
  void decode_plain(const ExpertTensor& weight) {
    const std::vector<float> all = floats(weight);
    for (std::int64_t r = 0; r < whole_rows_; ++r) {
      for (std::int64_t k = 0; k < columns_; ++k) {
        const std::int64_t from = weight.input_major ? k * whole_rows_ + r : r * columns_ + k;
        values_[static_cast<std::size_t>(r * columns_ + k)] = all[static_cast<std::size_t>(from)];
      }
    }
  }
  void decode_int4(const ExpertTensor& weight) {
    const tensor::Int4Size size{rows_, columns_, format_.group_size};
    const tensor::Int4Packing packing = int4_packing(format_);
    const auto groups = static_cast<std::size_t>(size.groups());
    std::vector<std::uint8_t> codes(values_.size());
    tensor::unpack_int4_weight(packing, size, bytes<std::int32_t>(weight), codes).value();
    std::vector<std::uint8_t> zeros(static_cast<std::size_t>(rows_) * groups, 8);
    if (const ExpertTensor* tensor = find(projection_, TensorRole::kZeros)) {
      tensor::unpack_int4_zeros(packing, size, bytes<std::int32_t>(*tensor), zeros).value();
    }
    const std::vector<float> stored = floats(of(TensorRole::kScale));
    std::vector<float> scales(stored.size());
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t g = 0; g < size.groups(); ++g) {
        scales[static_cast<std::size_t>(r * size.groups() + g)] =
            stored[static_cast<std::size_t>(tensor::int4_scale_index(packing, size, r, g))];
      }
    }
    const ExpertTensor* index = find(projection_, TensorRole::kGroupIndex);
    const auto group_index =
        index == nullptr ? std::span<const std::int32_t>() : bytes<std::int32_t>(*index);
    tensor::decode_int4(size, {codes, scales, zeros, group_index}, values_).value();
  }

  ExpertFormat format_;
  const Tensors& tensors_;
  std::int64_t expert_;
  std::vector<ExpertTensor> list_;
  Projection projection_ = Projection::kGate;
  std::int64_t rows_ = 0, columns_ = 0, whole_rows_ = 0, step_ = 1, first_ = 0;
  std::vector<float> values_;
};

}  // namespace holdfast::experts::testing
