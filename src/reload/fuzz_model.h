// A small sealed registry and its tensors, for the fuzz targets of reload. One thread.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "device/cpu/cpu_device.h"
#include "reload/source.h"
#include "reload/transaction.h"
#include "storage/registry.h"

namespace holdfast::reload::fuzz {

// A weight that two parameters share, and a derived slot packed from three experts' rows.
struct Model {
  Model() {
    const auto pair = registry
                          .define({.name = "layers.0.pair",
                                   .dtype = tensor::DType::kBF16,
                                   .shape = {4, 2},
                                   .arena = {}})
                          .value();
    bind("model.layers.0.a.weight", tensor::DType::kBF16, {3, 2}, pair, 0);
    bind("model.layers.0.b.weight", tensor::DType::kBF16, {1, 2}, pair, 12);
    const auto packed = registry
                            .define({.name = "layers.0.experts.packed",
                                     .slot_class = storage::SlotClass::kDerived,
                                     .dtype = tensor::DType::kU8,
                                     .shape = {3, 6},
                                     .arena = {}})
                            .value();
    const auto blocks = bind("model.layers.0.experts.w_blocks", tensor::DType::kU8, {3, 4}, {}, 0);
    const auto scales = bind("model.layers.0.experts.w_scales", tensor::DType::kU8, {3, 2}, {}, 0);
    registry
        .derive({.name = "layers.0.experts.pack",
                 .inputs = {blocks, scales},
                 .outputs = {packed},
                 .slice_count = 3,
                 .function = [](device::Stream&, std::span<const tensor::TensorView> in,
                                std::span<const tensor::TensorView> out) -> Status {
                   std::memcpy(out[0].address, in[0].address, in[0].bytes());
                   std::memcpy(out[0].address + in[0].bytes(), in[1].address, in[1].bytes());
                   return {};
                 }})
        .value();
    registry.seal(*device).value();
    stream = device->create_stream(1).value();
    for (const storage::ParameterSpec& spec : registry.parameters()) {
      manifest.tensors.push_back({.name = spec.name, .dtype = spec.dtype, .shape = spec.shape});
    }
    manifest.description = "fuzz";
  }

  std::unique_ptr<device::Device> device = device::make_cpu_device();
  storage::Registry registry;
  std::unique_ptr<device::Stream> stream;
  base::SteadyClock clock;
  Manifest manifest;  // exactly the model's tensors

 private:
  storage::ParameterId bind(std::string name, tensor::DType dtype, tensor::Shape shape,
                            std::optional<storage::SlotId> slot, std::size_t offset) {
    return registry
        .bind({.name = std::move(name),
               .dtype = dtype,
               .shape = shape,
               .slot = slot,
               .offset_bytes = offset,
               .expert_axis = !slot.has_value()})
        .value();
  }
};

// Numbers and choices drawn from a fuzzer's bytes; zeros once they are used up.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool done() const { return at_ >= size_; }
  std::uint8_t next() { return done() ? std::uint8_t{0} : data_[at_++]; }
  std::int64_t small() { return static_cast<std::int8_t>(next()) % 8; }
  std::string text() {
    std::string text;
    for (std::size_t left = next() % 16; left > 0; --left) text += static_cast<char>(next());
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace holdfast::reload::fuzz
