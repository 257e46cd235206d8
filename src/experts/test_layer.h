// One experts layer in a registry of its own, with checkpoint tensors made from a seed: what the
// tests and benchmarks of the backends run on. Loads as a transaction does (resident parameters,
// derivations slice by slice, constants), without one. One thread.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/assert.h"
#include "experts/experts.h"
#include "experts/test_operands.h"
#include "experts/test_tensors.h"
#include "ops/host_tensor.h"
#include "storage/registry.h"

namespace holdfast::experts::testing {

class TestLayer {
 public:
  TestLayer(ExpertsBackendKind kind, config::ExpertScheme scheme, const ExpertsShape& shape,
            int workers = 1)
      : TestLayer(kind, format_of(scheme), shape, workers) {}
  TestLayer(ExpertsBackendKind kind, const config::ExpertFormat& format, const ExpertsShape& shape,
            int workers = 1, const config::SwigluConfig& swiglu = {})
      : TestLayer(kind, ExpertsSpec{.slot_prefix = "layers.0.experts",
                                    .parameter_prefix = kTestPrefix,
                                    .format = format,
                                    .tensors = tensors_of(format, shape),
                                    .shape = shape,
                                    .swiglu = swiglu},
                  workers) {}
  TestLayer(ExpertsBackendKind kind, const ExpertsSpec& spec, int workers = 1)
      : runner_(ops::make_cpu_fast_kernels(), workers), shape_(spec.shape), spec_(spec) {
    backend_ = make_experts_backend(kind);
    backend_->define_workspace(registry_, shape_).value();
    layer_ = backend_->define(registry_, spec_).value();
    operands_ = define_operands(registry_, shape_);
    registry_.seal(runner_.device()).value();
  }
  ~TestLayer() { registry_.close(); }

  void load(const Tensors& tensors) { try_load(tensors).value(); }
  // Errors: those of the derivations.
  Status try_load(const Tensors& tensors) {
    for (device::Arena* arena : registry_.versioned_arenas()) {
      HF_TRY(arena->protect(device::Protection::kReadWrite));
    }
    for (const storage::ParameterSpec& parameter : registry_.parameters()) {
      if (parameter.slot) copy(tensor_of(tensors, parameter), registry_.view(*parameter.slot));
    }
    for (const storage::Slot& slot : registry_.slots()) {
      const auto value = registry_.constant_value(slot.id);
      if (!value.empty()) {
        std::memcpy(registry_.view(slot.id).address, value.data(), value.size());
      }
    }
    for (const storage::Derivation& derivation : registry_.derivations()) {
      for (std::int64_t i = 0; i < derivation.slice_count; ++i) {
        HF_TRY(derive(tensors, derivation, i));
      }
    }
    for (device::Arena* arena : registry_.versioned_arenas()) {
      HF_TRY(arena->protect(device::Protection::kReadOnly));
    }
    return {};
  }

  // Overwrites a constant in memory, as a commit would.
  void set_constant(const std::string& name, float value) {
    const storage::SlotId slot = registry_.find_slot("layers.0.experts." + name).value();
    device::Arena& arena = registry_.arena_of(slot);
    arena.protect(device::Protection::kReadWrite).value();
    const auto view = registry_.view(slot);
    std::fill_n(view.as<float>(), view.shape.element_count(), value);
    arena.protect(device::Protection::kReadOnly).value();
  }

  // Operands of a step of rows [begin, begin + count); the active count is in memory.
  ExpertsArgs args(std::int64_t begin, std::int64_t count) const {
    return rows_of(registry_, operands_, begin, count);
  }
  Status forward(std::int64_t begin, std::int64_t count) {
    return layer_->forward(runner_.context(), args(begin, count));
  }

  // Random rows, distinct experts per row, weights that sum to 1; out is poison, all rows active.
  void randomize_rows(std::uint64_t seed) {
    base::Rng rng(seed);
    for (float& value : floats(operands_.x)) value = ops::testing::random_float(rng, 1.0f);
    for (float& value : floats(operands_.residual)) value = ops::testing::random_float(rng, 1.0f);
    for (std::int64_t r = 0; r < shape_.max_rows; ++r) randomize_route(rng, r);
    poison_out();
    set_active(static_cast<std::int32_t>(shape_.max_rows));
  }
  void poison_out() {
    const tensor::TensorView out = view(operands_.out);
    std::memset(out.address, std::to_integer<int>(device::kPoisonByte), out.bytes());
  }
  void set_active(std::int32_t count) { *view(operands_.active_rows).as<std::int32_t>() = count; }

  std::span<float> x() { return floats(operands_.x); }
  std::span<float> out() { return floats(operands_.out); }
  std::span<float> residual() { return floats(operands_.residual); }
  std::span<float> weights() { return floats(operands_.weights); }
  std::span<std::int32_t> ids() {
    return {view(operands_.ids).as<std::int32_t>(), view(operands_.ids).bytes() / 4};
  }
  const ExpertsShape& shape() const { return shape_; }
  ops::testing::Runner& runner() { return runner_; }
  storage::Registry& registry() { return registry_; }
  const ExpertsLayer& layer() const { return *layer_; }

 private:
  tensor::TensorView view(storage::SlotId slot) const { return registry_.view(slot); }
  std::span<float> floats(storage::SlotId slot) const {
    return {view(slot).as<float>(), view(slot).bytes() / sizeof(float)};
  }
  static const HostTensor& tensor_of(const Tensors& tensors,
                                     const storage::ParameterSpec& parameter) {
    return tensors.at(parameter.name.substr(std::strlen(kTestPrefix) + 1));
  }
  static void copy(const HostTensor& from, const tensor::TensorView& to) {
    HF_ASSERT(from.view().shape == to.shape && from.view().dtype == to.dtype, "test tensor fits");
    std::memcpy(to.address, from.view().address, from.bytes());
  }
  Status derive(const Tensors& tensors, const storage::Derivation& derivation,
                std::int64_t slice) {
    const auto sliced = [&](const tensor::TensorView& view) {
      return derivation.slice_count > 1 ? view.rows(slice, 1) : view;
    };
    std::vector<tensor::TensorView> inputs;
    std::vector<tensor::TensorView> outputs;
    for (const storage::DeriveInput& input : derivation.inputs) {
      if (const auto* slot = std::get_if<storage::SlotId>(&input)) {
        inputs.push_back(registry_.view(*slot));
      } else {
        const auto id = std::get<storage::ParameterId>(input);
        inputs.push_back(
            sliced(tensor_of(tensors, registry_.parameters()[id.index()]).view()));
      }
    }
    for (const storage::SlotId id : derivation.outputs) {
      outputs.push_back(sliced(registry_.view(id)));
    }
    return derivation.function(runner_.stream(), inputs, outputs);
  }
  void randomize_route(base::Rng& rng, std::int64_t row) {
    const std::int64_t k = shape_.experts_per_token;
    std::vector<std::int32_t> order(static_cast<std::size_t>(shape_.expert_count));
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int32_t>(e);
    for (std::int64_t i = 0; i < k; ++i) {
      const auto left = static_cast<std::uint64_t>(shape_.expert_count - i);
      std::swap(order[i], order[i + static_cast<std::int64_t>(rng.next_below(left))]);
      ids()[row * k + i] = order[i];
      weights()[row * k + i] = static_cast<float>(i + 1) * 2.0f / static_cast<float>(k * (k + 1));
    }
  }

  ops::testing::Runner runner_;
  ExpertsShape shape_;
  ExpertsSpec spec_;
  storage::Registry registry_;
  std::unique_ptr<ExpertsBackend> backend_;
  std::unique_ptr<ExpertsLayer> layer_;
  LayerOperands operands_;
};

}  // namespace holdfast::experts::testing
