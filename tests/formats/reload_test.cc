// Reloads of one experts layer in every scheme and dialect on every backend that runs it: a warm
// layer is a cold one in every slot, a graph that was captured before reads the new weights, and
// each fault of the field is named by its slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "experts/test_layer.h"
#include "experts/test_schemes.h"
#include "reload/faults.h"
#include "reload/reload_fixture.h"
#include "reload/scope.h"

namespace holdfast::formats {
namespace {

using experts::ExpertsBackendKind;
using experts::testing::SchemeCase;
using experts::testing::Tensors;
using experts::testing::TestLayer;
using reload::CommitStrategy;
using reload::InjectedFault;
using reload::testing::FakeSource;
using reload::testing::FakeTensor;
using storage::SlotClass;
using ::testing::HasSubstr;
using Kind = InjectedFault::Kind;

// The tensors as their publisher has them: one for each expert where the format says so.
FakeSource source_of(const storage::Registry& registry, const Tensors& tensors) {
  std::vector<FakeTensor> published;
  const auto add = [&](const std::string& name, const tensor::TensorView& view) {
    const auto bytes = view.const_span();
    published.push_back({.spec = {.name = name, .dtype = view.dtype, .shape = view.shape},
                         .bytes = {bytes.begin(), bytes.end()}});
  };
  for (const storage::ParameterSpec& parameter : registry.parameters()) {
    const std::string name =
        parameter.name.substr(std::strlen(experts::testing::kTestPrefix) + 1);
    const tensor::TensorView whole = tensors.at(name).view();
    if (parameter.part_names.empty()) add(parameter.name, whole);
    for (std::size_t e = 0; e < parameter.part_names.size(); ++e) {
      tensor::TensorView part = whole.row(static_cast<std::int64_t>(e));
      part.shape = parameter.part_shape;
      add(parameter.part_names[e], part);
    }
  }
  return FakeSource(std::move(published));
}

// A layer that is loaded by transactions, and the graph that was captured before the first.
class Layer {
 public:
  Layer(ExpertsBackendKind kind, const SchemeCase& c)
      : case_(c), layer_(kind, c.format, c.shape, 2) {
    layer_.randomize_rows(100);
    graph_ = device::capture(layer_.runner().stream(), layer_.registry(), "experts",
                             [&] { return layer_.forward(0, c.shape.max_rows); })
                 .value();
  }
  ~Layer() { graph_.reset(); }

  Status reload(std::uint64_t seed, CommitStrategy strategy, Kind fault = Kind::kNone,
                const reload::Scope& scope = {}) {
    std::unique_ptr<reload::Source> source = std::make_unique<FakeSource>(source_of(
        registry(), experts::testing::make_tensors(case_.format, case_.shape, seed)));
    if (!scope.whole()) {
      HF_ASSIGN(source, reload::make_scoped_source(std::move(source), registry(), scope));
    }
    HF_ASSIGN(reload::ReloadPlan plan,
              reload::make_plan(registry(), source->config(), *source,
                                reload::PlanOptions{.strategy = strategy, .scope = scope}));
    HF_ASSIGN(transaction_,
              reload::Transaction::begin(registry(), std::move(plan),
                                         {.clock = &clock_, .fault = {fault}}));
    HF_TRY(transaction_->stage(*source, layer_.runner().stream()));
    HF_TRY(transaction_->prepare());
    HF_TRY(transaction_->commit());
    return fault == Kind::kNone ? transaction_->verify() : Status();
  }
  std::vector<float> replay() {
    layer_.poison_out();
    graph_->launch(layer_.runner().stream()).value();
    return {layer_.out().begin(), layer_.out().end()};
  }
  // Of every versioned slot.
  std::map<std::string, std::vector<std::byte>> values() {
    std::map<std::string, std::vector<std::byte>> all;
    for (const storage::Slot& slot : registry().slots()) {
      if (!storage::is_versioned(slot.spec.slot_class)) continue;
      const auto bytes = registry().view(slot.id).const_span();
      all[slot.spec.name].assign(bytes.begin(), bytes.end());
    }
    return all;
  }
  std::map<std::string, std::uintptr_t> places() {
    std::map<std::string, std::uintptr_t> all;
    for (const storage::Slot& slot : registry().slots()) {
      all[slot.spec.name] = slot.range.begin;
    }
    return all;
  }
  storage::Registry& registry() { return layer_.registry(); }
  TestLayer& layer() { return layer_; }

 private:
  SchemeCase case_;
  base::SteadyClock clock_;
  TestLayer layer_;
  std::unique_ptr<reload::Transaction> transaction_;
  std::unique_ptr<device::Graph> graph_;
};

template <typename T>
std::set<std::string> differing(const std::map<std::string, T>& a,
                                const std::map<std::string, T>& b) {
  std::set<std::string> names;
  for (const auto& [name, value] : a) {
    if (b.at(name) != value) names.insert(name);
  }
  return names;
}

void expect_cold(Layer& warm, const SchemeCase& c, ExpertsBackendKind kind, std::uint64_t seed) {
  Layer cold(kind, c);
  ASSERT_TRUE(cold.reload(seed, CommitStrategy::kCopy).ok());
  EXPECT_EQ(differing(warm.values(), cold.values()), std::set<std::string>{});
  const std::vector<float> out = warm.replay();
  EXPECT_EQ(std::memcmp(out.data(), cold.replay().data(), out.size() * sizeof(float)), 0);
}

template <typename Run>
void for_all(const Run& run) {
  for (const SchemeCase& c : experts::testing::scheme_cases()) {
    for (const ExpertsBackendKind kind : experts::testing::backends_of(c.format)) {
      SCOPED_TRACE(std::string(c.name) + ", " + std::string(experts::experts_backend_name(kind)));
      run(c, kind);
    }
  }
}

TEST(FormatReload, AWarmLayerIsAColdOneAfterEveryReloadAndTheGraphReadsIt) {
  for_all([](const SchemeCase& c, ExpertsBackendKind kind) {
    Layer warm(kind, c);
    ASSERT_TRUE(warm.reload(1, CommitStrategy::kRemap).ok());
    const auto places = warm.places();
    const std::vector<float> first = warm.replay();
    const auto values = warm.values();
    ASSERT_TRUE(warm.reload(1, CommitStrategy::kRemap).ok());
    EXPECT_EQ(differing(values, warm.values()), std::set<std::string>{});
    EXPECT_EQ(first, warm.replay());
    // Three with other scales each: what is derived of what is derived follows.
    for (const std::uint64_t seed : {2, 3, 4}) {
      const auto strategy = seed == 2   ? CommitStrategy::kRemap
                            : seed == 3 ? CommitStrategy::kCopy
                                        : CommitStrategy::kStream;
      ASSERT_TRUE(warm.reload(seed, strategy).ok());
      EXPECT_NE(first, warm.replay());
    }
    expect_cold(warm, c, kind, 4);
    EXPECT_EQ(places, warm.places());
    for (const storage::Slot& slot : warm.registry().slots()) {
      if (slot.spec.slot_class != SlotClass::kSync) continue;
      for (const std::byte byte : warm.registry().view(slot.id).const_span()) {
        ASSERT_EQ(byte, std::byte{0}) << slot.spec.name;
      }
    }
  });
}

TEST(FormatReload, OneExpertsReloadChangesThatExpertAlone) {
  for_all([](const SchemeCase& c, ExpertsBackendKind kind) {
    Layer warm(kind, c);
    ASSERT_TRUE(warm.reload(1, CommitStrategy::kRemap).ok());
    const auto before = warm.values();
    const auto status = warm.reload(2, CommitStrategy::kRemap, Kind::kNone,
                                    {.experts = {{.layer = 0, .expert = 1}}});
    ASSERT_TRUE(status.ok()) << status.error().to_string();
    Layer other(kind, c);
    ASSERT_TRUE(other.reload(2, CommitStrategy::kRemap).ok());
    const auto after = warm.values();
    const auto next = other.values();
    const auto experts = static_cast<std::size_t>(c.shape.expert_count);
    for (const auto& [name, bytes] : after) {
      const std::size_t slice = bytes.size() / experts;
      for (std::size_t e = 0; e < experts; ++e) {
        const auto& expected = e == 1 ? next.at(name) : before.at(name);
        ASSERT_EQ(std::memcmp(&bytes[e * slice], &expected[e * slice], slice), 0)
            << name << " of expert " << e;
      }
    }
  });
}

// ---- the field's faults

SchemeCase case_named(const std::string& name) {
  for (const SchemeCase& c : experts::testing::scheme_cases()) {
    if (c.name == name) return c;
  }
  return {};
}

struct FaultCase {
  Kind fault;
  const char* scheme;
  ExpertsBackendKind backend;
  std::set<std::string> slots;  // under "layers.0.experts."
};

std::set<std::string> named(const std::set<std::string>& slots) {
  std::set<std::string> names;
  for (const std::string& slot : slots) names.insert("layers.0.experts." + slot);
  return names;
}

TEST(FormatFaults, WhatKeepsOldBytesOrMisplacesThemIsNamedAgainstAColdLayer) {
  using B = ExpertsBackendKind;
  const FaultCase cases[] = {
      {Kind::kStaleSortIndex, "gptq act-order", B::kMarlin,
       {"gate_up.sort_indices", "down.sort_indices"}},
      {Kind::kStalePermutation, "gptq act-order", B::kMachete,
       {"gate_up.act_perm", "down.act_perm"}},
      {Kind::kStalePermutation, "gptq act-order", B::kHoldfast, {"gate_up.order", "down.order"}},
      {Kind::kStaleAlpha, "nvfp4 x nvfp4", B::kTrtllm, {"gate.alpha", "up.alpha", "down.alpha"}},
      {Kind::kStaleAlpha, "fp8 tensor x static", B::kCutlass,
       {"gate.alpha", "up.alpha", "down.alpha"}},
      {Kind::kStaleAlpha, "nvfp4", B::kMarlin,
       {"gate.weight_scale", "up.weight_scale", "down.weight_scale"}},
      {Kind::kShuffleTwice, "mxfp4", B::kTrtllm,
       {"gate_up.weight", "gate_up.scale", "down.weight", "down.scale"}},
      {Kind::kNoShuffle, "mxfp4", B::kTrtllm,
       {"gate_up.weight", "gate_up.scale", "down.weight", "down.scale"}},
      {Kind::kShuffleTwice, "int4 compressed", B::kMarlin,
       {"gate_up.weight", "gate_up.scale", "down.weight", "down.scale"}},
      // `down` has one tile of columns, which stands as it is published.
      {Kind::kNoShuffle, "mxfp4", B::kCutlass, {"gate_up.weight", "gate_up.scale", "down.scale"}},
      {Kind::kNoShuffle, "mxfp4", B::kHoldfast,
       {"gate_up_proj_blocks.packed", "gate_up_proj_scales.packed", "down_proj_blocks.packed",
        "down_proj_scales.packed"}},
  };
  for (const FaultCase& f : cases) {
    for (const auto strategy : {CommitStrategy::kRemap, CommitStrategy::kStream}) {
      SCOPED_TRACE(std::string(reload::fault_kind_name(f.fault)) + ", " + f.scheme);
      const SchemeCase c = case_named(f.scheme);
      Layer warm(f.backend, c), cold(f.backend, c);
      ASSERT_TRUE(warm.reload(1, strategy).ok());
      ASSERT_TRUE(warm.reload(2, strategy, f.fault).ok());
      ASSERT_TRUE(cold.reload(2, CommitStrategy::kCopy).ok());
      EXPECT_EQ(differing(warm.values(), cold.values()), named(f.slots));
      EXPECT_NE(warm.replay(), cold.replay());
    }
  }
}

TEST(FormatFaults, WhatIsRebuiltInFreshStorageHasMoved) {
  using B = ExpertsBackendKind;
  const FaultCase cases[] = {
      {Kind::kReregisteredScale, "fp8 tensor x static", B::kCutlass,
       {"gate_up.input_scale", "gate_up.input_scale_reciprocal", "gate.weight_scale",
        "gate.alpha", "up.weight_scale", "up.alpha", "down.input_scale",
        "down.input_scale_reciprocal", "down.weight_scale", "down.alpha"}},
      {Kind::kReregisteredScale, "nvfp4 x nvfp4", B::kHoldfast,
       {"gate_up.input_scale", "gate.weight_scale", "gate.alpha", "up.weight_scale", "up.alpha",
        "down.input_scale", "down.weight_scale", "down.alpha"}},
      {Kind::kRebindConstants, "mxfp4 x mxfp8", B::kCutlass,
       {"gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit", "fake_input_scale"}},
  };
  for (const FaultCase& f : cases) {
    SCOPED_TRACE(std::string(reload::fault_kind_name(f.fault)) + ", " + f.scheme);
    Layer warm(f.backend, case_named(f.scheme));
    ASSERT_TRUE(warm.reload(1, CommitStrategy::kCopy).ok());
    const auto places = warm.places();
    ASSERT_TRUE(warm.reload(1, CommitStrategy::kCopy, f.fault).ok());
    EXPECT_EQ(differing(places, warm.places()), named(f.slots));
  }
  Layer marlin(B::kMarlin, case_named("mxfp4"));
  ASSERT_TRUE(marlin.reload(1, CommitStrategy::kCopy).ok());
  const auto places = marlin.places();
  ASSERT_TRUE(marlin.reload(1, CommitStrategy::kCopy, Kind::kRebuiltWorkspace).ok());
  EXPECT_EQ(differing(places, marlin.places()), std::set<std::string>{"experts.workspace.locks"});
}

TEST(FormatFaults, ABackendWithoutSuchASlotRefusesTheFaultSayingSo) {
  using B = ExpertsBackendKind;
  const std::tuple<Kind, const char*, B, const char*> cases[] = {
      {Kind::kRebuiltWorkspace, "mxfp4", B::kCutlass, "no arena experts.sync"},
      {Kind::kReregisteredScale, "mxfp4", B::kMarlin, "no arena experts.scales"},
      {Kind::kStaleSortIndex, "gptq act-order", B::kMachete, "no slot that it would act on"},
      {Kind::kStalePermutation, "gptq", B::kMachete, "no slot that it would act on"},
      {Kind::kStaleAlpha, "bf16", B::kUnquantised, "no slot that it would act on"},
      {Kind::kShuffleTwice, "bf16", B::kUnquantised, "moves no units"},
      {Kind::kNoShuffle, "mxfp4", B::kReference, "moves no units"},
  };
  for (const auto& [fault, scheme, backend, reason] : cases) {
    Layer layer(backend, case_named(scheme));
    ASSERT_TRUE(layer.reload(1, CommitStrategy::kRemap).ok());
    const Status status = layer.reload(2, CommitStrategy::kRemap, fault);
    ASSERT_FALSE(status.ok()) << reload::fault_kind_name(fault);
    EXPECT_THAT(status.error().message(), HasSubstr(reason));
    EXPECT_THAT(status.error().message(),
                HasSubstr(std::string(reload::fault_kind_name(fault))));
  }
}

}  // namespace
}  // namespace holdfast::formats
