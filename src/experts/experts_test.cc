// The experts backends: both against double precision, bit equality of the fast one, constants,
// capture, edge scales, and the choice.
#include "experts/experts.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "experts/backends.h"
#include "experts/capabilities.h"
#include "experts/test_rows.h"

namespace holdfast::experts {
namespace {

using config::ExpertScheme;
using testing::DType;
using testing::HostTensor;
using testing::make_bf16_tensors;
using testing::make_mxfp4_tensors;
using testing::Tensors;
using testing::TestLayer;

constexpr double kUnit = 0x1p-24;
constexpr auto kMxfp4 = ExpertScheme::kMxfp4;
constexpr auto kBF16 = ExpertScheme::kBF16;

struct ExpertsCase {
  ExpertScheme scheme;
  ExpertsShape shape;
};

const ExpertsCase kCases[] = {
    {kMxfp4, {8, 2, 256, 64, 9}},   // the tiny fixture's shape
    {kMxfp4, {3, 2, 32, 96, 1}},    // one block of columns
    {kMxfp4, {2, 1, 64, 32, 40}},   // more tokens of one expert than a tile takes at once
    {kMxfp4, {2, 2, 2880, 160, 2}},
    {kBF16, {8, 2, 256, 64, 9}},
    {kBF16, {3, 3, 20, 13, 5}},     // no dimension is a multiple of anything
    {kBF16, {2, 1, 37, 33, 30}},
};

Tensors make_tensors(const ExpertsCase& c, std::uint64_t seed) {
  return testing::make_tensors(testing::format_of(c.scheme), c.shape, seed);
}

// One of the two matrices in double precision: value(e, row, column).
class Exact {
 public:
  Exact(const Tensors& tensors, const std::string& name, std::int64_t rows, std::int64_t columns)
      : rows_(rows), columns_(columns) {
    const auto bias_bits = tensors.at(name + "_bias").as<std::uint16_t>();
    for (const std::uint16_t bits : bias_bits) bias_.push_back(tensor::bf16_to_f32(bits));
    values_.resize(bias_.size() * static_cast<std::size_t>(columns));
    if (tensors.contains(name)) {
      decode_bf16(tensors.at(name));
    } else {
      decode_mxfp4(tensors.at(name + "_blocks"), tensors.at(name + "_scales"));
    }
  }
  double value(std::int64_t e, std::int64_t row, std::int64_t column) const {
    return values_[(e * rows_ + row) * columns_ + column];
  }
  double bias(std::int64_t e, std::int64_t row) const { return bias_[e * rows_ + row]; }

 private:
  void decode_bf16(const HostTensor& matrix) {
    const auto bits = matrix.as<std::uint16_t>();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      const std::int64_t matrix_size = rows_ * columns_;
      const std::int64_t row = index % matrix_size / columns_;
      const std::int64_t column = index % columns_;
      values_[i] = tensor::bf16_to_f32(
          bits[index / matrix_size * matrix_size + column * rows_ + row]);
    }
  }
  void decode_mxfp4(const HostTensor& blocks, const HostTensor& scales) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const std::uint8_t byte = blocks.as<std::uint8_t>()[i / 2];
      const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4);
      const std::uint8_t scale = scales.as<std::uint8_t>()[i / 32];
      values_[i] = std::ldexp(double{tensor::f4_e2m1_to_f32(code)}, scale - 127);
    }
  }
  std::int64_t rows_, columns_;
  std::vector<double> values_, bias_;
};

// A value and how far float32 may be from it.
struct Bounded {
  double value = 0, bound = 0;
};

// W_e[row] . x + bias; x itself is known within x[c].bound.
Bounded exact_row(const Exact& matrix, std::int64_t e, std::int64_t row,
                  const std::vector<Bounded>& x) {
  Bounded out{matrix.bias(e, row), 0};
  double magnitude = std::fabs(out.value);
  for (std::size_t c = 0; c < x.size(); ++c) {
    const double w = matrix.value(e, row, static_cast<std::int64_t>(c));
    out.value += w * x[c].value;
    out.bound += std::fabs(w) * x[c].bound;
    magnitude += std::fabs(w * x[c].value);
  }
  out.bound += (static_cast<double>(x.size()) + 3) * kUnit * magnitude;
  return out;
}

// alpha 1.702, beta 1, limit 7: |d/dg| <= 1.1 * 8 and |d/du| <= 7, and a few roundings.
Bounded exact_swiglu(Bounded gate, Bounded up) {
  const double g = std::min(gate.value, 7.0);
  const double u = std::clamp(up.value, -7.0, 7.0);
  const double value = g / (1 + std::exp(-double{1.702f} * g)) * (u + 1);
  return {value, 8.8 * gate.bound + 7 * up.bound + 16 * kUnit * std::fabs(value) + 1e-30};
}

std::vector<Bounded> exact_forward(TestLayer& layer, const Tensors& tensors) {
  const ExpertsShape& s = layer.shape();
  const Exact gate_up(tensors, "gate_up_proj", 2 * s.intermediate_size, s.hidden_size);
  const Exact down(tensors, "down_proj", s.hidden_size, s.intermediate_size);
  std::vector<Bounded> out;
  for (const float value : layer.residual()) out.push_back({value, 0});
  for (std::int64_t pair = 0; pair < std::ssize(layer.ids()); ++pair) {
    const std::int64_t e = layer.ids()[pair];
    const std::int64_t r = pair / s.experts_per_token;
    const double weight = layer.weights()[pair];
    std::vector<Bounded> x(s.hidden_size);
    for (std::int64_t h = 0; h < s.hidden_size; ++h) x[h].value = layer.x()[r * s.hidden_size + h];
    std::vector<Bounded> activation;
    for (std::int64_t i = 0; i < s.intermediate_size; ++i) {
      activation.push_back(exact_swiglu(exact_row(gate_up, e, 2 * i, x),
                                        exact_row(gate_up, e, 2 * i + 1, x)));
    }
    for (std::int64_t h = 0; h < s.hidden_size; ++h) {
      const Bounded y = exact_row(down, e, h, activation);
      Bounded& sum = out[r * s.hidden_size + h];
      sum.value += weight * y.value;
      sum.bound += weight * y.bound + 8 * kUnit * (std::fabs(weight * y.value) + 1);
    }
  }
  return out;
}

void expect_within(std::span<const float> got, const std::vector<Bounded>& exact) {
  ASSERT_EQ(got.size(), exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(got[i], exact[i].value, exact[i].bound) << "element " << i;
  }
}

TEST(Experts, BothBackendsStayWithinFloat32OfDoublePrecision) {
  for (const ExpertsCase& c : kCases) {
    const Tensors tensors = make_tensors(c, 1);
    for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
      TestLayer layer(kind, c.scheme, c.shape, 2);
      layer.load(tensors);
      layer.randomize_rows(2);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      SCOPED_TRACE(experts_backend_name(kind));
      expect_within(layer.out(), exact_forward(layer, tensors));
    }
  }
}

TEST(Experts, EveryInstructionSetOfThisMachineStaysWithinTheBound) {
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    for (const ExpertsCase& c : kCases) {
      const Tensors tensors = make_tensors(c, 3);
      TestLayer layer(ExpertsBackendKind::kHoldfast, c.scheme, c.shape);
      layer.load(tensors);
      layer.randomize_rows(4);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      expect_within(layer.out(), exact_forward(layer, tensors));
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(Experts, TheTwoLayoutsOfTheSameValuesAgree) {
  const ExpertsShape shape{4, 2, 64, 32, 6};
  const Tensors packed = make_mxfp4_tensors(shape, 5);
  Tensors plain;
  for (const auto& [name, rows, columns] :
       {std::tuple<std::string, std::int64_t, std::int64_t>{"gate_up_proj", 64, 64},
        {"down_proj", 64, 32}}) {
    const Exact exact(packed, name, rows, columns);
    HostTensor matrix(DType::kBF16, {4, columns, rows});
    for (std::int64_t i = 0; i < 4 * columns * rows; ++i) {
      const double value = exact.value(i / (columns * rows), i % rows, i / rows % columns);
      matrix.as<std::uint16_t>()[i] = tensor::f32_to_bf16(static_cast<float>(value));
    }
    plain.emplace(name, std::move(matrix));
    HostTensor bias(DType::kBF16, {4, rows});
    std::ranges::copy(packed.at(name + "_bias").as<std::uint16_t>(),
                      bias.as<std::uint16_t>().begin());
    plain.emplace(name + "_bias", std::move(bias));
  }
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    TestLayer layer(kind, kBF16, shape);
    layer.load(plain);
    layer.randomize_rows(6);
    ASSERT_TRUE(layer.forward(0, 6).ok());
    expect_within(layer.out(), exact_forward(layer, packed));
  }
}

TEST(Experts, ARowHasTheSameBitsAloneAndAmongOthersOnAnyWorkerCount) {
  for (const ExpertsCase& c : kCases) {
    const Tensors tensors = make_tensors(c, 7);
    testing::expect_independent_rows(ExpertsBackendKind::kHoldfast, c.scheme, c.shape, tensors);
  }
}

TEST(Experts, OnlyActiveRowsAreWrittenAndTheCountIsReadWhenTheKernelRuns) {
  const ExpertsShape shape{4, 2, 64, 32, 5};
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    TestLayer layer(kind, kMxfp4, shape);
    layer.load(make_mxfp4_tensors(shape, 9));
    for (const std::int32_t active : {3, 0, -1, 77}) {
      layer.randomize_rows(10);
      layer.set_active(active);
      ASSERT_TRUE(layer.forward(0, 5).ok());
      const std::int64_t rows = std::clamp(active, 0, 5);
      for (std::int64_t i = 0; i < 5 * 64; ++i) {
        const bool poison = std::bit_cast<std::uint32_t>(layer.out()[i]) == 0xDDDDDDDDu;
        ASSERT_EQ(poison, i >= rows * 64) << "element " << i << " of " << active << " rows";
      }
      if (kind == ExpertsBackendKind::kReference) continue;
      const auto groups = layer.registry().find_slot("experts.workspace.group_begin").value();
      EXPECT_EQ(layer.registry().view(groups).as<std::int32_t>()[4], 2 * rows)
          << "pairs of rows that are not active must not be computed";
    }
  }
}

TEST(Experts, AnIdThatNamesNoExpertContributesNothing) {
  const ExpertsShape shape{4, 2, 64, 32, 3};
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    TestLayer layer(kind, kMxfp4, shape);
    layer.load(make_mxfp4_tensors(shape, 11));
    layer.randomize_rows(12);
    std::ranges::copy(std::vector<std::int32_t>{-1, 4, 2, INT32_MIN, 1, 3}, layer.ids().begin());
    ASSERT_TRUE(layer.forward(0, 3).ok());
    for (int h = 0; h < 64; ++h) EXPECT_EQ(layer.out()[h], layer.residual()[h]);
    const std::vector<float> second(layer.out().begin() + 64, layer.out().begin() + 128);
    layer.weights()[3] = 0.0f;
    layer.ids()[3] = 0;
    ASSERT_TRUE(layer.forward(0, 3).ok());
    EXPECT_TRUE(std::ranges::equal(second, layer.out().subspan(64, 64)));
  }
}

TEST(Experts, TheKernelReadsItsConstantsFromMemory) {
  const ExpertsShape shape{4, 2, 64, 32, 2};
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    for (const char* name : {"swiglu_alpha", "swiglu_beta", "swiglu_limit"}) {
      TestLayer layer(kind, kMxfp4, shape);
      layer.load(make_mxfp4_tensors(shape, 13));
      layer.randomize_rows(14);
      ASSERT_TRUE(layer.forward(0, 2).ok());
      const std::vector<float> before(layer.out().begin(), layer.out().end());
      layer.set_constant(name, 0.25f);
      ASSERT_TRUE(layer.forward(0, 2).ok());
      EXPECT_FALSE(std::ranges::equal(before, layer.out())) << name;
    }
  }
}

TEST(Experts, ConstantsLieInTheirOwnArenaAndHoldTheConfigsValues) {
  const ExpertsShape shape{4, 2, 64, 32, 2};
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    TestLayer layer(kind, kMxfp4, shape);
    layer.load(make_mxfp4_tensors(shape, 15));
    EXPECT_EQ(layer.layer().constant_slots(),
              (std::vector<std::string>{"layers.0.experts.swiglu_alpha",
                                        "layers.0.experts.swiglu_beta",
                                        "layers.0.experts.swiglu_limit"}));
    const float values[] = {1.702f, 1.0f, 7.0f};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto slot = layer.registry().find_slot(layer.layer().constant_slots()[i]).value();
      EXPECT_EQ(layer.registry().arena_of(slot).name(), "experts.constants");
      for (int e = 0; e < 4; ++e) {
        EXPECT_EQ(layer.registry().view(slot).as<float>()[e], values[i]);
      }
    }
  }
}

TEST(Experts, ACapturedForwardReplaysToTheSameBitsAndSeesNewRowsAndCounts) {
  const ExpertsShape shape{8, 2, 64, 32, 4};
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    TestLayer layer(kind, kMxfp4, shape, 2);
    layer.load(make_mxfp4_tensors(shape, 16));
    layer.randomize_rows(17);
    auto graph = device::capture(layer.runner().stream(), layer.registry(), "experts",
                                 [&] { return layer.forward(0, 4); })
                     .value();
    for (const std::uint64_t seed : {17, 18}) {
      layer.randomize_rows(seed);
      layer.set_active(3);
      ASSERT_TRUE(layer.forward(0, 4).ok());
      const std::vector<float> eager(layer.out().begin(), layer.out().end());
      layer.poison_out();
      ASSERT_TRUE(graph->launch(layer.runner().stream()).ok());
      EXPECT_EQ(std::memcmp(eager.data(), layer.out().data(), eager.size() * sizeof(float)), 0);
    }
    int constants = 0;
    for (const auto& entry : graph->manifest().entries) {
      constants += entry.role.starts_with("swiglu_") ? 1 : 0;
    }
    EXPECT_EQ(constants, 3);
    graph.reset();
  }
}

// Scale byte 0 is 2^-127, a subnormal; 254 is 2^127; 255 is NaN and must not be hidden by a clamp.
TEST(Experts, EdgeScalesDecodeExactly) {
  const ExpertsShape shape{1, 1, 32, 32, 1};
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    for (const int scale : {0, 1, 254, 255}) {
      Tensors tensors = make_mxfp4_tensors(shape, 19);
      for (auto& [name, tensor] : tensors) std::ranges::fill(tensor.as<std::uint8_t>(), 0);
      // Both biases 1, so an activation is about 1.7; down row 0 reads activation 0 alone.
      for (int i = 0; i < 32; ++i) {
        tensors.at("gate_up_proj_bias").as<std::uint16_t>()[2 * i] = tensor::f32_to_bf16(1.0f);
        tensors.at("gate_up_proj_bias").as<std::uint16_t>()[2 * i + 1] = tensor::f32_to_bf16(1.0f);
      }
      tensors.at("down_proj_blocks").as<std::uint8_t>()[0] = 0x01;  // 0.5
      tensors.at("down_proj_scales").as<std::uint8_t>()[0] = static_cast<std::uint8_t>(scale);
      TestLayer layer(kind, kMxfp4, shape);
      layer.load(tensors);
      layer.randomize_rows(20);
      layer.ids()[0] = 0;
      layer.weights()[0] = 1.0f;
      std::ranges::fill(layer.residual(), 0.0f);
      ASSERT_TRUE(layer.forward(0, 1).ok());
      const double activation = 1 / (1 + std::exp(-1.702)) * 2;
      const double exact = std::ldexp(0.5 * activation, scale - 127);
      if (scale == 255) {
        EXPECT_TRUE(std::isnan(layer.out()[0])) << layer.out()[0];
      } else {
        EXPECT_NEAR(layer.out()[0], exact, exact * 4e-7 + 1e-44) << scale;
      }
      EXPECT_EQ(layer.out()[1], 0.0f);
    }
  }
}

TEST(Experts, ANaNScaleReachesTheOutputThroughTheClamp) {
  const ExpertsShape shape{1, 1, 32, 32, 1};
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    Tensors tensors = make_mxfp4_tensors(shape, 21);
    // Gate row 3 is all ones, as x is: taken for 2^128, the scale would give +inf, clamped to 7.
    tensors.at("gate_up_proj_scales").as<std::uint8_t>()[6] = 255;
    const auto codes = tensors.at("gate_up_proj_blocks").as<std::uint8_t>();
    std::ranges::fill(codes.subspan(6 * 16, 16), 0x22);
    TestLayer layer(kind, kMxfp4, shape);
    layer.load(tensors);
    layer.randomize_rows(22);
    std::ranges::fill(layer.x(), 1.0f);
    layer.ids()[0] = 0;
    ASSERT_TRUE(layer.forward(0, 1).ok());
    EXPECT_TRUE(std::isnan(layer.out()[0]));
  }
}

// ---- definitions and the choice

TEST(ExpertsBackend, ASpecThatCannotBeIsRefusedWithItsNumbers) {
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    const auto refused = [&](ExpertsShape shape, bool workspace) {
      storage::Registry registry;
      auto backend = make_experts_backend(kind);
      if (workspace) backend->define_workspace(registry, {8, 2, 64, 64, 4}).value();
      auto layer = backend->define(
          registry, {.slot_prefix = "p",
                     .parameter_prefix = "q",
                     .format = {.scheme = kMxfp4},
                     .tensors = testing::tensors_of({.scheme = kMxfp4}, {8, 2, 64, 64, 4}),
                     .shape = shape});
      return layer.ok() ? std::string() : layer.error().to_string();
    };
    EXPECT_EQ(refused({8, 2, 64, 64, 4}, true), "");
    EXPECT_NE(refused({8, 2, 60, 64, 4}, true).find("hidden_size 60"), std::string::npos);
    EXPECT_NE(refused({2, 3, 64, 64, 4}, true).find("at most expert_count 2"), std::string::npos);
    EXPECT_NE(refused({0, 1, 64, 64, 4}, true).find("expert_count is 0"), std::string::npos);
    EXPECT_NE(refused({8, 2, 128, 64, 4}, true).find("failed_precondition"), std::string::npos);
    EXPECT_NE(refused({8, 2, 64, 64, 4}, false).find("define_workspace first"), std::string::npos);
  }
}

TEST(ExpertsBackend, ForwardRefusesOperandsThatDoNotFit) {
  const ExpertsShape shape{4, 2, 64, 32, 2};
  TestLayer layer(ExpertsBackendKind::kHoldfast, kMxfp4, shape);
  layer.load(make_mxfp4_tensors(shape, 23));
  ExpertsArgs args = layer.args(0, 2);
  args.ids.shape = {2, 3};
  const Status status = layer.layer().forward(layer.runner().context(), args);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(), "experts: operand ids is i32 [2, 3], must be i32 [2, 2]");
}

TEST(ExpertsChoice, HoldfastOnTheCpuUnlessAnotherIsAskedFor) {
  const ExpertsQuery query{.format = {.scheme = kMxfp4}, .shape = {32, 4, 2880, 2880, 64}};
  const auto chosen = choose_experts_backend(query).value();
  EXPECT_EQ(chosen.kind, ExpertsBackendKind::kHoldfast);
  EXPECT_NE(chosen.reason.find("mxfp4"), std::string::npos);
  ExpertsQuery asked = query;
  asked.requested = ExpertsBackendKind::kReference;
  EXPECT_EQ(choose_experts_backend(asked).value().kind, ExpertsBackendKind::kReference);
  EXPECT_NE(choose_experts_backend(asked).value().reason.find("asked for"), std::string::npos);
}

TEST(ExpertsChoice, WhatNoBackendCanDoIsRefusedWithTheReason) {
  ExpertsQuery query{.device = device::DeviceKind::kCuda,
                     .format = {.scheme = kMxfp4},
                     .shape = {32, 4, 2880, 2880, 64}};
  EXPECT_NE(choose_experts_backend(query).value().reason.find("tensor cores"), std::string::npos);
  query.requested = ExpertsBackendKind::kReference;
  EXPECT_EQ(choose_experts_backend(query).error().code(), ErrorCode::kUnsupported);
  query.requested.reset();
  query.device = device::DeviceKind::kCpu;
  query.shape.hidden_size = 100;
  EXPECT_NE(choose_experts_backend(query).error().message().find("hidden_size 100"),
            std::string::npos);
  query.format.scheme = kBF16;
  EXPECT_TRUE(choose_experts_backend(query).ok());
}

TEST(ExpertsChoice, CutlassOnCudaNeedsItsHeadersAndSaysWhereTheyAre) {
  const auto choice =
      choose_experts_backend({.device = device::DeviceKind::kCuda,
                              .format = {.scheme = kMxfp4},
                              .shape = {32, 4, 2880, 2880, 64},
                              .requested = ExpertsBackendKind::kCutlass});
  if (has_cutlass_gpu_backend()) {
    EXPECT_EQ(choice.value().kind, ExpertsBackendKind::kCutlass);
    return;
  }
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(choice.error().message().find("nvidia-cutlass==4.2.0"), std::string::npos);
  EXPECT_NE(choice.error().message().find("-DHOLDFAST_CUTLASS="), std::string::npos);
}

TEST(ExpertsChoice, EveryPairRunsOnBothDevicesAndWhatDoesNotSaysWhy) {
  for (const SchemePair& pair : all_scheme_pairs()) {
    const config::ExpertFormat format{.scheme = pair.weights, .activations = pair.activations};
    for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
      EXPECT_NE(capability_of({.backend = kind}, format).support, Support::kRefused);
    }
    const Capability on_cuda =
        capability_of({ExpertsBackendKind::kHoldfast, device::DeviceKind::kCuda}, format);
    EXPECT_EQ(on_cuda.support,
              pair.weights == kBF16 ? Support::kNative : Support::kDequantised);
    EXPECT_NE(on_cuda.reason.find("tensor cores"), std::string::npos);
  }
  const auto reason = [](ExpertsBackendKind kind, device::DeviceKind device, ExpertScheme scheme,
                         config::ActivationScheme activations) {
    return capability_of({kind, device}, {.scheme = scheme, .activations = activations}).reason;
  };
  using A = config::ActivationScheme;
  using B = ExpertsBackendKind;
  EXPECT_EQ(reason(B::kMachete, device::DeviceKind::kCpu, kMxfp4, A::kNone), "no such weights");
  EXPECT_EQ(reason(B::kCutlass, device::DeviceKind::kCpu, kMxfp4, A::kFp8Static),
            "with activations none, mxfp8 only");
  EXPECT_EQ(reason(B::kCutlass, device::DeviceKind::kCuda, kMxfp4, A::kMxfp8),
            "with activations none only");
  EXPECT_EQ(reason(B::kMarlin, device::DeviceKind::kCuda, kMxfp4, A::kNone),
            "kernels for the cpu only");
}

TEST(ExpertsChoice, TheReadmesTableIsThatOfTheCode) {
  std::ifstream file(HF_SOURCE_DIR "/README.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::string begin = "<!-- experts-matrix: holdfast inspect --matrix -->\n\n";
  const auto at = text.find(begin);
  ASSERT_NE(at, std::string::npos);
  const auto end = text.find("\n<!-- experts-matrix end -->", at);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(text.substr(at + begin.size(), end - at - begin.size()), experts_matrix())
      << "put the output of `holdfast inspect --matrix` between the markers in README.md";
}

TEST(ExpertsChoice, NamesGoBothWays) {
  for (int i = 0; i < kExpertsBackendCount; ++i) {
    const auto kind = static_cast<ExpertsBackendKind>(i);
    EXPECT_EQ(experts_backend_from_name(experts_backend_name(kind)), kind);
    EXPECT_EQ(make_experts_backend(kind)->name(), experts_backend_name(kind));
  }
  EXPECT_FALSE(experts_backend_from_name("marlin").has_value());
}

}  // namespace
}  // namespace holdfast::experts
