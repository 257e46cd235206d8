// Checkpoint tensors of one experts layer in any format, made from a seed: what the tests and
// benchmarks of the backends load. Values; one thread.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "experts/experts.h"
#include "ops/host_tensor.h"

namespace holdfast::experts::testing {

using ops::testing::DType;
using ops::testing::HostTensor;
using ops::testing::Shape;

// Checkpoint tensors of all experts together, by name without prefix: "gate_up_proj_blocks", ...
using Tensors = std::map<std::string, HostTensor>;

inline constexpr const char* kTestPrefix = "model.layers.0.mlp.experts";

// What the checkpoint publishes for a layer of this format.
inline std::vector<config::ExpertTensor> tensors_of(const config::ExpertFormat& format,
                                                    const ExpertsShape& shape) {
  const bool gpt_oss = format.dialect == config::ExpertDialect::kGptOssHub ||
                       format.dialect == config::ExpertDialect::kGptOssOriginal;
  config::ModelConfig config;
  config.architecture =
      gpt_oss ? config::Architecture::kGptOss : config::Architecture::kQwen3Moe;
  config.hidden_size = shape.hidden_size;
  config.intermediate_size = shape.intermediate_size;
  config.expert_count = shape.expert_count;
  config.expert_format = format;
  return config::expert_tensors(config).value();
}

// Values so that sums stay near 1: codes are random, NaN apart, and the scales small.
class TensorMaker {
 public:
  TensorMaker(const config::ExpertFormat& format, std::uint64_t seed)
      : format_(format), seed_(seed), rng_(seed) {}

  HostTensor make(const config::ExpertTensor& tensor, std::int64_t experts) {
    std::vector<std::int64_t> dims{experts};
    dims.insert(dims.end(), tensor.shape.dims().begin(), tensor.shape.dims().end());
    HostTensor out(tensor.dtype, Shape::from_dims(dims).value());
    switch (tensor.role) {
      case config::TensorRole::kWeight: fill_weight(tensor, out); break;
      case config::TensorRole::kScale: fill_scale(out); break;
      case config::TensorRole::kGlobalScale: fill_floats(out, 1.0f / 512, 1.0f / 256); break;
      case config::TensorRole::kInputScale:
        if (format_.activations == config::ActivationScheme::kNvfp4) {
          fill_floats(out, 1.0f / 2688, 2.0f / 2688);
        } else {
          fill_floats(out, 1.0f / 256, 1.0f / 128);
        }
        break;
      case config::TensorRole::kZeros: fill_bytes(out); break;
      case config::TensorRole::kGroupIndex: fill_group_index(out, experts); break;
      case config::TensorRole::kShape: break;
      case config::TensorRole::kBias: fill_floats(out, -1.0f, 1.0f); break;
    }
    return out;
  }

 private:
  void fill_bytes(HostTensor& out) {
    for (auto& byte : out.as<std::uint8_t>()) byte = static_cast<std::uint8_t>(rng_.next());
  }
  void fill_floats(HostTensor& out, float low, float high) {
    const bool scale = low > 0.0f;
    const bool divides =
        scale && format_.dialect == config::ExpertDialect::kCompressedNvfp4;
    for (std::int64_t i = 0; i < out.view().shape.element_count(); ++i) {
      const float value = low + static_cast<float>(rng_.next_unit()) * (high - low);
      store(out, i, divides ? 1.0f / value : value);
    }
  }
  static void store(HostTensor& out, std::int64_t i, float value) {
    const auto at = static_cast<std::size_t>(i);
    if (out.view().dtype == DType::kF32) out.as<float>()[at] = value;
    if (out.view().dtype == DType::kBF16) out.as<std::uint16_t>()[at] = tensor::f32_to_bf16(value);
    if (out.view().dtype == DType::kF16) out.as<std::uint16_t>()[at] = tensor::f32_to_f16(value);
  }
  void fill_weight(const config::ExpertTensor& tensor, HostTensor& out) {
    if (tensor.dtype == DType::kF8E4M3) {
      fill_bytes(out);
      for (auto& byte : out.as<std::uint8_t>()) {
        if ((byte & 0x7F) == 0x7F) byte ^= 1;
      }
    } else if (tensor.dtype == DType::kU8 || tensor.dtype == DType::kI32) {
      fill_bytes(out);
    } else {
      const std::int64_t columns = tensor.shape[tensor.input_major ? 0 : 1];
      const float range = 2.0f / std::sqrt(static_cast<float>(columns));
      fill_floats(out, -range, range);
    }
  }
  void fill_scale(HostTensor& out) {
    if (out.view().dtype == DType::kU8) {  // e8m0
      const bool wide = format_.scheme == config::ExpertScheme::kMxfp8;
      for (auto& byte : out.as<std::uint8_t>()) {
        byte = static_cast<std::uint8_t>((wide ? 111 : 118) + rng_.next_below(5));
      }
    } else if (out.view().dtype == DType::kF8E4M3) {  // 2 to 30
      for (auto& byte : out.as<std::uint8_t>()) {
        byte = static_cast<std::uint8_t>(0x40 + rng_.next_below(0x20));
      }
    } else if (format_.scheme == config::ExpertScheme::kInt4) {
      fill_floats(out, 1.0f / 128, 1.0f / 32);
    } else {
      fill_floats(out, 1.0f / 4096, 1.0f / 2048);
    }
  }
  // One order for gate and up, each expert another.
  void fill_group_index(HostTensor& out, std::int64_t experts) {
    const auto values = out.as<std::int32_t>();
    const auto columns = static_cast<std::int64_t>(values.size()) / experts;
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto row = values.subspan(static_cast<std::size_t>(e * columns),
                                      static_cast<std::size_t>(columns));
      for (std::int64_t k = 0; k < columns; ++k) {
        row[static_cast<std::size_t>(k)] = static_cast<std::int32_t>(k / format_.group_size);
      }
      if (!format_.act_order) continue;
      base::Rng rng(seed_ * 1000003 + static_cast<std::uint64_t>(e * columns));
      for (std::size_t k = row.size() - 1; k > 0; --k) {
        std::swap(row[k], row[static_cast<std::size_t>(rng.next_below(k + 1))]);
      }
    }
  }

  config::ExpertFormat format_;
  std::uint64_t seed_;
  base::Rng rng_;
};

inline Tensors make_tensors(const config::ExpertFormat& format, const ExpertsShape& shape,
                            std::uint64_t seed) {
  TensorMaker maker(format, seed);
  Tensors tensors;
  for (const config::ExpertTensor& tensor : tensors_of(format, shape)) {
    HostTensor made = maker.make(tensor, shape.expert_count);
    if (tensor.role == config::TensorRole::kShape) {
      const bool down = tensor.projection == config::Projection::kDown;
      for (std::int64_t e = 0; e < shape.expert_count; ++e) {
        const auto stated = made.as<std::int64_t>().subspan(static_cast<std::size_t>(2 * e), 2);
        stated[0] = down ? shape.hidden_size : shape.intermediate_size;
        stated[1] = down ? shape.intermediate_size : shape.hidden_size;
      }
    }
    tensors.emplace(tensor.name, std::move(made));
  }
  return tensors;
}

inline config::ExpertFormat format_of(config::ExpertScheme scheme) { return {.scheme = scheme}; }
inline Tensors make_mxfp4_tensors(const ExpertsShape& shape, std::uint64_t seed) {
  return make_tensors(format_of(config::ExpertScheme::kMxfp4), shape, seed);
}
inline Tensors make_bf16_tensors(const ExpertsShape& shape, std::uint64_t seed) {
  return make_tensors(format_of(config::ExpertScheme::kBF16), shape, seed);
}

}  // namespace holdfast::experts::testing
