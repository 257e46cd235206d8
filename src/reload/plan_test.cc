#include "reload/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "reload/reload_fixture.h"

namespace holdfast::reload {
namespace {

using testing::Engine;
using testing::FakeSource;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kRemap = CommitStrategy::kRemap;
constexpr auto kCopy = CommitStrategy::kCopy;

Result<ReloadPlan> plan_of(const Engine& engine, FakeSource& source) {
  source.refresh();
  return make_plan(engine.registry, engine.model_config, source, kRemap);
}

TEST(Plan, AccountsForEveryParameterInTheSourcesOwnOrder) {
  Engine engine;
  FakeSource source = engine.source(1);
  std::reverse(source.data.begin(), source.data.end());
  const auto plan = plan_of(engine, source);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  std::uint64_t bytes = 0;
  for (const auto& tensor : source.data) bytes += tensor.bytes.size();
  EXPECT_EQ(plan->source_bytes, bytes);
  EXPECT_EQ(plan->copies.size(), 1u + 3 * 3);
  for (std::size_t i = 0; i < plan->copies.size(); ++i) {
    const CopyStep& copy = plan->copies[i];
    EXPECT_EQ(source.tensors()[copy.source_index].name,
              engine.registry.parameters()[copy.parameter.index()].name);
    EXPECT_TRUE(i == 0 || plan->copies[i - 1].source_index < copy.source_index);
  }
  EXPECT_EQ(plan->derivations.size(), 3u * 3 + 1);
  EXPECT_EQ(plan->constant_count, 9u);
}

TEST(Plan, PutsADerivationAfterThoseWhoseSlotsItReads) {
  Engine engine;
  FakeSource source = engine.source(1);
  const auto plan = plan_of(engine, source);
  std::set<storage::SlotId> made;
  for (const DeriveStep& step : plan->derivations) {
    const auto& derivation = engine.registry.derivations()[step.derivation_index];
    for (const auto& input : derivation.inputs) {
      const auto* slot = std::get_if<storage::SlotId>(&input);
      if (slot == nullptr) continue;
      const bool derived =
          engine.registry.slot(*slot).spec.slot_class == storage::SlotClass::kDerived;
      EXPECT_TRUE(!derived || made.contains(*slot)) << derivation.name;
    }
    made.insert(derivation.outputs.begin(), derivation.outputs.end());
  }
}

TEST(Plan, DeclaresTheArenasOnTheDeviceAndOneSliceOnTheHost) {
  Engine engine({.layers = 2, .experts = 40});
  FakeSource source = engine.source(1);
  std::uint64_t arenas = 0;
  for (const auto* arena : engine.registry.versioned_arenas()) arenas += arena->memory().bytes;
  const auto remap = make_plan(engine.registry, engine.model_config, source, kRemap);
  const auto copy = make_plan(engine.registry, engine.model_config, source, kCopy);
  EXPECT_EQ(remap->peak_device_bytes, arenas);
  EXPECT_EQ(copy->peak_device_bytes, arenas);
  // One expert's blocks and scales, each rounded up to the alignment; not forty.
  EXPECT_EQ(remap->peak_host_bytes, 2 * kTransientAlignment);
  EXPECT_EQ(copy->peak_host_bytes, 2 * kTransientAlignment + kSwapBlockBytes);
  EXPECT_GT(remap->expected_pause_us, 0);
}

TEST(Plan, ReadsItsTextAndStrategyNames) {
  Engine engine;
  FakeSource source = engine.source(1);
  const std::string text = to_text(*plan_of(engine, source), engine.registry);
  EXPECT_THAT(text, HasSubstr("fake source"));
  EXPECT_THAT(text, HasSubstr("0 -> 1 by remap"));
  EXPECT_THAT(text, HasSubstr("layers.1.pack: 2 of 2 inputs from the source, 3 slices -> "
                              "layers.1.experts.packed"));
  for (const CommitStrategy strategy : kCommitStrategies) {
    EXPECT_EQ(commit_strategy_from_name(commit_strategy_name(strategy)), strategy);
  }
  EXPECT_EQ(commit_strategy_from_name("move"), std::nullopt);
}

void erase(FakeSource& source, std::string_view name) {
  std::erase_if(source.data, [&](const testing::FakeTensor& t) { return t.spec.name == name; });
}

void repeat_as(FakeSource& source, std::string_view name, std::string_view as) {
  source.data.push_back(source.tensor(name));
  source.data.back().spec.name = as;
}

struct Defect {
  std::string says;
  ErrorCode code;
  std::function<void(FakeSource&)> make;
};

TEST(Plan, RefusesEveryDefectAndNamesTensorAndBothValues) {
  const std::string scales = "model.layers.0.experts.gate_scales";
  const std::vector<Defect> defects = {
      {"tensor model.layers.1.k_proj.weight is missing (nearest: model.layers.0.k",
       ErrorCode::kNotFound, [](FakeSource& s) { erase(s, "model.layers.1.k_proj.weight"); }},
      {"tensor model.layers.2.sinks is missing", ErrorCode::kNotFound,
       [](FakeSource& s) { erase(s, "model.layers.2.sinks"); }},
      {"tensor model.embedd is not a parameter of the live model (nearest: model.embed",
       ErrorCode::kMismatch, [](FakeSource& s) { repeat_as(s, "model.embed", "model.embedd"); }},
      {"tensor model.embed comes twice", ErrorCode::kMismatch,
       [](FakeSource& s) { repeat_as(s, "model.embed", "model.embed"); }},
      {"tensor model.embed: dtype f16, expected bf16", ErrorCode::kMismatch,
       [](FakeSource& s) { s.tensor("model.embed").spec.dtype = tensor::DType::kF16; }},
      {"tensor model.embed: shape [10, 13], expected [13, 10]", ErrorCode::kMismatch,
       [](FakeSource& s) {
         s.tensor("model.embed").spec.shape = {10, 13};
       }},
      {"tensor model.embed: shape [130], expected [13, 10]", ErrorCode::kMismatch,
       [](FakeSource& s) { s.tensor("model.embed").spec.shape = {130}; }},
      {"tensor " + scales + ": dtype f8_e8m0, expected u8", ErrorCode::kMismatch,
       [&](FakeSource& s) { s.tensor(scales).spec.dtype = tensor::DType::kF8E8M0; }},
  };
  Engine engine;
  for (const Defect& defect : defects) {
    FakeSource source = engine.source(1);
    defect.make(source);
    const auto plan = plan_of(engine, source);
    ASSERT_FALSE(plan.ok()) << defect.says;
    EXPECT_EQ(plan.error().code(), defect.code) << defect.says;
    EXPECT_THAT(plan.error().message(), HasSubstr(defect.says));
    EXPECT_THAT(plan.error().message(), HasSubstr("fake source"));
  }
}

TEST(Plan, SpellsOutThreeDefectsAndCountsTheRest) {
  Engine engine;
  FakeSource source(std::vector<testing::FakeTensor>{});
  const auto plan = plan_of(engine, source);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.error().message(), HasSubstr("tensor model.embed is missing (none are known)"));
  const std::size_t rest = engine.registry.parameters().size() - 3;
  EXPECT_THAT(plan.error().message(), HasSubstr("and " + std::to_string(rest) + " more"));
}

TEST(Plan, RefusesWeightsOfAnotherConfigBeforeAndAfterTheFirstLoad) {
  Engine engine;
  FakeSource good = engine.source(1), other = engine.source(2);
  other.model_config.swiglu.limit = 9.0f;
  for (int loads = 0; loads < 2; ++loads) {
    const auto plan = plan_of(engine, other);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.error().code(), ErrorCode::kMismatch);
    EXPECT_THAT(plan.error().message(), HasSubstr("limit"));
    ASSERT_TRUE(engine.reload(good, kRemap).ok());
  }
}

TEST(Plan, RefusesAnUnsealedRegistry) {
  storage::Registry registry;
  ASSERT_TRUE(testing::define_tiny(registry, {}).ok());
  FakeSource source(testing::draw_tensors(registry, 1));
  const auto plan = make_plan(registry, {}, source, kRemap);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code(), ErrorCode::kFailedPrecondition);
}

TEST(Plan, RefusesAParameterWhoseBytesWouldGoNowhere) {
  Engine used;
  storage::Registry registry;
  ASSERT_TRUE(testing::define_tiny(registry, {}).ok());
  const auto idle =
      registry.bind({.name = "model.idle", .dtype = tensor::DType::kU8, .shape = {4}, .slot = {}});
  ASSERT_TRUE(idle.ok());
  ASSERT_TRUE(registry.seal(*used.device).ok());
  FakeSource source(testing::draw_tensors(registry, 1));
  const auto plan = make_plan(registry, {}, source, kRemap);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(plan.error().message(), HasSubstr("model.idle"));
}

}  // namespace
}  // namespace holdfast::reload
