// Faults of what a captured graph reads besides weights: workspaces with a lock, permutations,
// indexes memoised somewhere, copies that are rebuilt elsewhere. docs/field-cases.md says whose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "reload/reload_fixture.h"
#include "storage/census.h"

namespace holdfast::field {
namespace {

using reload::CommitStrategy;
using reload::testing::FakeSource;
using storage::SlotClass;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr std::int64_t kCount = 8;
constexpr float kWouldSpin = -1, kOutOfRange = -2;

using Values = std::array<float, kCount>;
using Order = std::array<std::int32_t, kCount>;

struct GatherArgs {
  TensorView values, permutation, lock, out;
};

// out[i] = values[permutation[i]] under a lock; where it is held a GPU would spin and never end.
void run_gather(const GatherArgs& args, device::WorkerPool&) {
  auto* const lock = args.lock.as<std::int32_t>();
  float* const out = args.out.as<float>();
  const bool held = *lock != 0;
  if (!held) *lock = 1;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const std::int32_t from = args.permutation.as<std::int32_t>()[i];
    const bool inside = from >= 0 && from < kCount;
    out[i] = held ? kWouldSpin : inside ? args.values.as<float>()[from] : kOutOfRange;
  }
  if (!held) *lock = 0;
}

Order sorted_by(const std::int32_t* keys) {
  Order order{};
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [keys](std::int32_t a, std::int32_t b) { return keys[a] < keys[b]; });
  return order;
}

Status sort_keys(device::Stream&, std::span<const TensorView> in,
                 std::span<const TensorView> out) {
  const Order order = sorted_by(in[0].as<std::int32_t>());
  std::memcpy(out[0].address, order.data(), sizeof(order));
  return {};
}

template <typename T>
reload::testing::FakeTensor fake(const char* name, DType dtype, const std::array<T, kCount>& from) {
  std::vector<std::byte> bytes(sizeof(from));
  std::memcpy(bytes.data(), from.data(), sizeof(from));
  return {.spec = {name, dtype, {kCount}}, .bytes = std::move(bytes)};
}

// A weight, the permutation that is derived from the checkpoint's keys, a workspace with a lock,
// and the captured kernel over them.
class GatherLayer {
 public:
  GatherLayer() {
    values_ = define("values", SlotClass::kWeight, DType::kF32, "");
    permutation_ = define("permutation", SlotClass::kDerived, DType::kI32, "");
    lock_ = define("lock", SlotClass::kSync, DType::kI32, "workspaces");
    out_ = define("out", SlotClass::kScratch, DType::kF32, "");
    registry_
        .bind({.name = "model.values", .dtype = DType::kF32, .shape = {kCount}, .slot = values_})
        .value();
    const auto keys = registry_.bind(
        {.name = "model.g_idx", .dtype = DType::kI32, .shape = {kCount}, .slot = {}});
    registry_
        .derive({.name = "sort",
                 .inputs = {keys.value()},
                 .outputs = {permutation_},
                 .slice_count = 1,
                 .function = sort_keys})
        .value();
    registry_.seal(*device_).value();
    graph_ = device::capture(*stream_, registry_, "gather", [this] {
               const GatherArgs args{view(values_), view(permutation_), view(lock_), view(out_)};
               return device::launch_cpu<&run_gather>(
                   *stream_, "gather", args,
                   {device::reads("values", args.values),
                    device::reads("permutation", args.permutation),
                    device::updates("lock", args.lock), device::writes("out", args.out)});
             }).value();
  }

  // `pushed`: the tensors are handed in whole, the last one first, instead of being read.
  Status load(const Values& values, const Order& keys, CommitStrategy strategy,
              const std::string& label = "", bool pushed = false) {
    FakeSource source({fake("model.values", DType::kF32, values),
                       fake("model.g_idx", DType::kI32, keys)});
    HF_ASSIGN(auto plan, reload::make_plan(registry_, source.config(), source, strategy));
    reload::TransactionOptions options;
    options.clock = &clock_;
    options.label = label;
    HF_ASSIGN(auto transaction,
              reload::Transaction::begin(registry_, std::move(plan), options));
    if (pushed) {
      HF_TRY(push(*transaction, source));
    } else {
      HF_TRY(transaction->stage(source, *stream_));
    }
    HF_TRY(transaction->prepare());
    HF_TRY(transaction->commit());
    return transaction->verify();
  }

  Result<Values> replay() {
    HF_TRY(graph_->launch(*stream_));
    Values result;
    std::memcpy(result.data(), view(out_).address, sizeof(result));
    return result;
  }

  // Every block that was freed is handed out again and overwritten.
  void press() {
    std::vector<device::Memory> blocks;
    for (int i = 0; i < 64; ++i) {
      blocks.push_back(device_->allocate(4096).value());
      std::memset(blocks.back().address, 0x5B, blocks.back().bytes);
    }
    for (const device::Memory& block : blocks) device_->free(block);
  }

  storage::Census census() {
    const device::Graph* graphs[] = {graph_.get()};
    return storage::take_census(registry_, graphs).value();
  }
  std::int32_t lock() const { return *view(lock_).as<std::int32_t>(); }
  storage::Registry& registry() { return registry_; }

 private:
  SlotId define(const char* name, SlotClass slot_class, DType dtype, const char* arena) {
    return registry_
        .define({.name = name,
                 .slot_class = slot_class,
                 .dtype = dtype,
                 .shape = {kCount},
                 .arena = arena})
        .value();
  }
  TensorView view(SlotId id) const { return registry_.view(id); }
  Status push(reload::Transaction& transaction, const FakeSource& source) {
    for (std::size_t i = source.data.size(); i-- > 0;) {
      reload::Fragment fragment;
      fragment.transaction = transaction.id();
      fragment.tensor = source.data[i].spec.name;
      HF_TRY(transaction.put(fragment, source.data[i].bytes, *stream_));
    }
    return transaction.finish_staging(*stream_);
  }

  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  base::SteadyClock clock_;
  storage::Registry registry_;
  std::unique_ptr<device::Stream> stream_ = device_->create_stream(1).value();
  SlotId values_, permutation_, lock_, out_;
  std::unique_ptr<device::Graph> graph_;
};

constexpr Values kValuesA = {1, 2, 3, 4, 5, 6, 7, 8}, kValuesB = {9, 8, 7, 6, 5, 4, 3, 2.5};
constexpr Order kKeysA = {0, 1, 2, 3, 4, 5, 6, 7}, kKeysB = {3, 1, 0, 2, 3, 1, 0, 2};

Values gathered(const Values& values, const Order& keys) {
  const Order order = sorted_by(keys.data());
  Values result;
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = values[static_cast<std::size_t>(order[i])];
  }
  return result;
}

class FieldSlots : public ::testing::TestWithParam<CommitStrategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, FieldSlots,
                         ::testing::ValuesIn(reload::kCommitStrategies),
                         [](const auto& tested) {
                           return std::string(reload::commit_strategy_name(tested.param));
                         });

TEST_P(FieldSlots, ALockWorkspaceStaysInItsPlaceAndFreeOverEveryReload) {
  GatherLayer layer;
  ASSERT_TRUE(layer.load(kValuesA, kKeysA, GetParam()).ok());
  EXPECT_EQ(layer.replay().value(), gathered(kValuesA, kKeysA));
  const storage::Census before = layer.census();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(layer.load(kValuesB, kKeysB, GetParam()).ok());
    layer.press();
    EXPECT_EQ(layer.replay().value(), gathered(kValuesB, kKeysB));
    ASSERT_TRUE(layer.load(kValuesA, kKeysA, GetParam()).ok());
    layer.press();
    EXPECT_EQ(layer.replay().value(), gathered(kValuesA, kKeysA));
    EXPECT_EQ(layer.lock(), 0);
  }
  const storage::Census after = layer.census();
  EXPECT_THAT(storage::diff(before, after).moved, ::testing::IsEmpty());
  EXPECT_EQ(after.homeless_count(), 0u);
}

TEST_P(FieldSlots, APermutationThatIsDerivedIsThatOfTheNewKeysAtTheOldAddress) {
  GatherLayer layer;
  ASSERT_TRUE(layer.load(kValuesA, kKeysA, GetParam()).ok());
  EXPECT_EQ(layer.replay().value(), gathered(kValuesA, kKeysA));
  const storage::Census before = layer.census();
  // Only the order changes: a graph that kept the old one would be right about every value.
  ASSERT_TRUE(layer.load(kValuesA, kKeysB, GetParam()).ok());
  EXPECT_EQ(layer.replay().value(), gathered(kValuesA, kKeysB));
  EXPECT_NE(gathered(kValuesA, kKeysB), gathered(kValuesA, kKeysA));
  const storage::CensusDiff change = storage::diff(before, layer.census());
  EXPECT_THAT(change.moved, ::testing::IsEmpty());
  EXPECT_THAT(change.changed, ::testing::ElementsAre("permutation"));
}

// On no path do weights come in without the label and the epoch that say so.
TEST_P(FieldSlots, EveryWayInSetsEpochAndLabel) {
  GatherLayer layer;
  std::uint64_t epoch = 0;
  for (const bool pushed : {false, true}) {
    // Nothing is staged by a stream, so nothing can be pushed into it.
    if (pushed && GetParam() == CommitStrategy::kStream) break;
    for (const char* label : {"step 100", "step 101"}) {
      ASSERT_TRUE(layer.load(kValuesA, kKeysA, GetParam(), label, pushed).ok());
      EXPECT_EQ(layer.registry().label(), label);
      EXPECT_EQ(layer.registry().epoch().value, ++epoch);
    }
  }
}

// The defect planted: the old workspace is freed and somebody else's bytes lie there.
TEST(FieldDefects, AWorkspaceInFreshStorageIsNamedByTheCensus) {
  GatherLayer layer;
  ASSERT_TRUE(layer.load(kValuesA, kKeysA, CommitStrategy::kRemap).ok());
  const storage::Census before = layer.census();
  ASSERT_TRUE(layer.registry().inject_rebind("workspaces").ok());
  const storage::Census after = layer.census();
  EXPECT_EQ(after.homeless_count(), 1u);
  EXPECT_THAT(storage::diff(before, after).moved, ::testing::ElementsAre("lock"));
#ifndef __SANITIZE_ADDRESS__
  const auto replayed = layer.replay();
  EXPECT_FALSE(replayed.ok() && *replayed == gathered(kValuesA, kKeysA));
#endif
}

// The defect planted: every loaded and derived tensor is rebuilt elsewhere, its values intact.
TEST(FieldDefects, ADerivedCopyInFreshStorageIsNamedByTheCensus) {
  reload::testing::Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.reload(a, CommitStrategy::kRemap).ok());
  const auto graph = reload::testing::capture_sum(engine).value();
  const device::Graph* graphs[] = {graph.get()};
  const storage::Census before = storage::take_census(engine.registry, graphs).value();
  EXPECT_EQ(before.homeless_count(), 0u);
  ASSERT_TRUE(engine.registry.inject_rebind("weights").ok());
  const storage::Census after = storage::take_census(engine.registry, graphs).value();
  const storage::CensusDiff change = storage::diff(before, after);
  EXPECT_THAT(change.changed, ::testing::IsEmpty()) << "only the addresses tell";
  for (const char* name : {"layers.1.sinks", "layers.1.experts.packed", "layers.1.experts.sums",
                           "layers.1.qkv", "embed", "embed.norm"}) {
    EXPECT_THAT(change.moved, Contains(name));
  }
  EXPECT_EQ(after.homeless_count(), 5u) << "all that the graph reads of that arena";
}

// ------------------------------------------------------------------------------ hidden state

std::array<std::int32_t, kCount> memoised_index;  // of the program, and writable

struct IndexedArgs {
  TensorView values, out;
  const std::int32_t* index;
};
void run_indexed(const IndexedArgs& args, device::WorkerPool&) {
  for (std::int64_t i = 0; i < kCount; ++i) {
    args.out.as<float>()[i] = args.values.as<float>()[args.index[i]];
  }
}

TEST(FieldDefects, AnIndexThatIsMemoisedOutsideOfTheSlotsFailsTheCapture) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream(1).value();
  storage::Registry registry;
  std::vector<SlotId> slots;
  for (const char* name : {"values", "out"}) {
    slots.push_back(registry
                        .define({.name = name,
                                 .slot_class = SlotClass::kScratch,
                                 .dtype = DType::kF32,
                                 .shape = {kCount},
                                 .arena = {}})
                        .value());
  }
  registry.seal(*device).value();
  const auto captured = [&](const std::int32_t* index) {
    return device::capture(*stream, registry, "indexed", [&] {
      const IndexedArgs args{registry.view(slots[0]), registry.view(slots[1]), index};
      return device::launch_cpu<&run_indexed>(
          *stream, "indexed", args,
          {device::reads("values", args.values), device::writes("out", args.out)});
    });
  };
  const std::vector<std::int32_t> of_an_instance(kCount);
  const device::Memory pool = device->allocate(4096).value();
  const std::vector<const std::int32_t*> places = {
      memoised_index.data(), of_an_instance.data(),
      reinterpret_cast<const std::int32_t*>(pool.address)};
  for (const std::int32_t* index : places) {
    const auto graph = captured(index);
    EXPECT_FALSE(graph.ok());
    if (graph.ok()) continue;
    EXPECT_EQ(graph.error().code(), ErrorCode::kMismatch);
    EXPECT_THAT(graph.error().message(), HasSubstr("which no operand declares"));
  }
  device->free(pool);
}

}  // namespace
}  // namespace holdfast::field
