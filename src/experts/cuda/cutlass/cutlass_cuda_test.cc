// The grouped GEMM against the CPU's reference loops at the borders of its items (16, 32 and 64
// pairs of an expert), over poisoned scratch and outputs; and the bits of a row among any others.
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

class CutlassLayer {
 public:
  CutlassLayer(device::Device& device, const ExpertsShape& shape)
      : device_(device),
        stream_(device.create_stream().value()),
        kernels_(ops::make_cuda_kernels()),
        shape_(shape) {
    backend_ = make_experts_backend(ExpertsBackendKind::kCutlass, device::DeviceKind::kCuda);
    backend_->define_workspace(registry_, shape).value();
    layer_ = backend_
                 ->define(registry_, ExpertsSpec{.slot_prefix = "layers.0.experts",
                                                 .parameter_prefix = kTestPrefix,
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
  ~CutlassLayer() { registry_.close(); }

  // The slots of `cutlass` on the CPU, which are the same by name and byte; else poison.
  void load(TestLayer& cpu) {
    for (device::Arena* arena : registry_.versioned_arenas()) {
      arena->protect(device::Protection::kReadWrite).value();
    }
    int loaded = 0;
    for (const storage::Slot& slot : registry_.slots()) {
      const tensor::TensorView to = registry_.view(slot.id);
      const auto from = cpu.registry().find_slot(slot.spec.name);
      const bool versioned = slot.spec.name.starts_with("layers.0.experts.");
      loaded += versioned;
      if (!versioned) {
        write(to, std::vector<std::byte>(to.bytes(), std::byte{0xDD}).data(), to.bytes());
        continue;
      }
      ASSERT_TRUE(from.has_value()) << slot.spec.name;
      const tensor::TensorView packed = cpu.registry().view(*from);
      ASSERT_EQ(packed.shape, to.shape) << slot.spec.name;
      write(to, packed.address, packed.bytes());
    }
    EXPECT_EQ(loaded, 9);  // two products' codes, scales and biases, three constants
  }
  void set_constant(const std::string& name, float value) {
    const std::vector<float> values(static_cast<std::size_t>(shape_.expert_count), value);
    write(registry_.view(registry_.find_slot("layers.0.experts." + name).value()),
          reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float));
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
    const tensor::TensorView all = registry_.view(out_);
    write(all, std::vector<std::byte>(all.bytes(), std::byte{0xDD}).data(), all.bytes());
    const auto view = [&](storage::SlotId slot) { return registry_.view(slot).rows(0, count); };
    const ops::OpContext context{*stream_, *kernels_};
    layer_->forward(context, {.x = view(x_), .ids = view(ids_), .weights = view(weights_),
                              .residual = view(residual_), .out = view(out_),
                              .active_rows = registry_.view(active_)})
        .value();
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

// Sums of products in f32 from inputs in two bf16 halves, 2^-16 relative each.
constexpr double kBound = 1e-4;

struct Layers {
  TestLayer reference, packed;
  CutlassLayer gpu;

  Layers(device::Device& device, const ExpertsShape& shape, const Tensors& tensors,
         std::uint64_t seed)
      : reference(ExpertsBackendKind::kReference, config::ExpertScheme::kMxfp4, shape),
        packed(ExpertsBackendKind::kCutlass, config::ExpertScheme::kMxfp4, shape),
        gpu(device, shape) {
    reference.load(tensors);
    packed.load(tensors);
    reference.randomize_rows(seed);
    gpu.load(packed);
  }
};

void check(device::Device& device, const ExpertsShape& shape, std::uint64_t seed) {
  Layers layers(device, shape, make_mxfp4_tensors(shape, seed), seed + 1);
  layers.reference.forward(0, shape.max_rows).value();
  const std::vector<float> all = layers.gpu.forward(layers.reference, 0, shape.max_rows);
  EXPECT_LT(worst(all, layers.reference.out()), kBound)
      << shape.expert_count << " experts, " << shape.max_rows << " rows, " << shape.hidden_size;
  for (const std::int64_t count : {1, 2, 9, 16, 17, 33, 100}) {
    if (count > shape.max_rows) continue;
    const std::int64_t begin = (shape.max_rows - count) / 2;
    const std::vector<float> part = layers.gpu.forward(layers.reference, begin, count);
    for (std::size_t i = 0; i < part.size(); ++i) {
      ASSERT_EQ(part[i], all[static_cast<std::size_t>(begin * shape.hidden_size) + i])
          << count << " rows from " << begin << ", element " << i;
    }
  }
}

TEST(CudaCutlassExperts, AgreeWithTheReferenceAndDoNotSeeOtherRows) {
  HF_GPU_OR_SKIP(gpu);
  check(gpu, {8, 2, 64, 96, 1}, 1);
  check(gpu, {8, 4, 96, 64, 9}, 2);
  check(gpu, {4, 2, 160, 64, 70}, 3);
  check(gpu, {3, 2, 544, 416, 140}, 4);
  check(gpu, {2, 2, 64, 64, 200}, 5);
  check(gpu, {40, 3, 128, 160, 33}, 6);
}

TEST(CudaCutlassExperts, AgreeAtTheSizeOfGptOss2880) {
  HF_GPU_OR_SKIP(gpu);
  check(gpu, {4, 4, 2880, 2880, 3}, 7);
}

TEST(CudaCutlassExperts, EveryScaleDecodesExactly) {
  HF_GPU_OR_SKIP(gpu);
  const ExpertsShape shape{2, 1, 32, 32, 2};
  Tensors tensors = make_mxfp4_tensors(shape, 9);
  // Scales far apart, above and below 128: gate_up stays small, down spans the range.
  auto scales = tensors.at("down_proj_scales").as<std::uint8_t>();
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<std::uint8_t>(i % 2 == 0 ? 20 + i : 120 + i % 64);
  }
  Layers layers(gpu, shape, tensors, 10);
  layers.reference.forward(0, 2).value();
  EXPECT_LT(worst(layers.gpu.forward(layers.reference, 0, 2), layers.reference.out()), kBound);
}

TEST(CudaCutlassExperts, ConstantsAreReadFromMemoryAtEachLaunch) {
  HF_GPU_OR_SKIP(gpu);
  const ExpertsShape shape{4, 2, 64, 64, 5};
  Layers layers(gpu, shape, make_mxfp4_tensors(shape, 11), 12);
  const std::vector<float> before = layers.gpu.forward(layers.reference, 0, 5);
  struct Change {
    const char* reference;
    const char* cutlass;
    float value;
  };
  for (const auto& [reference, cutlass, value] : {Change{"swiglu_alpha", "gemm1_alpha", 0.5f},
                                                  {"swiglu_beta", "gemm1_beta", -0.25f},
                                                  {"swiglu_limit", "gemm1_clamp_limit", 0.125f}}) {
    layers.reference.set_constant(reference, value);
    layers.gpu.set_constant(cutlass, value);
    layers.reference.poison_out();
    layers.reference.forward(0, 5).value();
    const std::vector<float> after = layers.gpu.forward(layers.reference, 0, 5);
    EXPECT_LT(worst(after, layers.reference.out()), kBound) << cutlass;
    EXPECT_NE(after, before) << cutlass;
  }
}

// A row whose ids are no experts', and rows beyond the active ones.
TEST(CudaCutlassExperts, WhatHasNoExpertOrIsNotActiveIsLeftOut) {
  HF_GPU_OR_SKIP(gpu);
  const ExpertsShape shape{4, 2, 64, 64, 6};
  Layers layers(gpu, shape, make_mxfp4_tensors(shape, 13), 14);
  for (const std::size_t pair : {0u, 1u, 4u, 11u}) {
    layers.reference.ids()[pair] = pair % 2 == 0 ? -1 : 4;
  }
  layers.reference.poison_out();
  layers.reference.forward(0, 6).value();
  const std::vector<float> out = layers.gpu.forward(layers.reference, 0, 6);
  EXPECT_LT(worst(out, layers.reference.out()), kBound);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], layers.reference.residual()[i]);
}

}  // namespace
}  // namespace holdfast::experts::testing
