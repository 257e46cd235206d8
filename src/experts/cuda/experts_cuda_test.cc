// The experts on the GPU against the CPU's reference loops, at the tile borders of pairs per
// expert; and the bits of a row alone and among others.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/cuda_test_device.h"
#include "experts/test_layer.h"

namespace holdfast::experts::testing {
namespace {

const config::ExpertFormat kFormat = format_of(config::ExpertScheme::kMxfp4);

// The same layer as TestLayer, its weights and rows copied from one.
class GpuLayer {
 public:
  GpuLayer(device::Device& device, const ExpertsShape& shape)
      : device_(device),
        stream_(device.create_stream().value()),
        kernels_(ops::make_cuda_kernels()),
        shape_(shape) {
    backend_ = make_experts_backend(ExpertsBackendKind::kHoldfast, device::DeviceKind::kCuda);
    backend_->define_workspace(registry_, shape).value();
    layer_ = backend_
                 ->define(registry_, ExpertsSpec{.slot_prefix = "layers.0.experts",
                                                 .parameter_prefix = "model.layers.0.mlp.experts",
                                                 .format = kFormat,
                                                 .tensors = tensors_of(kFormat, shape),
                                                 .shape = shape})
                 .value();
    const std::int64_t n = shape.max_rows;
    x_ = operand("x", DType::kF32, {n, shape.hidden_size});
    ids_ = operand("ids", DType::kI32, {n, shape.experts_per_token});
    weights_ = operand("weights", DType::kF32, {n, shape.experts_per_token});
    residual_ = operand("residual", DType::kF32, {n, shape.hidden_size});
    out_ = operand("out", DType::kF32, {n, shape.hidden_size});
    active_ = operand("active_rows", DType::kI32, {1});
    registry_.seal(device).value();
  }
  ~GpuLayer() { registry_.close(); }

  void load(const Tensors& tensors) {
    for (device::Arena* arena : registry_.versioned_arenas()) {
      arena->protect(device::Protection::kReadWrite).value();
    }
    for (const storage::ParameterSpec& parameter : registry_.parameters()) {
      const HostTensor& tensor =
          tensors.at(parameter.name.substr(parameter.name.rfind('.') + 1));
      write(registry_.view(*parameter.slot), tensor.view().address, tensor.bytes());
    }
    for (const std::string& name : layer_->constant_slots()) {
      const storage::SlotId slot = registry_.find_slot(name).value();
      const auto value = registry_.constant_value(slot);
      write(registry_.view(slot), value.data(), value.size());
    }
  }

  // Rows [begin, begin + count) of what `cpu` holds; gives their out.
  std::vector<float> forward(TestLayer& cpu, std::int64_t begin, std::int64_t count) {
    const auto rows_of = [&](auto values, storage::SlotId to) {
      const std::size_t width = values.size() / static_cast<std::size_t>(shape_.max_rows);
      const auto part = values.subspan(static_cast<std::size_t>(begin) * width,
                                       static_cast<std::size_t>(count) * width);
      write(registry_.view(to), reinterpret_cast<const std::byte*>(part.data()),
            part.size_bytes());
    };
    rows_of(cpu.x(), x_);
    rows_of(cpu.ids(), ids_);
    rows_of(cpu.weights(), weights_);
    rows_of(cpu.residual(), residual_);
    const auto active = static_cast<std::int32_t>(count);
    write(registry_.view(active_), reinterpret_cast<const std::byte*>(&active), sizeof(active));
    const auto view = [&](storage::SlotId slot) { return registry_.view(slot).rows(0, count); };
    const ops::OpContext context{*stream_, *kernels_};
    layer_->forward(context, {.x = view(x_), .ids = view(ids_), .weights = view(weights_),
                              .residual = view(residual_), .out = view(out_),
                              .active_rows = registry_.view(active_)})
        .value();
    stream_->synchronize().value();
    std::vector<float> out(static_cast<std::size_t>(count * shape_.hidden_size));
    device_.read(reinterpret_cast<std::byte*>(out.data()), registry_.view(out_).address,
                 out.size() * sizeof(float))
        .value();
    return out;
  }

 private:
  void write(const tensor::TensorView& to, const std::byte* from, std::size_t bytes) {
    device_.write(to.address, from, bytes).value();
  }
  storage::SlotId operand(const char* name, DType dtype, const Shape& shape) {
    return registry_
        .define(storage::SlotSpec{.name = name,
                                  .slot_class = storage::SlotClass::kInput,
                                  .dtype = dtype,
                                  .shape = shape,
                                  .arena = {}})
        .value();
  }

  device::Device& device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<ops::Kernels> kernels_;
  ExpertsShape shape_;
  storage::Registry registry_;
  std::unique_ptr<ExpertsBackend> backend_;
  std::unique_ptr<ExpertsLayer> layer_;
  storage::SlotId x_, ids_, weights_, residual_, out_, active_;
};

double worst(const std::vector<float>& a, std::span<const float> b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference =
        std::abs(double{a[i]} - double{b[i]}) / (1.0 + std::abs(double{b[i]}));
    most = std::isfinite(difference) ? std::max(most, difference) : INFINITY;
  }
  return most;
}

void check(device::Device& gpu, const ExpertsShape& shape, std::uint64_t seed) {
  const Tensors tensors = make_mxfp4_tensors(shape, seed);
  TestLayer cpu(ExpertsBackendKind::kReference, config::ExpertScheme::kMxfp4, shape);
  cpu.load(tensors);
  cpu.randomize_rows(seed + 1);
  GpuLayer layer(gpu, shape);
  layer.load(tensors);
  cpu.forward(0, shape.max_rows).value();
  const std::vector<float> all = layer.forward(cpu, 0, shape.max_rows);
  // Sums of products in f32 from x in two bf16 halves, 2^-16 relative each.
  EXPECT_LT(worst(all, cpu.out()), 1e-4) << shape.expert_count << " experts, " << shape.max_rows
                                         << " rows, " << shape.hidden_size;
  const auto width = static_cast<std::size_t>(shape.hidden_size);
  for (const std::int64_t row : {std::int64_t{0}, shape.max_rows / 2, shape.max_rows - 1}) {
    const std::vector<float> alone = layer.forward(cpu, row, 1);
    for (std::size_t i = 0; i < width; ++i) {
      ASSERT_EQ(alone[i], all[static_cast<std::size_t>(row) * width + i]) << "row " << row;
    }
  }
}

TEST(CudaExperts, AgreeWithTheReferenceAndDoNotSeeOtherRows) {
  HF_GPU_OR_SKIP(gpu);
  check(gpu, {8, 2, 64, 96, 1}, 1);
  check(gpu, {8, 4, 96, 64, 9}, 2);
  check(gpu, {4, 2, 160, 64, 70}, 3);
  check(gpu, {2, 2, 64, 64, 150}, 4);
  check(gpu, {40, 3, 128, 160, 33}, 5);
  check(gpu, {4, 4, 2880, 2880, 3}, 6);
}

TEST(CudaExperts, EveryScaleDecodesExactly) {
  HF_GPU_OR_SKIP(gpu);
  const ExpertsShape shape{2, 1, 32, 32, 2};
  Tensors tensors = make_mxfp4_tensors(shape, 9);
  // Scales far apart, above and below 128: gate_up stays small, down spans the range.
  auto scales = tensors.at("down_proj_scales").as<std::uint8_t>();
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<std::uint8_t>(i % 2 == 0 ? 20 + i : 120 + i % 64);
  }
  TestLayer cpu(ExpertsBackendKind::kReference, config::ExpertScheme::kMxfp4, shape);
  cpu.load(tensors);
  cpu.randomize_rows(10);
  GpuLayer layer(gpu, shape);
  layer.load(tensors);
  cpu.forward(0, 2).value();
  EXPECT_LT(worst(layer.forward(cpu, 0, 2), cpu.out()), 1e-4);
}

}  // namespace
}  // namespace holdfast::experts::testing
