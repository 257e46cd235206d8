// The grouped GEMM against the CPU's reference loops at the borders of its items (16, 32 and 64
// pairs of an expert), over poisoned scratch and outputs; and the bits of a row among any others.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "experts/cuda/gpu_layer.h"

namespace holdfast::experts::testing {
namespace {

const config::ExpertFormat kFormat = format_of(config::ExpertScheme::kMxfp4);

ExpertsSpec spec_of(const ExpertsShape& shape) {
  return {.slot_prefix = "layers.0.experts",
          .parameter_prefix = kTestPrefix,
          .format = kFormat,
          .tensors = tensors_of(kFormat, shape),
          .shape = shape};
}

// Sums of products in f32 from inputs in two bf16 halves, 2^-16 relative each.
constexpr double kBound = 1e-4;

struct Layers {
  TestLayer reference;
  GpuLayer gpu;

  Layers(device::Device& device, const ExpertsShape& shape, const Tensors& tensors,
         std::uint64_t seed)
      : reference(ExpertsBackendKind::kReference, config::ExpertScheme::kMxfp4, shape),
        gpu(device, spec_of(shape), ExpertsBackendKind::kCutlass) {
    reference.load(tensors);
    reference.randomize_rows(seed);
    gpu.load(tensors);
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
  EXPECT_LT(worst_of_far_scales(gpu, ExpertsBackendKind::kCutlass), kBound);
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
