// Every scheme of weights and activations, in every dialect that publishes it: the backends against
// double precision over the codecs' whole-matrix decoders, and against each other.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>

#include "experts/capabilities.h"
#include "experts/exact_layer.h"
#include "experts/round_inputs.h"
#include "experts/test_rows.h"
#include "tensor/fp8_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts {
namespace {

using config::ActivationScheme;
using config::ExpertDialect;
using config::ExpertScheme;
using config::Projection;
using testing::backends_of;
using testing::exact_forward;
using testing::ExactMatrix;
using testing::Row;
using testing::scheme_cases;
using testing::SchemeCase;
using testing::Tensors;
using testing::TestLayer;

// ---- tests

TEST(Schemes, EveryBackendStaysWithinFloat32OfDoublePrecision) {
  for (const SchemeCase& c : scheme_cases()) {
    const Tensors tensors = testing::make_tensors(c.format, c.shape, 31);
    for (const auto kind : backends_of(c.format)) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::string(experts_backend_name(kind)));
      TestLayer layer(kind, c.format, c.shape, 2);
      layer.load(tensors);
      layer.randomize_rows(32);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      const Row exact = exact_forward(c, tensors, layer);
      double largest = 0;
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(layer.out()[i], exact[i].value, exact[i].bound) << "element " << i;
        largest = std::max(largest, std::fabs(exact[i].value - layer.residual()[i]));
      }
      EXPECT_GT(largest, 1e-3) << "the experts must matter";
    }
  }
}

TEST(Schemes, EveryInstructionSetOfThisMachineStaysWithinTheBound) {
  for (const SchemeCase& c : scheme_cases()) {
    SCOPED_TRACE(c.name);
    const Tensors tensors = testing::make_tensors(c.format, c.shape, 43);
    Row exact;
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      SCOPED_TRACE(hwy::TargetName(target));
      TestLayer layer(ExpertsBackendKind::kHoldfast, c.format, c.shape);
      layer.load(tensors);
      layer.randomize_rows(44);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      if (exact.empty()) exact = exact_forward(c, tensors, layer);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        ASSERT_NEAR(layer.out()[i], exact[i].value, exact[i].bound) << "element " << i;
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(Schemes, ARowHasTheSameBitsAloneAndAmongOthersOnAnyWorkerCount) {
  for (const SchemeCase& c : scheme_cases()) {
    SCOPED_TRACE(c.name);
    const Tensors tensors = testing::make_tensors(c.format, c.shape, 33);
    for (const auto kind : backends_of(c.format)) {
      if (kind == ExpertsBackendKind::kReference) continue;
      testing::expect_independent_rows(kind, c.format, c.shape, tensors);
    }
  }
}

TEST(Schemes, ACapturedForwardReplaysToTheSameBits) {
  for (const SchemeCase& c : scheme_cases()) {
    for (const auto kind : backends_of(c.format)) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::string(experts_backend_name(kind)));
      TestLayer layer(kind, c.format, c.shape, 2);
      layer.load(testing::make_tensors(c.format, c.shape, 35));
      layer.randomize_rows(36);
      auto graph = device::capture(layer.runner().stream(), layer.registry(), "experts",
                                   [&] { return layer.forward(0, c.shape.max_rows); })
                       .value();
      layer.randomize_rows(37);
      ASSERT_TRUE(layer.forward(0, c.shape.max_rows).ok());
      const std::vector<float> eager(layer.out().begin(), layer.out().end());
      layer.poison_out();
      ASSERT_TRUE(graph->launch(layer.runner().stream()).ok());
      EXPECT_EQ(std::memcmp(eager.data(), layer.out().data(), eager.size() * sizeof(float)), 0);
    }
  }
}

TEST(Schemes, PlainSiluIsTheSameKernelWithOtherConstants) {
  const SchemeCase c{"bf16", {ExpertScheme::kBF16, ActivationScheme::kNone, ExpertDialect::kHub},
                     {3, 2, 37, 21, 4}};
  const config::SwigluConfig silu{1.0f, 0.0f, INFINITY};
  const Tensors tensors = testing::make_tensors(c.format, c.shape, 38);
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    TestLayer layer(kind, c.format, c.shape, 1, silu);
    layer.load(tensors);
    layer.randomize_rows(39);
    ASSERT_TRUE(layer.forward(0, 1).ok());
    for (std::int64_t h = 0; h < c.shape.hidden_size; ++h) {
      double sum = layer.residual()[h];
      for (int k = 0; k < 2; ++k) {
        const ExactMatrix gate(c, tensors, Projection::kGate, layer.ids()[k]);
        const ExactMatrix up(c, tensors, Projection::kUp, layer.ids()[k]);
        const ExactMatrix down(c, tensors, Projection::kDown, layer.ids()[k]);
        for (std::int64_t i = 0; i < c.shape.intermediate_size; ++i) {
          double g = 0, u = 0;
          for (std::int64_t j = 0; j < c.shape.hidden_size; ++j) {
            g += gate.value(i, j) * layer.x()[j];
            u += up.value(i, j) * layer.x()[j];
          }
          sum += layer.weights()[k] * down.value(h, i) * g / (1 + std::exp(-g)) * u;
        }
      }
      EXPECT_NEAR(layer.out()[h], sum, 2e-6) << h;
    }
  }
}

// ---- what a load refuses

std::string load_error(const SchemeCase& c, const Tensors& tensors,
                       ExpertsBackendKind backend = ExpertsBackendKind::kHoldfast) {
  TestLayer layer(backend, c.format, c.shape);
  const Status status = layer.try_load(tensors);
  return status.ok() ? "" : status.error().to_string();
}

SchemeCase case_named(const std::string& name) {
  for (const SchemeCase& c : scheme_cases()) {
    if (c.name == name) return c;
  }
  return {};
}

TEST(Schemes, AScaleThatIsNoScaleIsRefusedByItsName) {
  for (const float bad : {0.0f, -1.0f, INFINITY, NAN}) {
    const SchemeCase c = case_named("nvfp4 x nvfp4");
    Tensors tensors = testing::make_tensors(c.format, c.shape, 40);
    tensors.at("up_proj.weight_scale_2").as<float>()[1] = bad;
    EXPECT_NE(load_error(c, tensors).find("up_proj.weight_scale_2 is "), std::string::npos) << bad;
    tensors = testing::make_tensors(c.format, c.shape, 40);
    tensors.at("gate_proj.input_scale").as<float>()[2] = bad;
    EXPECT_NE(load_error(c, tensors).find("gate_proj.input_scale is "), std::string::npos) << bad;
  }
}

TEST(Schemes, AGroupIndexThatCannotBeIsRefused) {
  const SchemeCase ordered = case_named("gptq act-order");
  Tensors tensors = testing::make_tensors(ordered.format, ordered.shape, 41);
  tensors.at("down_proj.g_idx").as<std::int32_t>()[5] = 3;  // of 96 / 32 groups
  EXPECT_NE(load_error(ordered, tensors).find("input 5 is of group 3, there are 3"),
            std::string::npos);
  tensors = testing::make_tensors(ordered.format, ordered.shape, 41);
  auto index = tensors.at("up_proj.g_idx").as<std::int32_t>();
  std::swap(index[0], *std::find_if(index.begin(), index.end(),
                                    [&](std::int32_t group) { return group != index[0]; }));
  for (const auto backend : {ExpertsBackendKind::kHoldfast, ExpertsBackendKind::kReference,
                             ExpertsBackendKind::kMarlin, ExpertsBackendKind::kMachete}) {
    EXPECT_NE(load_error(ordered, tensors, backend).find("gate_up: the g_idx of gate and up"),
              std::string::npos)
        << static_cast<int>(backend);
  }
  tensors = testing::make_tensors(ordered.format, ordered.shape, 41);
  index = tensors.at("down_proj.g_idx").as<std::int32_t>();
  index[0] = index[0] == 0 ? 1 : 0;
  EXPECT_NE(load_error(ordered, tensors).find("must have 32"), std::string::npos);

  const SchemeCase plain = case_named("gptq");
  tensors = testing::make_tensors(plain.format, plain.shape, 41);
  index = tensors.at("down_proj.g_idx").as<std::int32_t>();
  std::swap(index[0], index[40]);
  EXPECT_NE(load_error(plain, tensors).find("has no act-order"), std::string::npos);
}

// What the kernels of a GPU read: each projection's index as published, under the same rule.
TEST(Schemes, AGroupIndexThatIsKeptAsPublishedIsCheckedWithItsSibling) {
  const SchemeCase c = case_named("gptq act-order");
  const ExpertsSpec spec{.slot_prefix = "layers.0.experts",
                         .parameter_prefix = testing::kTestPrefix,
                         .format = c.format,
                         .tensors = testing::tensors_of(c.format, c.shape),
                         .shape = c.shape};
  for (const Projection projection : {Projection::kGate, Projection::kUp}) {
    storage::Registry registry;
    LayerParameters layer(registry, spec);
    ASSERT_TRUE(define_group_index(layer, gate_up_product(spec), projection).value().has_value());
    const storage::Derivation& derivation = registry.derivations()[0];
    ASSERT_EQ(derivation.inputs.size(), 2u);
    Tensors tensors = testing::make_tensors(c.format, c.shape, 41);
    const auto load = [&] {
      std::vector<tensor::TensorView> inputs;
      for (const storage::DeriveInput& input : derivation.inputs) {
        const std::string& name =
            registry.parameters()[std::get<storage::ParameterId>(input).index()].name;
        inputs.push_back(
            tensors.at(name.substr(std::strlen(testing::kTestPrefix) + 1)).view().rows(1, 1));
      }
      std::vector<std::int32_t> kept(static_cast<std::size_t>(c.shape.hidden_size));
      const tensor::TensorView output{reinterpret_cast<std::byte*>(kept.data()),
                                      tensor::DType::kI32,
                                      {1, c.shape.hidden_size}};
      ops::testing::Runner runner(ops::make_cpu_reference_kernels(), 1);
      const Status status = derivation.function(runner.stream(), inputs, {&output, 1});
      if (!status.ok()) return status.error().to_string();
      const auto* own = inputs[0].as<const std::int32_t>();
      return std::string(std::equal(kept.begin(), kept.end(), own) ? "kept" : "changed");
    };
    EXPECT_EQ(load(), "kept");
    std::int32_t* index =
        tensors.at("up_proj.g_idx").as<std::int32_t>().data() + c.shape.hidden_size;
    std::swap(index[0], *std::find_if(index, index + c.shape.hidden_size,
                                      [&](std::int32_t group) { return group != index[0]; }));
    EXPECT_NE(load().find("gate_up: the g_idx of gate and up differ"), std::string::npos) << load();
  }
}

TEST(Schemes, AStatedShapeThatIsAnotherIsRefused) {
  const SchemeCase c = case_named("int4 compressed");
  Tensors tensors = testing::make_tensors(c.format, c.shape, 42);
  tensors.at("down_proj.weight_shape").as<std::int64_t>()[0] = 64;
  EXPECT_NE(load_error(c, tensors).find("[64, 96]"), std::string::npos);
}

TEST(RoundRow, IsWhatTheCodecsEncodeAndDecode) {
  base::Rng rng(50);
  std::vector<float> x(256), out(256), expected(256), scales(256);
  std::vector<std::uint8_t> codes(256), bytes(256);
  for (int round = 0; round < 200; ++round) {
    const float range = std::ldexp(1.0f, static_cast<int>(rng.next_below(40)) - 20);
    for (float& value : x) value = ops::testing::random_float(rng, range);
    const auto same = [&](ActivationScheme scheme, float scale) {
      round_row({.scheme = scheme}, scale, x, out.data());
      return std::memcmp(out.data(), expected.data(), 256 * sizeof(float)) == 0;
    };
    const std::span<std::uint8_t> mx(bytes.data(), 8);
    tensor::encode_mxfp8(tensor::E8m0Rule::kCeil, x, codes, mx).value();
    tensor::decode_mxfp8(codes, mx, expected).value();
    EXPECT_TRUE(same(ActivationScheme::kMxfp8, 1.0f));
    const auto fp8 = [&](const tensor::Fp8Layout& layout, tensor::Fp8ScaleRule rule) {
      const auto count = layout.scales();
      const std::span<float> used(scales.data(), count.rows * count.cols);
      tensor::encode_fp8(layout, rule, x, {codes, used}).value();
      tensor::decode_fp8(layout, codes, used, expected).value();
    };
    fp8(tensor::fp8_per_row({1, 256}), tensor::Fp8ScaleRule::kToken);
    EXPECT_TRUE(same(ActivationScheme::kFp8Token, 1.0f));
    fp8(tensor::fp8_token_groups({1, 256}), tensor::Fp8ScaleRule::kTokenGroup);
    EXPECT_TRUE(same(ActivationScheme::kFp8TokenGroup, 1.0f));
    const tensor::Fp8Layout whole = tensor::fp8_per_tensor({1, 256});
    const float scale = range / 300;
    tensor::encode_fp8_static(whole, x, {&scale, 1}, codes).value();
    tensor::decode_fp8(whole, codes, {&scale, 1}, expected).value();
    EXPECT_TRUE(same(ActivationScheme::kFp8Static, scale));
    const float global = range / 2688;
    const std::span<std::uint8_t> half(codes.data(), 128), blocks(bytes.data(), 16);
    tensor::encode_nvfp4(global, x, {half, blocks}).value();
    tensor::decode_nvfp4(global, half, blocks, expected).value();
    EXPECT_TRUE(same(ActivationScheme::kNvfp4, global));
  }
}

}  // namespace
}  // namespace holdfast::experts
