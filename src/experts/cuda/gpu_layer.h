// One experts layer on a GPU, its weights and rows copied from host tensors: what the tests of the
// CUDA kernels run. Loads as a transaction does: resident parameters, derivations on the host,
// constants; all else is poisoned. Tests only; one thread.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/cuda_test_device.h"
#include "experts/test_layer.h"

namespace holdfast::experts::testing {

class GpuLayer {
 public:
  GpuLayer(device::Device& device, const config::ExpertFormat& format, const ExpertsShape& shape,
           const config::SwigluConfig& swiglu = {})
      : GpuLayer(device, ExpertsSpec{.slot_prefix = "layers.0.experts",
                                     .parameter_prefix = kTestPrefix,
                                     .format = format,
                                     .tensors = tensors_of(format, shape),
                                     .shape = shape,
                                     .swiglu = swiglu}) {}
  explicit GpuLayer(device::Device& device, const ExpertsSpec& spec,
                    ExpertsBackendKind kind = ExpertsBackendKind::kHoldfast)
      : device_(device),
        stream_(device.create_stream().value()),
        kernels_(ops::make_cuda_kernels()),
        shape_(spec.shape) {
    backend_ = make_experts_backend(kind, device::DeviceKind::kCuda);
    backend_->define_workspace(registry_, shape_).value();
    layer_ = backend_->define(registry_, spec).value();
    operands_ = define_operands(registry_, shape_);
    registry_.seal(device).value();
  }
  ~GpuLayer() { registry_.close(); }

  void load(const Tensors& tensors) { try_load(tensors).value(); }
  // Errors: those of the derivations.
  Status try_load(const Tensors& tensors) {
    for (device::Arena* arena : registry_.versioned_arenas()) {
      HF_TRY(arena->protect(device::Protection::kReadWrite));
    }
    for (const storage::ParameterSpec& parameter : registry_.parameters()) {
      if (!parameter.slot) continue;
      const HostTensor& tensor = tensor_of(tensors, parameter);
      write(registry_.view(*parameter.slot), tensor.view().address, tensor.bytes());
    }
    for (const storage::Slot& slot : registry_.slots()) {
      const auto value = registry_.constant_value(slot.id);
      if (!value.empty()) write(registry_.view(slot.id), value.data(), value.size());
      if (!storage::is_versioned(slot.spec.slot_class)) poison(registry_.view(slot.id));
    }
    for (const storage::Derivation& derivation : registry_.derivations()) {
      for (std::int64_t i = 0; i < derivation.slice_count; ++i) {
        HF_TRY(derive(tensors, derivation, i));
      }
    }
    return {};
  }

  // Of all experts: "swiglu_alpha", or as the backend calls it.
  void set_constant(const std::string& name, float value) {
    const tensor::TensorView view =
        registry_.view(registry_.find_slot("layers.0.experts." + name).value());
    const std::vector<float> values(static_cast<std::size_t>(view.shape.element_count()), value);
    write(view, reinterpret_cast<const std::byte*>(values.data()), view.bytes());
  }

  // Rows [begin, begin + count) of what `cpu` holds; gives their out, poisoned before.
  std::vector<float> forward(TestLayer& cpu, std::int64_t begin, std::int64_t count) {
    const auto put = [&](auto values, storage::SlotId to) {
      const std::size_t width = values.size() / static_cast<std::size_t>(shape_.max_rows);
      const auto part = values.subspan(static_cast<std::size_t>(begin) * width,
                                       static_cast<std::size_t>(count) * width);
      write(registry_.view(to), reinterpret_cast<const std::byte*>(part.data()),
            part.size_bytes());
    };
    put(cpu.x(), operands_.x);
    put(cpu.ids(), operands_.ids);
    put(cpu.weights(), operands_.weights);
    put(cpu.residual(), operands_.residual);
    const auto active = static_cast<std::int32_t>(count);
    write(registry_.view(operands_.active_rows), reinterpret_cast<const std::byte*>(&active),
          sizeof(active));
    const tensor::TensorView all = registry_.view(operands_.out);
    poison(all);
    const ops::OpContext context{*stream_, *kernels_};
    layer_->forward(context, rows_of(registry_, operands_, 0, count)).value();
    stream_->synchronize().value();
    std::vector<float> out(static_cast<std::size_t>(count * shape_.hidden_size));
    device_.read(reinterpret_cast<std::byte*>(out.data()), all.address, out.size() * sizeof(float))
        .value();
    return out;
  }

 private:
  void write(const tensor::TensorView& to, const std::byte* from, std::size_t bytes) {
    device_.write(to.address, from, bytes).value();
  }
  void poison(const tensor::TensorView& view) {
    const std::vector<std::byte> bytes(view.bytes(), device::kPoisonByte);
    write(view, bytes.data(), bytes.size());
  }
  static const HostTensor& tensor_of(const Tensors& tensors,
                                     const storage::ParameterSpec& parameter) {
    return tensors.at(parameter.name.substr(std::strlen(kTestPrefix) + 1));
  }
  // On copies that the host can follow, as reload/derive.cc.
  Status derive(const Tensors& tensors, const storage::Derivation& derivation,
                std::int64_t slice) {
    const auto sliced = [&](const tensor::TensorView& view) {
      return derivation.slice_count > 1 ? view.rows(slice, 1) : view;
    };
    std::vector<std::vector<std::byte>> buffers;
    buffers.reserve(derivation.inputs.size() + derivation.outputs.size());
    const auto on_host = [&](tensor::TensorView view) {
      buffers.emplace_back(view.bytes());
      view.address = buffers.back().data();
      return view;
    };
    std::vector<tensor::TensorView> inputs, outputs;
    for (const storage::DeriveInput& input : derivation.inputs) {
      if (const auto* slot = std::get_if<storage::SlotId>(&input)) {
        const tensor::TensorView from = registry_.view(*slot);
        inputs.push_back(on_host(from));
        HF_TRY(device_.read(inputs.back().address, from.address, from.bytes()));
      } else {
        const auto id = std::get<storage::ParameterId>(input);
        inputs.push_back(sliced(tensor_of(tensors, registry_.parameters()[id.index()]).view()));
      }
    }
    for (const storage::SlotId id : derivation.outputs) {
      outputs.push_back(on_host(sliced(registry_.view(id))));
    }
    HF_TRY(derivation.function(*stream_, inputs, outputs));
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const tensor::TensorView to = sliced(registry_.view(derivation.outputs[i]));
      write(to, outputs[i].address, outputs[i].bytes());
    }
    return {};
  }
  device::Device& device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<ops::Kernels> kernels_;
  ExpertsShape shape_;
  storage::Registry registry_;
  std::unique_ptr<ExpertsBackend> backend_;
  std::unique_ptr<ExpertsLayer> layer_;
  LayerOperands operands_;
};

// Largest |a - b| / (1 + |b|); infinite when something is no number.
inline double worst(const std::vector<float>& a, std::span<const float> b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference =
        std::abs(double{a[i]} - double{b[i]}) / (1.0 + std::abs(double{b[i]}));
    most = std::isfinite(difference) ? std::max(most, difference) : INFINITY;
  }
  return most;
}

// How far `kind`'s layer of MXFP4 is from the CPU's reference where scales are far apart, above and
// below 128: gate_up stays small, down spans the range.
inline double worst_of_far_scales(device::Device& device, ExpertsBackendKind kind) {
  const ExpertsShape shape{2, 1, 32, 32, 2};
  const config::ExpertFormat format = format_of(config::ExpertScheme::kMxfp4);
  Tensors tensors = make_mxfp4_tensors(shape, 9);
  auto scales = tensors.at("down_proj_scales").as<std::uint8_t>();
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<std::uint8_t>(i % 2 == 0 ? 20 + i : 120 + i % 64);
  }
  TestLayer reference(ExpertsBackendKind::kReference, config::ExpertScheme::kMxfp4, shape);
  reference.load(tensors);
  reference.randomize_rows(10);
  GpuLayer layer(device,
                 ExpertsSpec{.slot_prefix = "layers.0.experts",
                             .parameter_prefix = kTestPrefix,
                             .format = format,
                             .tensors = tensors_of(format, shape),
                             .shape = shape},
                 kind);
  layer.load(tensors);
  reference.forward(0, 2).value();
  return worst(layer.forward(reference, 0, 2), reference.out());
}

}  // namespace holdfast::experts::testing
