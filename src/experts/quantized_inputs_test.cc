// Quantising on arrival: a layer that is loaded from plain values has, in every slot, the bytes of
// one that is loaded from what `holdfast quantize` makes of them.
#include "experts/quantized_inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "experts/test_layer.h"

namespace holdfast::experts {
namespace {

using config::ExpertDialect;
using config::ExpertFormat;
using config::ExpertScheme;
using config::ExpertTensor;
using config::Projection;
using config::TensorRole;
using testing::HostTensor;
using testing::kTestPrefix;
using testing::Tensors;
using testing::TestLayer;

constexpr ExpertsShape kShape{.expert_count = 3,
                              .experts_per_token = 2,
                              .hidden_size = 128,
                              .intermediate_size = 96,
                              .max_rows = 4};

struct Case {
  const char* name;
  ExpertScheme scheme;
  bool gpt_oss = false;
  bool zero_points = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

config::ModelConfig model_of(bool gpt_oss) {
  config::ModelConfig config;
  config.architecture =
      gpt_oss ? config::Architecture::kGptOss : config::Architecture::kQwen3Moe;
  config.hidden_size = kShape.hidden_size;
  config.intermediate_size = kShape.intermediate_size;
  config.expert_count = kShape.expert_count;
  config.expert_format.dialect = gpt_oss ? ExpertDialect::kGptOssHub : ExpertDialect::kHub;
  return config;
}

struct Layers {
  ExpertsSpec published;  // as a quantised checkpoint has it
  ExpertsSpec arriving;   // as a plain one is quantised
  Tensors plain, quantised;
};

ExpertsSpec spec_of(const ExpertFormat& format) {
  return {.slot_prefix = "layers.0.experts",
          .parameter_prefix = kTestPrefix,
          .format = format,
          .tensors = testing::tensors_of(format, kShape),
          .shape = kShape};
}

// One expert's part of a tensor of all.
std::span<std::byte> part(HostTensor& tensor, std::int64_t expert) {
  const std::size_t bytes = tensor.bytes() / static_cast<std::size_t>(kShape.expert_count);
  return {tensor.view().address + static_cast<std::size_t>(expert) * bytes, bytes};
}

float amax_of(const ExpertTensor& tensor, HostTensor& values, std::int64_t expert) {
  const auto view = config::matrix_values(tensor, part(values, expert).data());
  return tensor::matrix_amax(view, {0, view.size.rows}).value();
}

void quantize_all(Layers& layers, const std::vector<ExpertTensor>& sources) {
  const ExpertFormat& format = layers.published.format;
  for (const ExpertTensor& source : sources) {
    if (source.role != TensorRole::kWeight) continue;
    for (std::int64_t e = 0; e < kShape.expert_count; ++e) {
      config::MatrixAmax amax{amax_of(source, layers.plain.at(source.name), e), 0.0f};
      amax.shared = amax.own;
      for (const ExpertTensor& other : sources) {
        const bool sibling = other.role == TensorRole::kWeight &&
                             other.projection != Projection::kDown &&
                             source.projection != Projection::kDown;
        if (sibling) {
          amax.shared = std::max(amax.shared, amax_of(other, layers.plain.at(other.name), e));
        }
      }
      config::MatrixTensors out;
      for (const ExpertTensor& made : layers.published.tensors) {
        if (made.projection != source.projection) continue;
        if (auto* role = out.find(made.role)) *role = part(layers.quantised.at(made.name), e);
      }
      const auto values =
          config::matrix_values(source, part(layers.plain.at(source.name), e).data());
      ASSERT_TRUE(config::quantize_matrix(format, values, amax, out).ok());
    }
  }
}

Layers layers_of(const Case& test, std::uint64_t seed) {
  const config::ModelConfig source = model_of(test.gpt_oss);
  const auto format = config::quantized_format(
      source, {.scheme = test.scheme, .group_size = 32, .zero_points = test.zero_points});
  EXPECT_TRUE(format.ok()) << format.error().message();
  Layers layers{spec_of(*format), spec_of(*format), {}, {}};
  layers.arriving.source_tensors = testing::tensors_of(source.expert_format, kShape);
  testing::TensorMaker maker(source.expert_format, seed);
  for (const ExpertTensor& tensor : layers.arriving.source_tensors) {
    layers.plain.emplace(tensor.name, maker.make(tensor, kShape.expert_count));
  }
  testing::TensorMaker placeholder(*format, seed);
  for (const ExpertTensor& tensor : layers.published.tensors) {
    HostTensor made = placeholder.make(tensor, kShape.expert_count);
    if (tensor.role == TensorRole::kBias) {
      std::memcpy(made.view().address, layers.plain.at(tensor.name).view().address, made.bytes());
    }
    layers.quantised.emplace(tensor.name, std::move(made));
  }
  quantize_all(layers, layers.arriving.source_tensors);
  return layers;
}

void expect_same_slots(TestLayer& a, TestLayer& b) {
  std::size_t compared = 0;
  for (const storage::Slot& slot : a.registry().slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    const auto other = b.registry().find_slot(slot.spec.name);
    ASSERT_TRUE(other.has_value()) << slot.spec.name;
    const auto x = a.registry().view(slot.id);
    const auto y = b.registry().view(*other);
    ASSERT_EQ(x.bytes(), y.bytes()) << slot.spec.name;
    EXPECT_EQ(std::memcmp(x.address, y.address, x.bytes()), 0) << slot.spec.name;
    ++compared;
  }
  EXPECT_GT(compared, 4u);
  EXPECT_EQ(a.registry().slots().size(), b.registry().slots().size());
}

class QuantizedOnArrival : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Schemes, QuantizedOnArrival,
    ::testing::Values(Case{"GptOssMxfp4", ExpertScheme::kMxfp4, true},
                      Case{"Mxfp4", ExpertScheme::kMxfp4}, Case{"Mxfp8", ExpertScheme::kMxfp8},
                      Case{"Nvfp4", ExpertScheme::kNvfp4},
                      Case{"Fp8Tensor", ExpertScheme::kFp8Tensor},
                      Case{"Fp8Channel", ExpertScheme::kFp8Channel},
                      Case{"Fp8Block", ExpertScheme::kFp8Block},
                      Case{"Int4", ExpertScheme::kInt4},
                      Case{"Int4Zeros", ExpertScheme::kInt4, false, true}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(QuantizedOnArrival, EverySlotOfEveryBackendIsThatOfTheQuantisedCheckpoint) {
  int backends = 0;
  for (int i = 0; i < kExpertsBackendCount; ++i) {
    const auto kind = static_cast<ExpertsBackendKind>(i);
    Layers layers = layers_of(GetParam(), 5);
    const auto choice = choose_experts_backend(
        {.format = layers.published.format, .shape = kShape, .requested = kind});
    if (!choice.ok()) continue;
    SCOPED_TRACE(experts_backend_name(kind));
    TestLayer cold(kind, layers.published);
    cold.load(layers.quantised);
    TestLayer warm(kind, layers.arriving);
    warm.load(layers_of(GetParam(), 6).plain);  // other weights first
    warm.load(layers.plain);
    expect_same_slots(cold, warm);
    for (TestLayer* layer : {&cold, &warm}) {
      layer->randomize_rows(7);
      ASSERT_TRUE(layer->forward(0, kShape.max_rows).ok());
    }
    EXPECT_TRUE(std::ranges::equal(cold.out(), warm.out()));
    ++backends;
  }
  EXPECT_GE(backends, 2);
}

TEST_P(QuantizedOnArrival, ParametersAreWhatTheSourcePublishesAndNothingElse) {
  const Layers layers = layers_of(GetParam(), 5);
  TestLayer layer(ExpertsBackendKind::kHoldfast, layers.arriving);
  std::set<std::string> names, wanted;
  for (const storage::ParameterSpec& parameter : layer.registry().parameters()) {
    names.insert(parameter.name);
    EXPECT_EQ(parameter.slot.has_value(), parameter.name.ends_with("_bias")) << parameter.name;
  }
  for (const ExpertTensor& tensor : layers.arriving.source_tensors) {
    wanted.insert(std::string(kTestPrefix) + "." + tensor.name);
  }
  EXPECT_EQ(names, wanted);
  for (const storage::Derivation& derivation : layer.registry().derivations()) {
    const bool reads_source =
        std::holds_alternative<storage::ParameterId>(derivation.inputs.front());
    EXPECT_EQ(derivation.host_bytes > 0, reads_source) << derivation.name;
  }
}

TEST_P(QuantizedOnArrival, AValueThatIsNotFiniteIsNamedAndNothingIsMadeOfIt) {
  Layers layers = layers_of(GetParam(), 5);
  const ExpertTensor& up = layers.arriving.source_tensors.front();
  *part(layers.plain.at(up.name), 1).subspan(2).data() = std::byte{0x80};
  *part(layers.plain.at(up.name), 1).subspan(3).data() = std::byte{0x7F};
  TestLayer layer(ExpertsBackendKind::kHoldfast, layers.arriving);
  const Status loaded = layer.try_load(layers.plain);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message().find(up.name), std::string::npos)
      << loaded.error().message();
}

}  // namespace
}  // namespace holdfast::experts
