// Every scheme of weights and activations, in every dialect, on the GPU: against double precision
// over the codecs' decoders, against the CPU at the borders of pairs and columns, a row alone and
// among others, and the rounding of inputs bit for bit.
#include <gtest/gtest.h>

#include <cmath>

#include "device/arena.h"
#include "experts/cuda/gpu_layer.h"
#include "experts/cuda/scheme_kernels.h"
#include "experts/exact_layer.h"

namespace holdfast::experts::testing {
namespace {

// x is two bf16: what is left out of a term is 2^-16 of it at most. Weights that bf16 does not hold
// with their group's scale (f16, f32, and all that is read value by value) are two bf16 as well.
// Tensor cores add up in f32, but cut off instead of rounding.
constexpr Precision kOnGpu{.addition = 0x1p-22, .term = 0x1p-15};

void expect_row_alone(GpuLayer& layer, TestLayer& cpu, const std::vector<float>& all) {
  const auto width = static_cast<std::size_t>(cpu.shape().hidden_size);
  const std::int64_t n = cpu.shape().max_rows;
  for (const std::int64_t count : {std::int64_t{1}, std::min<std::int64_t>(n, 7)}) {
    for (const std::int64_t row : {std::int64_t{0}, (n - count) / 2, n - count}) {
      const std::vector<float> some = layer.forward(cpu, row, count);
      ASSERT_EQ(std::memcmp(some.data(), all.data() + static_cast<std::size_t>(row) * width,
                            some.size() * sizeof(float)), 0)
          << count << " rows from " << row;
    }
  }
}

void expect_within_bound(device::Device& gpu, const SchemeCase& c) {
  SCOPED_TRACE(c.name);
  const Tensors tensors = make_tensors(c.format, c.shape, 51);
  TestLayer cpu(ExpertsBackendKind::kReference, c.format, c.shape);
  cpu.load(tensors);
  cpu.randomize_rows(52);
  GpuLayer layer(gpu, c.format, c.shape);
  layer.load(tensors);
  const std::vector<float> out = layer.forward(cpu, 0, c.shape.max_rows);
  const Row exact = exact_forward(c, tensors, cpu, kOnGpu);
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(out[i], exact[i].value, exact[i].bound) << "element " << i;
    largest = std::max(largest, std::fabs(exact[i].value - cpu.residual()[i]));
  }
  EXPECT_GT(largest, 1e-3) << "the experts must matter";
  expect_row_alone(layer, cpu, out);
}

TEST(CudaSchemes, EachStaysWithinItsBoundOfDoublePrecisionAndDoesNotSeeOtherRows) {
  HF_GPU_OR_SKIP(gpu);
  for (const SchemeCase& c : scheme_cases()) expect_within_bound(gpu, c);
}

// What chooses the kernels besides the scheme: groups, dtypes of scales, and whole units or not;
// enough rows for more than 16 pairs of an expert.
TEST(CudaSchemes, EveryWayToReadASchemeStaysWithinItsBound) {
  HF_GPU_OR_SKIP(gpu);
  using A = config::ActivationScheme;
  using D = config::ExpertDialect;
  using S = config::ExpertScheme;
  const ExpertsShape wide{3, 2, 512, 256, 40};
  const auto grouped = [](D dialect, bool zeros, bool act_order, std::int64_t group) {
    auto format = int4(dialect, zeros, act_order,
                       dialect == D::kCompressedInt4 ? DType::kBF16 : DType::kF16);
    format.group_size = group;
    return format;
  };
  config::ExpertFormat f32_scales = grouped(D::kGptq, true, false, 128);
  f32_scales.scale_dtype = DType::kF32;
  config::ExpertFormat f32_ordered = grouped(D::kGptq, true, true, 128);
  f32_ordered.scale_dtype = DType::kF32;
  config::ExpertFormat bf16_blocks{S::kFp8Block, A::kNone, D::kFp8Block};
  bf16_blocks.scale_dtype = DType::kBF16;
  const SchemeCase cases[] = {
      {"compressed, 128", grouped(D::kCompressedInt4, false, false, 128), wide},
      {"compressed, zeros, 256", grouped(D::kCompressedInt4, true, false, 256), wide},
      {"compressed, zeros, 64", grouped(D::kCompressedInt4, true, false, 64), wide},
      {"compressed, act-order, 128", grouped(D::kCompressedInt4, true, true, 128), wide},
      {"gptq, 128", grouped(D::kGptq, false, false, 128), wide},
      {"gptq, 64", grouped(D::kGptq, true, false, 64), {3, 2, 320, 192, 40}},
      {"gptq, 16", grouped(D::kGptq, true, false, 16), {3, 2, 272, 144, 40}},
      {"gptq, f32 scales", f32_scales, wide},
      {"gptq, act-order, 128", grouped(D::kGptq, true, true, 128), wide},
      {"gptq, act-order, 8", grouped(D::kGptq, false, true, 8), {3, 2, 136, 72, 40}},
      {"gptq, act-order, 80 groups", grouped(D::kGptq, true, true, 32), {2, 2, 2560, 64, 20}},
      {"gptq, act-order, f32 scales", f32_ordered, wide},
      {"awq, 128", grouped(D::kAwq, true, false, 128), wide},
      {"awq, 16", grouped(D::kAwq, true, false, 16), {3, 2, 272, 144, 40}},
      {"fp8 block, edges", {S::kFp8Block, A::kFp8TokenGroup, D::kFp8Block}, {3, 2, 272, 144, 40}},
      {"fp8 block, bf16 scales", bf16_blocks, {3, 2, 336, 400, 40}},
      {"bf16, inputs first", {S::kBF16, A::kNone, D::kGptOssHub}, wide},
      {"bf16, inputs first, edges", {S::kBF16, A::kNone, D::kGptOssHub}, {3, 2, 200, 40, 40}},
      {"bf16, inputs first, down odd", {S::kBF16, A::kNone, D::kGptOssHub}, {3, 2, 200, 44, 40}},
      {"bf16, inputs first, odd", {S::kBF16, A::kNone, D::kGptOssHub}, {3, 2, 37, 21, 40}},
      {"f16, inputs first", {S::kF16, A::kNone, D::kGptOssHub}, {3, 2, 72, 40, 40}},
      {"bf16, edges", {S::kBF16, A::kNone, D::kHub}, {3, 2, 300, 140, 40}},
      {"fp8, edges", {S::kFp8Channel, A::kFp8Token, D::kFp8}, {3, 2, 300, 140, 40}},
      {"nvfp4, edges", {S::kNvfp4, A::kNone, D::kModelOptNvfp4}, {3, 2, 272, 144, 40}},
  };
  for (const SchemeCase& c : cases) expect_within_bound(gpu, c);
}

// |a - b| over |b - residual|, the experts' own part; infinite when something is no number.
double relative(const std::vector<float>& a, TestLayer& cpu) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - double{cpu.out()[i]}, 2);
    size += std::pow(double{cpu.out()[i]} - double{cpu.residual()[i]}, 2);
  }
  return std::isfinite(error) ? std::sqrt(error / size) : INFINITY;
}

// Shapes of real models, many pairs of an expert, columns that are no multiple of a segment.
TEST(CudaSchemes, ManyPairsAgreeWithTheCpu) {
  HF_GPU_OR_SKIP(gpu);
  for (const ExpertsShape& shape : {ExpertsShape{4, 2, 512, 352, 100}, {2, 2, 96, 640, 40},
                                    {8, 2, 256, 128, 100}, {2, 2, 160, 64, 12},
                                    {16, 4, 1024, 768, 12}}) {
    for (SchemeCase c : scheme_cases()) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::to_string(shape.max_rows) + " rows");
      c.format.activations = config::ActivationScheme::kNone;  // rounding is compared below
      const Tensors tensors = make_tensors(c.format, shape, 53);
      TestLayer cpu(ExpertsBackendKind::kHoldfast, c.format, shape, 2);
      cpu.load(tensors);
      cpu.randomize_rows(54);
      cpu.ids()[0] = -1;
      cpu.ids()[3] = static_cast<std::int32_t>(shape.expert_count);
      cpu.forward(0, shape.max_rows).value();
      GpuLayer layer(gpu, c.format, shape);
      layer.load(tensors);
      const std::vector<float> all = layer.forward(cpu, 0, shape.max_rows);
      EXPECT_LT(relative(all, cpu), 3e-5);  // 2^-16 of each term, in no one direction
      expect_row_alone(layer, cpu, all);
    }
  }
}

TEST(CudaSchemes, PlainSiluIsTheSameKernelWithOtherConstants) {
  HF_GPU_OR_SKIP(gpu);
  const config::SwigluConfig silu{1.0f, 0.0f, INFINITY};
  for (const SchemeCase& c : scheme_cases()) {
    if (c.format.activations != config::ActivationScheme::kNone) continue;
    SCOPED_TRACE(c.name);
    const Tensors tensors = make_tensors(c.format, c.shape, 55);
    TestLayer cpu(ExpertsBackendKind::kReference, c.format, c.shape, 1, silu);
    cpu.load(tensors);
    cpu.randomize_rows(56);
    cpu.forward(0, c.shape.max_rows).value();
    GpuLayer layer(gpu, c.format, c.shape, silu);
    layer.load(tensors);
    EXPECT_LT(worst(layer.forward(cpu, 0, c.shape.max_rows), cpu.out()), 2e-4);
  }
}

// ---- inputs

struct RoundCase {
  config::ActivationScheme scheme;
  float scale;
};

void check_rounding(device::Device& gpu, const RoundCase& c, const std::vector<float>& x,
                    std::int64_t length) {
  const auto rows = static_cast<std::int64_t>(x.size()) / length;
  auto arena = device::Arena::create(gpu, "test", x.size() * 8 + 4096).value();
  const auto put = [&](const void* from, DType dtype, const Shape& shape) {
    const tensor::TensorView view{arena->allocate(tensor::byte_size(dtype, shape).value(), 64)
                                      .value(), dtype, shape};
    gpu.write(view.address, static_cast<const std::byte*>(from), view.bytes()).value();
    return view;
  };
  const std::vector<float> poison(x.size(), -7.0f);
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(rows), 1);
  const auto active = static_cast<std::int32_t>(rows);
  const float scales[2] = {1e9f, c.scale};
  const cuda::RoundInputs round{
      .from = {put(x.data(), DType::kF32, {rows, length}), 1},
      .scheme = c.scheme,
      .input_scale = has_input_scale(c.scheme) ? put(scales, DType::kF32, {2})
                                               : tensor::TensorView{},
      .to = put(poison.data(), DType::kF32, {rows, length})};
  const ExpertsArgs args{.x = {}, .ids = put(ids.data(), DType::kI32, {rows, 1}), .weights = {},
                         .residual = {}, .out = {}, .active_rows = put(&active, DType::kI32, {1})};
  auto stream = gpu.create_stream().value();
  cuda::round_inputs(*stream, {.n = rows, .expert_count = 2, .experts_per_token = 1}, args, round)
      .value();
  stream->synchronize().value();
  std::vector<float> actual(x.size()), expected(x.size());
  gpu.read(reinterpret_cast<std::byte*>(actual.data()), round.to.address, x.size() * 4).value();
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto at = static_cast<std::size_t>(r * length);
    round_row({.scheme = c.scheme, .input_scale = InputScale::kLeftOut}, c.scale,
              std::span(x).subspan(at, static_cast<std::size_t>(length)), expected.data() + at);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << config::activation_scheme_name(c.scheme) << " of " << x[i] << " at " << i;
  }
}

TEST(CudaSchemes, InputsAreRoundedAsOnTheCpuBitForBit) {
  HF_GPU_OR_SKIP(gpu);
  using A = config::ActivationScheme;
  base::Rng rng(60);
  for (const std::int64_t length : {300, 4096}) {
    std::vector<float> x;
    for (std::int64_t r = 0; r < 40; ++r) {
      const float range = std::ldexp(1.0f, static_cast<int>(rng.next_below(60)) - 40);
      for (std::int64_t i = 0; i < length; ++i) {
        x.push_back(r == 0 ? -0.0f : ops::testing::random_float(rng, range));
      }
    }
    const auto at = [&](std::int64_t r, std::int64_t i) {
      return static_cast<std::size_t>(r * length + i);
    };
    x[at(1, 5)] = NAN;
    x[at(2, 40)] = INFINITY;
    x[at(3, 7)] = 1e-44f;
    for (std::int64_t i = 0; i < 32; ++i) {  // ties, and a block whose largest is 448 * 2^e
      x[at(4, i)] = static_cast<float>(i) * 0.25f;
      x[at(5, i)] = std::ldexp(i == 0 ? 448.0f : static_cast<float>(i) + 0.5f, -3);
      x[at(6, i)] = i == 0 ? 1e-42f : 0.0f;
    }
    for (const RoundCase& c : {RoundCase{A::kMxfp8, 1}, {A::kFp8Token, 1}, {A::kFp8TokenGroup, 1},
                               {A::kFp8Static, 1.0f / 300}, {A::kFp8Static, 0.37f},
                               {A::kNvfp4, 1.0f / 2688}, {A::kNvfp4, 3e-7f}}) {
      check_rounding(gpu, c, x, length);
    }
  }
}

// ---- what a load refuses

TEST(CudaSchemes, WhatCannotBeIsRefusedByItsName) {
  HF_GPU_OR_SKIP(gpu);
  const auto error_of = [&](const char* name, auto&& damage) -> std::string {
    for (const SchemeCase& c : scheme_cases()) {
      if (std::string(c.name) != name) continue;
      Tensors tensors = make_tensors(c.format, c.shape, 40);
      damage(tensors);
      GpuLayer layer(gpu, c.format, c.shape);
      const Status status = layer.try_load(tensors);
      return status.ok() ? "" : status.error().to_string();
    }
    return "no such case";
  };
  EXPECT_EQ(error_of("gptq act-order", [](Tensors&) {}), "");
  EXPECT_NE(error_of("gptq act-order",
                     [](Tensors& t) { t.at("down_proj.g_idx").as<std::int32_t>()[5] = 3; })
                .find("input 5 is of group 3, there are 3"), std::string::npos);
  EXPECT_NE(error_of("gptq act-order",
                     [](Tensors& t) {
                       auto index = t.at("up_proj.g_idx").as<std::int32_t>();
                       std::swap(index[0], *std::ranges::find_if(index, [&](std::int32_t group) {
                         return group != index[0];
                       }));
                     })
                .find("gate_up: the g_idx of gate and up differ"), std::string::npos);
  EXPECT_NE(error_of("gptq",
                     [](Tensors& t) {
                       auto index = t.at("down_proj.g_idx").as<std::int32_t>();
                       std::swap(index[0], index[40]);
                     })
                .find("has no act-order"), std::string::npos);
  EXPECT_NE(error_of("int4 compressed",
                     [](Tensors& t) { t.at("down_proj.weight_shape").as<std::int64_t>()[0] = 64; })
                .find("[64, 96]"), std::string::npos);
  EXPECT_NE(error_of("nvfp4 x nvfp4",
                     [](Tensors& t) { t.at("up_proj.weight_scale_2").as<float>()[1] = NAN; })
                .find("up_proj.weight_scale_2 is "), std::string::npos);
}

}  // namespace
}  // namespace holdfast::experts::testing
