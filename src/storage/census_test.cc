// I1 to I3 end to end with no model: a registry, a captured graph over its slots, replacements of
// the bytes under it, and the census that tells a sound replacement from a rebind.
#include "storage/address_tables.h"
#include "storage/census.h"
#include "storage/graph_census.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"

namespace holdfast::storage {
namespace {

using tensor::DType;
using tensor::Shape;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kCount = 16;

struct ScaleArgs {
  tensor::TensorView weight;
  tensor::TensorView alpha;
  tensor::TensorView out;
};

void run_scale(const ScaleArgs& args, device::WorkerPool& workers) {
  workers.parallel_for(kCount, 4, [&args](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      args.out.as<float>()[i] = args.weight.as<float>()[i] * args.alpha.as<float>()[0];
    }
  });
}

// One weight slot, one constant in an arena of its own, one working slot, and a kernel that reads
// the first two.
class CensusTest : public testing::Test {
 protected:
  void SetUp() override {
    weight_ = registry_.define({.name = "w", .dtype = DType::kF32, .shape = Shape{kCount}}).value();
    ASSERT_TRUE(registry_.bind({.name = "w.param",
                                .dtype = DType::kF32,
                                .shape = Shape{kCount},
                                .slot = weight_}).ok());
    std::vector<std::byte> two(4);
    const float value = 2.0f;
    std::memcpy(two.data(), &value, 4);
    alpha_ = registry_.define_constant({.name = "swiglu_alpha",
                                        .slot_class = SlotClass::kConstant,
                                        .dtype = DType::kF32,
                                        .shape = Shape{1},
                                        .arena = "constants"}, two).value();
    out_ = registry_.define({.name = "out",
                             .slot_class = SlotClass::kScratch,
                             .dtype = DType::kF32,
                             .shape = Shape{kCount}}).value();
  }

  ScaleArgs args() {
    return {registry_.view(weight_), registry_.view(alpha_), registry_.view(out_)};
  }
  Result<std::unique_ptr<device::Graph>> capture_scale() {
    return device::capture(*stream_, registry_, "decode.b1", [this] {
      const ScaleArgs a = args();
      return device::launch_cpu<&run_scale>(
          *stream_, "scale", a,
          {device::reads("weight", a.weight), device::reads("alpha", a.alpha),
           device::writes("out", a.out)});
    });
  }
  void seal() { ASSERT_TRUE(registry_.seal(device_).ok()); }

  // A commit in small: fresh backing for every versioned arena, filled, exchanged.
  Status replace(float weight, float alpha) {
    registry_.begin_apply();
    const Status status = exchange_all(weight, alpha);
    registry_.end_apply(true);
    return status;
  }
  Status exchange_all(float weight, float alpha) {
    for (const auto& [id, value] : {std::pair{weight_, weight}, std::pair{alpha_, alpha}}) {
      device::Arena& arena = registry_.arena_of(id);
      HF_ASSIGN(device::Backing staged, arena.create_backing());
      auto* floats = reinterpret_cast<float*>(staged.memory().address);
      for (int i = 0; i < kCount; ++i) floats[i] = value;
      HF_TRY(arena.exchange(staged));
    }
    return {};
  }
  Census census(const device::Graph& graph) {
    const device::Graph* graphs[] = {&graph};
    return take_census(registry_, graphs).value();
  }
  float first_out() { return registry_.view(out_).as<float>()[0]; }

  device::SimDevice device_{device::make_cpu_device()};
  std::unique_ptr<device::Stream> stream_ = device_.create_stream(2).value();
  Registry registry_;
  SlotId weight_, alpha_, out_;
};

TEST_F(CensusTest, ACaptureOverAnUnsealedRegistryIsRefused) {
  auto graph = device::capture(*stream_, registry_, "decode", [] { return Status(); });
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(CensusTest, EveryCapturedAddressHasAHome) {
  seal();
  auto graph = capture_scale().value();
  const Census counted = census(*graph);
  EXPECT_EQ(counted.homeless_count(), 0u);
  ASSERT_EQ(counted.addresses.size(), 3u);
  EXPECT_EQ(counted.addresses[1].home, "swiglu_alpha");
  EXPECT_EQ(counted.addresses[1].role, "alpha");
  EXPECT_EQ(counted.addresses[1].node, "0:scale");
  EXPECT_EQ(counted.addresses[1].graph, "decode.b1");
}

TEST_F(CensusTest, TheGraphsPointersAreReadBackFromItsArgumentsWithOperandAndSlot) {
  seal();
  auto graph = capture_scale().value();
  const device::Graph* graphs[] = {graph.get()};
  const GraphCensus counted = take_graph_census(registry_, graphs).value();
  ASSERT_EQ(counted.nodes.size(), 1u);
  EXPECT_EQ(counted.nodes[0].name, "0:scale");
  EXPECT_EQ(counted.nodes[0].graph, "decode.b1");
  EXPECT_EQ(counted.words, (sizeof(ScaleArgs) - sizeof(void*)) / 4 + 1);
  ASSERT_EQ(counted.pointers, 3u);
  const GraphCensus::Pointer& alpha = counted.nodes[0].pointers[1];
  EXPECT_EQ(alpha.role, "alpha");
  EXPECT_EQ(alpha.slot, "swiglu_alpha");
  EXPECT_EQ(alpha.slot_offset, 0u);
  EXPECT_EQ(alpha.address, registry_.slot(alpha_).range.begin);
  EXPECT_EQ(counted.homeless, 0u);
  EXPECT_THAT(counted.unaudited, IsEmpty());
}

TEST_F(CensusTest, AReplacementKeepsEveryAddressAndTheGraphReadsTheNewBytes) {
  seal();
  ASSERT_TRUE(replace(3.0f, 2.0f).ok());
  auto graph = capture_scale().value();
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(first_out(), 6.0f);
  const Census before = census(*graph);
  ASSERT_TRUE(replace(5.0f, 2.0f).ok());
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(first_out(), 10.0f);
  const Census after = census(*graph);
  const CensusDiff change = diff(before, after);
  EXPECT_THAT(change.moved, IsEmpty());
  EXPECT_THAT(change.changed, ElementsAre("w"));
  EXPECT_EQ(change.same_address_count, 3u);
  EXPECT_EQ(after.homeless_count(), 0u);
  EXPECT_EQ(registry_.arena_of(weight_).protection(), device::Protection::kReadOnly);
}

TEST_F(CensusTest, AnIdenticalReplacementChangesNoDigest) {
  seal();
  ASSERT_TRUE(replace(3.0f, 2.0f).ok());
  auto graph = capture_scale().value();
  const Census before = census(*graph);
  ASSERT_TRUE(replace(3.0f, 2.0f).ok());
  const CensusDiff change = diff(before, census(*graph));
  EXPECT_THAT(change.moved, IsEmpty());
  EXPECT_THAT(change.changed, IsEmpty());
}

TEST_F(CensusTest, AReplacementOfAnotherSizeIsAnErrorAndChangesNothing) {
  seal();
  ASSERT_TRUE(replace(3.0f, 2.0f).ok());
  auto graph = capture_scale().value();
  const Census before = census(*graph);
  auto other = device::Arena::create(device_, "other", 10 * device_.page_bytes()).value();
  auto staged = other->create_backing().value();
  Status status = registry_.arena_of(weight_).exchange(staged);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(status.error().message(), HasSubstr("4096 bytes, the backing has 40960"));
  const CensusDiff change = diff(before, census(*graph));
  EXPECT_THAT(change.moved, IsEmpty());
  EXPECT_THAT(change.changed, IsEmpty());
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(first_out(), 6.0f);
}

TEST_F(CensusTest, AnExchangeThatFailsChangesNothing) {
  seal();
  ASSERT_TRUE(replace(3.0f, 2.0f).ok());
  auto graph = capture_scale().value();
  const Census before = census(*graph);
  for (device::Fault fault : {device::Fault::kExchangeFails, device::Fault::kProtectFails,
                              device::Fault::kAllocationFails}) {
    device_.arm({{.fault = fault}});
    EXPECT_FALSE(replace(9.0f, 9.0f).ok());
    device_.disarm();
    const CensusDiff change = diff(before, census(*graph));
    EXPECT_THAT(change.moved, IsEmpty());
    EXPECT_THAT(change.changed, IsEmpty());
  }
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_EQ(first_out(), 6.0f);
}

TEST_F(CensusTest, ARebindLeavesTheGraphsAddressesHomelessAndTheCensusSaysWhich) {
  seal();
  ASSERT_TRUE(replace(3.0f, 2.0f).ok());
  auto graph = capture_scale().value();
  const Census before = census(*graph);
  const std::uintptr_t old_address = registry_.slot(alpha_).range.begin;
  const std::uint64_t generation = registry_.layout_generation();
  ASSERT_TRUE(registry_.inject_rebind("constants").ok());
  EXPECT_EQ(registry_.layout_generation(), generation);
  EXPECT_FALSE(registry_.contains({old_address, 4}));
  EXPECT_EQ(registry_.resolve(registry_.slot(alpha_).range.begin), alpha_);

  const Census after = census(*graph);
  EXPECT_EQ(after.homeless_count(), 1u);
  EXPECT_EQ(after.addresses[1].home, "");
  EXPECT_EQ(after.addresses[1].address, old_address);
  const CensusDiff change = diff(before, after);
  EXPECT_THAT(change.moved, ElementsAre("swiglu_alpha"));
  EXPECT_THAT(change.changed, IsEmpty());  // the values moved along: only the address tells
  EXPECT_EQ(change.same_address_count, 2u);
  EXPECT_EQ(registry_.view(alpha_).as<float>()[0], 2.0f);
  EXPECT_EQ(registry_.arena_of(alpha_).protection(), device::Protection::kReadOnly);
}

// What a node shows of a batched kernel is the table; what the kernel reads is what stands in it.
class AddressTableTest : public CensusTest {
 protected:
  void SetUp() override {
    CensusTest::SetUp();
    table_ = registry_.define({.name = "experts.pointers",
                               .slot_class = SlotClass::kState,
                               .dtype = DType::kI64,
                               .shape = Shape{3},
                               .address_table = true}).value();
    seal();
    put(0, registry_.slot(weight_).range.begin + 8);
    put(2, registry_.slot(alpha_).range.begin);
  }
  void put(int index, std::uint64_t address) {
    std::memcpy(registry_.view(table_).address + 8 * index, &address, 8);
  }
  SlotId table_;
};

TEST_F(AddressTableTest, EachEntryIsCountedWithItsHome) {
  EXPECT_TRUE(check_address_tables(registry_).ok());
  const Census counted = take_census(registry_, {}).value();
  ASSERT_EQ(counted.addresses.size(), 2u) << "a null entry points nowhere";
  EXPECT_EQ(counted.addresses[0].node, "experts.pointers");
  EXPECT_EQ(counted.addresses[0].role, "[0]");
  EXPECT_EQ(counted.addresses[0].home, "w");
  EXPECT_EQ(counted.addresses[1].role, "[2]");
  EXPECT_EQ(counted.addresses[1].home, "swiglu_alpha");
  const GraphCensus graphs = take_graph_census(registry_, {}).value();
  ASSERT_EQ(graphs.nodes.size(), 1u);
  EXPECT_EQ(graphs.nodes[0].name, "experts.pointers");
  ASSERT_EQ(graphs.nodes[0].pointers.size(), 2u);
  EXPECT_EQ(graphs.nodes[0].pointers[0].slot_offset, 8u);
  EXPECT_EQ(graphs.nodes[0].pointers[1].byte, 16u);
  EXPECT_EQ(graphs.homeless, 0u);
}

TEST_F(AddressTableTest, AnEntryThatARebindLeftBehindHasNoHomeAndIsNamed) {
  const std::uintptr_t stale = registry_.slot(alpha_).range.begin;
  ASSERT_TRUE(registry_.inject_rebind("constants").ok());
  const Status checked = check_address_tables(registry_);
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.error().code(), ErrorCode::kMismatch);
  EXPECT_THAT(checked.error().message(), HasSubstr("address table experts.pointers: word 2"));
  EXPECT_THAT(checked.error().message(), HasSubstr(fmt::format("{:#x}", stale)));
  EXPECT_EQ(take_census(registry_, {}).value().homeless_count(), 1u);
  EXPECT_EQ(take_graph_census(registry_, {}).value().homeless, 1u);
}

TEST(AddressTable, OneThatACommitWouldReplaceOrOfSmallerWordsIsRefused) {
  Registry registry;
  const auto versioned = registry.define(
      {.name = "t", .dtype = DType::kI64, .shape = Shape{2}, .address_table = true});
  ASSERT_FALSE(versioned.ok());
  EXPECT_THAT(versioned.error().message(), HasSubstr("a commit would replace class weight"));
  const auto narrow = registry.define({.name = "t",
                                       .slot_class = SlotClass::kState,
                                       .dtype = DType::kI32,
                                       .shape = Shape{2},
                                       .address_table = true});
  ASSERT_FALSE(narrow.ok());
  EXPECT_THAT(narrow.error().message(), HasSubstr("which have 64 bits, and"));
}

#ifndef __SANITIZE_ADDRESS__
TEST_F(CensusTest, AfterARebindTheGraphReadsPoison) {
  seal();
  ASSERT_TRUE(replace(1.0f, 2.0f).ok());
  auto graph = capture_scale().value();
  ASSERT_TRUE(registry_.inject_rebind("constants").ok());
  ASSERT_TRUE(graph->launch(*stream_).ok());
  EXPECT_LT(first_out(), -1.9e18f);
}
#else
using CensusDeathTest = CensusTest;
TEST_F(CensusDeathTest, AfterARebindTheReplayIsAUseAfterFree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  seal();
  ASSERT_TRUE(replace(1.0f, 2.0f).ok());
  auto graph = capture_scale().value();
  ASSERT_TRUE(registry_.inject_rebind("constants").ok());
  EXPECT_DEATH((void)graph->launch(*stream_), "use-after-poison");
}
#endif

TEST_F(CensusTest, ARebindOfAnUnknownArenaIsAnErrorAndAFailedOneChangesNothing) {
  seal();
  EXPECT_EQ(registry_.inject_rebind("nothing").error().code(), ErrorCode::kNotFound);
  const std::uintptr_t address = registry_.slot(alpha_).range.begin;
  device_.arm({{.fault = device::Fault::kAllocationFails}});
  EXPECT_FALSE(registry_.inject_rebind("constants").ok());
  EXPECT_EQ(registry_.slot(alpha_).range.begin, address);
}

TEST_F(CensusTest, AGraphIsNotLaunchedOverAClosedRegistry) {
  seal();
  auto graph = capture_scale().value();
  registry_.close();
  Status launched = graph->launch(*stream_);
  ASSERT_FALSE(launched.ok());
  EXPECT_EQ(launched.error().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(CensusTest, ADiffNamesSlotsThatOnlyOneSideHas) {
  Census before;
  before.slots = {{.name = "a", .address = 64, .bytes = 8, .digest = base::Digest{1, 1}},
                  {.name = "gone", .address = 128, .bytes = 8, .digest = {}}};
  Census after;
  after.slots = {{.name = "new", .address = 128, .bytes = 8, .digest = {}},
                 {.name = "a", .address = 64, .bytes = 16, .digest = base::Digest{1, 1}}};
  const CensusDiff change = diff(before, after);
  EXPECT_THAT(change.only_before, ElementsAre("gone"));
  EXPECT_THAT(change.only_after, ElementsAre("new"));
  EXPECT_THAT(change.moved, ElementsAre("a"));  // another size is another place
  EXPECT_THAT(change.changed, IsEmpty());
  EXPECT_EQ(change.same_address_count, 0u);
}

TEST_F(CensusTest, TheJsonHoldsWhatTheCensusHolds) {
  seal();
  auto graph = capture_scale().value();
  const Census counted = census(*graph);
  const auto json = nlohmann::json::parse(to_json(counted));
  EXPECT_EQ(json["epoch"], 0);
  EXPECT_EQ(json["homeless"], 0);
  ASSERT_EQ(json["slots"].size(), 3u);
  EXPECT_EQ(json["slots"][0]["name"], "w");
  EXPECT_EQ(json["slots"][0]["class"], "weight");
  EXPECT_EQ(json["slots"][0]["bytes"], 64);
  EXPECT_EQ(json["slots"][0]["address"], fmt::format("{:#x}", counted.slots[0].address));
  EXPECT_EQ(json["slots"][0]["digest"], counted.slots[0].digest->to_hex());
  EXPECT_TRUE(json["slots"][2]["digest"].is_null());
  EXPECT_EQ(json["addresses"][0]["home"], "w");
}

TEST_F(CensusTest, ANameThatIsNotUtf8DoesNotBreakTheJson) {
  Census counted;
  counted.slots = {{.name = "bad\xff\"name", .digest = {}}};
  EXPECT_TRUE(nlohmann::json::accept(to_json(counted)));
}

TEST_F(CensusTest, TheTableShowsClassesAndHomelessAddresses) {
  seal();
  auto graph = capture_scale().value();
  ASSERT_TRUE(registry_.inject_rebind("constants").ok());
  const Census counted = census(*graph);
  const std::string table = to_table(counted, false);
  EXPECT_THAT(table, HasSubstr("constant"));
  EXPECT_THAT(table, HasSubstr("captured addresses: 3, of them in no slot: 1"));
  EXPECT_THAT(table, HasSubstr("no home: graph decode.b1 node 0:scale operand alpha"));
  EXPECT_THAT(table, testing::Not(HasSubstr("swiglu_alpha")));
  EXPECT_THAT(to_table(counted, true), HasSubstr("swiglu_alpha"));
}

}  // namespace
}  // namespace holdfast::storage
