// The experts on the GPU against the CPU's reference loops, at the tile borders of pairs per
// expert; and the bits of a row alone and among others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "experts/cuda/gpu_layer.h"

namespace holdfast::experts::testing {
namespace {

const config::ExpertFormat kFormat = format_of(config::ExpertScheme::kMxfp4);

void check(device::Device& gpu, const ExpertsShape& shape, std::uint64_t seed) {
  const Tensors tensors = make_mxfp4_tensors(shape, seed);
  TestLayer cpu(ExpertsBackendKind::kReference, config::ExpertScheme::kMxfp4, shape);
  cpu.load(tensors);
  cpu.randomize_rows(seed + 1);
  GpuLayer layer(gpu, kFormat, shape);
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
  check(gpu, {8, 8, 3072, 3008, 2}, 7);
  check(gpu, {12, 9, 64, 64, 2}, 8);
}

TEST(CudaExperts, OneRowLeavesOutWhatNoExpertIsNamedFor) {
  HF_GPU_OR_SKIP(gpu);
  for (const ExpertsShape& shape : {ExpertsShape{6, 4, 2880, 352, 1}, {6, 4, 3200, 64, 1}}) {
    const Tensors tensors = make_mxfp4_tensors(shape, 31);
    TestLayer cpu(ExpertsBackendKind::kReference, config::ExpertScheme::kMxfp4, shape);
    cpu.load(tensors);
    GpuLayer layer(gpu, kFormat, shape);
    layer.load(tensors);
    for (const std::vector<std::int32_t>& ids :
         {std::vector<std::int32_t>{-1, 4, 6, 2}, {5, INT32_MIN, 0, 1}, {-1, 6, -7, INT32_MAX}}) {
      cpu.randomize_rows(32);
      std::ranges::copy(ids, cpu.ids().begin());
      cpu.forward(0, 1).value();
      EXPECT_LT(worst(layer.forward(cpu, 0, 1), cpu.out()), 1e-4) << ids[0];
    }
  }
}

TEST(CudaExperts, EveryScaleDecodesExactly) {
  HF_GPU_OR_SKIP(gpu);
  EXPECT_LT(worst_of_far_scales(gpu, ExpertsBackendKind::kHoldfast), 1e-4);
}

// Quark's gpt-oss: gate and up are one matrix of an expert, and a row's codes have one dimension.
TEST(CudaExperts, QuarksCodesAreReadAsTheSameBlocks) {
  HF_GPU_OR_SKIP(gpu);
  const ExpertsShape shape{4, 2, 96, 64, 20};
  config::ModelConfig model;
  model.architecture = config::Architecture::kGptOss;
  model.hidden_size = shape.hidden_size;
  model.intermediate_size = shape.intermediate_size;
  model.expert_count = shape.expert_count;
  model.expert_format = {.scheme = config::ExpertScheme::kMxfp4,
                         .dialect = config::ExpertDialect::kMxfp4PerExpert};
  const ExpertsSpec spec{.slot_prefix = "layers.0.experts",
                         .parameter_prefix = kTestPrefix,
                         .format = model.expert_format,
                         .tensors = config::expert_tensors(model).value(),
                         .shape = shape};
  TensorMaker maker(spec.format, 21);
  Tensors tensors;
  for (const config::ExpertTensor& tensor : spec.tensors) {
    tensors.emplace(tensor.name, maker.make(tensor, shape.expert_count));
  }
  TestLayer cpu(ExpertsBackendKind::kReference, spec);
  cpu.load(tensors);
  cpu.randomize_rows(22);
  cpu.forward(0, shape.max_rows).value();
  GpuLayer layer(gpu, spec);
  layer.load(tensors);
  EXPECT_LT(worst(layer.forward(cpu, 0, shape.max_rows), cpu.out()), 1e-4);
}

}  // namespace
}  // namespace holdfast::experts::testing
