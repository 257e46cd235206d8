// I1 and I3 with no model: what a registry accepts while building, what seal fixes, and what is
// refused afterwards.
#include "storage/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"

namespace holdfast::storage {
namespace {

using tensor::DType;
using tensor::Shape;
using testing::ElementsAre;
using testing::HasSubstr;

SlotSpec weight_spec(std::string name, std::int64_t rows = 4) {
  return {.name = std::move(name), .dtype = DType::kF32, .shape = Shape{rows, 8}};
}

SlotSpec spec_of(std::string name, SlotClass slot_class) {
  SlotSpec spec = weight_spec(std::move(name));
  spec.slot_class = slot_class;
  return spec;
}

Status no_work(device::Stream&, std::span<const tensor::TensorView>,
               std::span<const tensor::TensorView>) {
  return {};
}

template <typename T>
void expect_error(const Result<T>& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result.ok()) << "expected: " << text;
  EXPECT_EQ(result.error().code(), code) << result.error().to_string();
  EXPECT_THAT(result.error().message(), HasSubstr(text));
}

class RegistryTest : public testing::Test {
 protected:
  SlotId bound_weight(const std::string& name) {
    const SlotId id = registry_.define(weight_spec(name)).value();
    EXPECT_TRUE(registry_.bind({.name = name + ".param",
                                .dtype = DType::kF32,
                                .shape = Shape{4, 8},
                                .slot = id}).ok());
    return id;
  }
  SlotId derived(const std::string& name) {
    return registry_.define(spec_of(name, SlotClass::kDerived)).value();
  }
  SlotId constant(const std::string& name, float value) {
    std::vector<std::byte> bytes(4 * 8 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 4) std::memcpy(&bytes[i], &value, 4);
    SlotSpec spec = spec_of(name, SlotClass::kConstant);
    spec.arena = "constants";
    return registry_.define_constant(spec, bytes).value();
  }
  Status derive(const std::string& name, std::vector<DeriveInput> inputs, SlotId output) {
    return registry_.derive(
        {.name = name, .inputs = std::move(inputs), .outputs = {output}, .function = no_work});
  }

  device::SimDevice device_{device::make_cpu_device()};
  Registry registry_;
};

TEST_F(RegistryTest, SealFixesOneAlignedDisjointAddressPerSlot) {
  for (const char* name : {"a", "b", "c"}) bound_weight(name);
  SlotSpec odd = spec_of("odd", SlotClass::kInput);
  odd.dtype = DType::kU8;
  odd.shape = Shape{3};
  ASSERT_TRUE(registry_.define(odd).ok());
  SlotSpec aligned = spec_of("aligned", SlotClass::kScratch);
  aligned.alignment = 1024;
  ASSERT_TRUE(registry_.define(aligned).ok());
  ASSERT_TRUE(registry_.seal(device_).ok());
  for (const Slot& slot : registry_.slots()) {
    EXPECT_EQ(slot.range.begin % slot.spec.alignment, 0u) << slot.spec.name;
    EXPECT_TRUE(registry_.contains(slot.range));
    EXPECT_EQ(registry_.resolve(slot.range.begin), slot.id);
    EXPECT_EQ(registry_.resolve(slot.range.end() - 1), slot.id);
    for (const Slot& other : registry_.slots()) {
      if (other.id == slot.id) continue;
      EXPECT_TRUE(slot.range.end() <= other.range.begin || other.range.end() <= slot.range.begin);
    }
  }
  EXPECT_EQ(registry_.all_arenas().size(), 2u);
  EXPECT_EQ(registry_.versioned_arenas().size(), 1u);
  EXPECT_EQ(&registry_.arena_of(*registry_.find_slot("odd")), registry_.all_arenas()[1]);
}

TEST_F(RegistryTest, ARangeThatLeavesItsSlotIsNotContained) {
  const SlotId id = bound_weight("a");
  bound_weight("b");
  ASSERT_TRUE(registry_.seal(device_).ok());
  const device::AddressRange range = registry_.slot(id).range;
  EXPECT_TRUE(registry_.contains({range.begin + 4, range.bytes - 4}));
  EXPECT_FALSE(registry_.contains({range.begin + 4, range.bytes}));
  EXPECT_FALSE(registry_.contains({range.begin - 1, 2}));
  EXPECT_FALSE(registry_.contains({range.begin, ~std::size_t{0}}));
  EXPECT_FALSE(registry_.contains({0, 1}));
}

TEST_F(RegistryTest, AnAliasNamesAParameterThatHasASlotAndNothingElse) {
  bound_weight("embed");
  const auto embed = registry_.find_parameter("embed.param").value();
  ASSERT_TRUE(registry_.bind_alias("lm_head.weight", embed).ok());
  EXPECT_EQ(registry_.find_parameter("lm_head.weight"), embed);
  ASSERT_EQ(registry_.aliases().size(), 1u);
  EXPECT_EQ(registry_.aliases()[0].name, "lm_head.weight");
  EXPECT_EQ(registry_.bind_alias("lm_head.weight", embed).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(registry_.bind_alias("embed.param", embed).ok());
  EXPECT_FALSE(registry_.bind_alias("", embed).ok());
  EXPECT_FALSE(registry_.bind_alias("x", ParameterId{9}).ok());
  const auto transient =
      registry_.bind({.name = "t", .dtype = DType::kU8, .shape = Shape{4}, .slot = {}}).value();
  EXPECT_FALSE(registry_.bind_alias("y", transient).ok());
  EXPECT_FALSE(registry_.bind({.name = "lm_head.weight", .shape = Shape{4}, .slot = {}}).ok());
}

TEST(LayerOfName, IsTheNumberAfterLayersOrMinusOne) {
  EXPECT_EQ(layer_of_name("model.layers.12.mlp.weight"), 12);
  EXPECT_EQ(layer_of_name("layers.0"), 0);
  EXPECT_EQ(layer_of_name("model.embed_tokens.weight"), -1);
  EXPECT_EQ(layer_of_name("model.mylayers.3.x"), -1);
  EXPECT_EQ(layer_of_name("model.layers.3x.y"), -1);
  EXPECT_EQ(layer_of_name("model.layers."), -1);
  EXPECT_EQ(layer_of_name("layers.99999999999.x"), -1);
}

TEST_F(RegistryTest, AnAddressIsDescribedByItsSlotOrTheNearestOneBelow) {
  const SlotId id = bound_weight("layers.3.bias");
  ASSERT_TRUE(registry_.seal(device_).ok());
  const device::AddressRange range = registry_.slot(id).range;
  EXPECT_EQ(registry_.describe(range.begin + 12), "slot layers.3.bias + 12 of 128 bytes");
  EXPECT_EQ(registry_.describe(range.end() + 5),
            "no slot (nearest below: layers.3.bias ends 5 bytes before)");
  EXPECT_EQ(registry_.describe(1), "no slot (below them all)");
}

TEST_F(RegistryTest, UnversionedSlotsStartAsZeroAndVersionedOnesAsPoison) {
  const SlotId weight = bound_weight("w");
  const SlotId state = registry_.define(spec_of("kv", SlotClass::kState)).value();
  ASSERT_TRUE(registry_.seal(device_).ok());
  EXPECT_THAT(registry_.view(state).const_span(), testing::Each(std::byte{0}));
  EXPECT_THAT(registry_.view(weight).const_span(), testing::Each(device::kPoisonByte));
  EXPECT_EQ(registry_.arena_of(weight).protection(), device::Protection::kReadOnly);
}

TEST_F(RegistryTest, AStateSlotCanBeWritten) {
  const SlotId state = registry_.define(spec_of("kv", SlotClass::kState)).value();
  ASSERT_TRUE(registry_.seal(device_).ok());
  registry_.view(state).as<float>()[0] = 1.0f;
  EXPECT_EQ(registry_.view(state).as<float>()[0], 1.0f);
}

using RegistryDeathTest = RegistryTest;

TEST_F(RegistryDeathTest, AStrayWriteToAnyVersionedSlotFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const SlotId weight = bound_weight("w");
  const SlotId made = derived("d");
  const SlotId fixed = constant("c", 1.0f);
  ASSERT_TRUE(derive("make", {weight}, made).ok());
  ASSERT_TRUE(registry_.seal(device_).ok());
  for (SlotId id : {weight, made, fixed}) {
    volatile float* target = registry_.view(id).as<float>();
    EXPECT_DEATH(*target = 1.0f, "") << registry_.slot(id).spec.name;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    EXPECT_EXIT(*target = 1.0f, testing::KilledBySignal(SIGSEGV), "");
#endif
  }
}

TEST_F(RegistryTest, NothingIsDefinedBoundDerivedOrSealedAfterSeal) {
  const SlotId id = bound_weight("w");
  ASSERT_TRUE(registry_.seal(device_).ok());
  const std::uintptr_t address = registry_.slot(id).range.begin;
  expect_error(registry_.define(weight_spec("x")), ErrorCode::kFailedPrecondition, "slot x after");
  expect_error(registry_.define_constant(spec_of("c", SlotClass::kConstant),
                                         std::vector<std::byte>(128)),
               ErrorCode::kFailedPrecondition, "slot c after seal");
  expect_error(registry_.bind({.name = "p", .shape = Shape{1}}), ErrorCode::kFailedPrecondition,
               "parameter p after seal");
  expect_error(derive("d", {}, id), ErrorCode::kFailedPrecondition, "derivation d after seal");
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition, "sealed already");
  EXPECT_EQ(registry_.slots().size(), 1u);
  EXPECT_EQ(registry_.slot(id).range.begin, address);
}

TEST_F(RegistryTest, ABadSlotIsRefusedAndNamed) {
  bound_weight("w");
  expect_error(registry_.define(weight_spec("w")), ErrorCode::kInvalidArgument,
               "w is defined twice");
  expect_error(registry_.define(weight_spec("")), ErrorCode::kInvalidArgument, "without a name");
  expect_error(registry_.define(weight_spec("e", 0)), ErrorCode::kInvalidArgument, "[0, 8]");
  expect_error(registry_.define(spec_of("c", SlotClass::kConstant)), ErrorCode::kInvalidArgument,
               "define_constant");
  for (std::size_t alignment : {std::size_t{0}, std::size_t{48}, std::size_t{8192}}) {
    SlotSpec spec = weight_spec("a");
    spec.alignment = alignment;
    expect_error(registry_.define(spec), ErrorCode::kInvalidArgument, std::to_string(alignment));
  }
  SlotSpec half = weight_spec("h");
  half.dtype = DType::kF4E2M1;
  half.shape = Shape{3};
  expect_error(registry_.define(half), ErrorCode::kInvalidArgument, "slot h");
  SlotSpec shared = spec_of("kv", SlotClass::kState);
  shared.arena = "weights";
  expect_error(registry_.define(shared), ErrorCode::kInvalidArgument, "cannot share arena weights");
  SlotSpec giant = weight_spec("g");
  giant.shape = Shape{std::int64_t{1} << 50};
  expect_error(registry_.define(giant), ErrorCode::kResourceExhausted, "slot g");
  EXPECT_EQ(registry_.slots().size(), 1u);
}

TEST_F(RegistryTest, AConstantHasAValueOfItsSize) {
  const SlotId id = constant("alpha", 1.702f);
  EXPECT_EQ(registry_.constant_value(id).size(), 128u);
  expect_error(registry_.define_constant(spec_of("c", SlotClass::kConstant),
                                         std::vector<std::byte>(4)),
               ErrorCode::kMismatch, "128 bytes, its value has 4");
  expect_error(registry_.define_constant(weight_spec("w"), std::vector<std::byte>(128)),
               ErrorCode::kInvalidArgument, "class weight");
  EXPECT_TRUE(registry_.constant_value(registry_.define(weight_spec("v")).value()).empty());
}

TEST_F(RegistryTest, AParameterThatDoesNotFitItsSlotIsRefused) {
  const SlotId id = registry_.define(weight_spec("w")).value();
  const SlotId state = registry_.define(spec_of("kv", SlotClass::kState)).value();
  const auto bind = [&](std::string name, DType dtype, Shape shape, std::size_t offset,
                        SlotId slot) {
    return registry_.bind({.name = std::move(name),
                           .dtype = dtype,
                           .shape = shape,
                           .slot = slot,
                           .offset_bytes = offset});
  };
  expect_error(bind("p", DType::kBF16, Shape{4, 8}, 0, id), ErrorCode::kMismatch, "dtype bf16");
  expect_error(bind("p", DType::kF32, Shape{5, 8}, 0, id), ErrorCode::kMismatch, "160 bytes");
  expect_error(bind("p", DType::kF32, Shape{1}, 128, id), ErrorCode::kMismatch, "offset 128");
  expect_error(bind("p", DType::kF32, Shape{1}, ~std::size_t{0}, id), ErrorCode::kMismatch,
               "leave");
  expect_error(bind("p", DType::kF32, Shape{4, 8}, 0, state), ErrorCode::kInvalidArgument, "state");
  expect_error(bind("p", DType::kF32, Shape{4, 8}, 0, SlotId{9}), ErrorCode::kInvalidArgument, "9");
  expect_error(bind("", DType::kF32, Shape{1}, 0, id), ErrorCode::kInvalidArgument, "a name");
  ASSERT_TRUE(bind("p", DType::kF32, Shape{8}, 32, id).ok());
  expect_error(bind("p", DType::kF32, Shape{8}, 64, id), ErrorCode::kInvalidArgument,
               "bound twice");
  for (std::size_t offset : {8, 32, 60}) {
    expect_error(bind("q", DType::kF32, Shape{8}, offset, id), ErrorCode::kMismatch,
                 "overlap parameter p");
  }
  EXPECT_TRUE(bind("q", DType::kF32, Shape{8}, 0, id).ok());
  EXPECT_TRUE(bind("r", DType::kF32, Shape{16}, 64, id).ok());
  EXPECT_TRUE(registry_.seal(device_).ok());
  EXPECT_EQ(registry_.find_parameter("q"), ParameterId{1});
}

TEST_F(RegistryTest, AWeightSlotMustBeCoveredWhollyAndADerivedOneMustBeDerived) {
  const SlotId id = registry_.define(weight_spec("w")).value();
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition, "covers byte 0");
  ASSERT_TRUE(registry_.bind({.name = "p",
                              .dtype = DType::kF32,
                              .shape = Shape{8},
                              .slot = id}).ok());
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition, "covers byte 32");
  ASSERT_TRUE(registry_.bind({.name = "q",
                              .dtype = DType::kF32,
                              .shape = Shape{24},
                              .slot = id,
                              .offset_bytes = 32}).ok());
  const SlotId made = derived("d");
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition, "slot d has no derivation");
  ASSERT_TRUE(derive("make", {id}, made).ok());
  EXPECT_TRUE(registry_.seal(device_).ok());
}

TEST_F(RegistryTest, AHoleInAWeightSlotIsNamedByItsFirstByteHoweverMuchFollows) {
  const SlotId id = registry_.define(weight_spec("w")).value();
  for (std::size_t offset : {64, 0}) {
    ASSERT_TRUE(registry_.bind({.name = "p" + std::to_string(offset),
                                .dtype = DType::kF32,
                                .shape = Shape{8},
                                .slot = id,
                                .offset_bytes = offset}).ok());
  }
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition,
               "slot w of 128 bytes: no parameter covers byte 32");
}

TEST_F(RegistryTest, ARegistryWithoutSlotsIsNotSealed) {
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition, "without slots");
}

TEST_F(RegistryTest, ABadDerivationIsRefused) {
  const SlotId weight = bound_weight("w");
  const SlotId made = derived("d");
  const SlotId state = registry_.define(spec_of("kv", SlotClass::kState)).value();
  const ParameterId transient =
      registry_.bind({.name = "t", .dtype = DType::kF32, .shape = Shape{3, 2}}).value();
  expect_error(derive("x", {}, weight), ErrorCode::kInvalidArgument,
               "has class weight, not derived");
  expect_error(derive("x", {state}, made), ErrorCode::kInvalidArgument, "has class state");
  expect_error(derive("x", {SlotId{77}}, made), ErrorCode::kInvalidArgument, "77");
  expect_error(derive("x", {ParameterId{77}}, made), ErrorCode::kInvalidArgument, "77");
  expect_error(registry_.derive({.name = "x", .inputs = {}, .outputs = {made}, .function = {}}),
               ErrorCode::kInvalidArgument, "a function");
  Derivation sliced{.name = "x",
                    .inputs = {transient},
                    .outputs = {made},
                    .slice_count = 4,
                    .function = no_work};
  expect_error(registry_.derive(sliced), ErrorCode::kMismatch,
               "input parameter t has shape [3, 2]");
  sliced.slice_count = 3;
  expect_error(registry_.derive(sliced), ErrorCode::kMismatch, "output slot d has shape [4, 8]");
  sliced.inputs = {weight};  // passed whole
  sliced.slice_count = 4;
  EXPECT_TRUE(registry_.derive(sliced).ok());
  expect_error(derive("y", {}, made), ErrorCode::kInvalidArgument, "output of x and of y");
  expect_error(derive("x", {}, derived("e")), ErrorCode::kInvalidArgument, "defined twice");
}

TEST_F(RegistryTest, DerivationsAreSortedByWhatTheyNeed) {
  const SlotId weight = bound_weight("w");
  const SlotId a = derived("a");
  const SlotId b = derived("b");
  const SlotId c = derived("c");
  ASSERT_TRUE(derive("make-c", {b, a}, c).ok());
  ASSERT_TRUE(derive("make-b", {a}, b).ok());
  ASSERT_TRUE(derive("make-a", {weight}, a).ok());
  ASSERT_TRUE(registry_.seal(device_).ok());
  std::vector<std::string> names;
  for (const Derivation& derivation : registry_.derivations()) names.push_back(derivation.name);
  EXPECT_THAT(names, ElementsAre("make-a", "make-b", "make-c"));
}

TEST_F(RegistryTest, ACycleAmongDerivationsIsNamed) {
  const SlotId a = derived("a");
  const SlotId b = derived("b");
  const SlotId c = derived("c");
  ASSERT_TRUE(derive("start", {a}, c).ok());
  ASSERT_TRUE(derive("make-a", {b}, a).ok());
  ASSERT_TRUE(derive("make-b", {a}, b).ok());
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition,
               "a cycle among derivations: make-a <- make-b <- make-a");
  EXPECT_FALSE(registry_.sealed());
}

TEST_F(RegistryTest, ASealThatTheDeviceRefusesHoldsNoMemoryAndCanBeRepeated) {
  bound_weight("w");
  ASSERT_TRUE(registry_.define(spec_of("kv", SlotClass::kState)).ok());
  using device::Fault;
  for (const device::FaultPlan& plan :
       {device::FaultPlan{Fault::kAllocationFails, 0, 0}, {Fault::kAllocationFails, 1, 0},
        {Fault::kProtectFails, 0, 0}, {Fault::kCopyFails, 0, 8}, {Fault::kDeviceLost, 1, 0}}) {
    device_.arm({plan});
    EXPECT_FALSE(registry_.seal(device_).ok());
    EXPECT_EQ(registry_.state(), RegistryState::kBuilding);
    EXPECT_EQ(device_.usage().live_bytes, 0u);
  }
  device_.disarm();
  EXPECT_TRUE(registry_.seal(device_).ok());
  EXPECT_EQ(device_.usage().live_bytes, 2 * device_.page_bytes());
}

TEST_F(RegistryTest, PublishStampsEveryVersionedSlotAndCanStepBack) {
  const SlotId weight = bound_weight("w");
  const SlotId state = registry_.define(spec_of("kv", SlotClass::kState)).value();
  ASSERT_TRUE(registry_.seal(device_).ok());
  const base::Digest digest{1, 2};
  const SlotStamp stamp{weight, digest};
  registry_.publish(Epoch{1}, {&stamp, 1});
  EXPECT_EQ(registry_.epoch(), Epoch{1});
  EXPECT_EQ(registry_.slot(weight).epoch, Epoch{1});
  EXPECT_EQ(registry_.slot(weight).digest, digest);
  EXPECT_EQ(registry_.slot(state).epoch, Epoch{0});
  EXPECT_FALSE(registry_.slot(state).digest.has_value());
  registry_.publish(Epoch{0}, {});
  EXPECT_EQ(registry_.slot(weight).epoch, Epoch{0});
  EXPECT_FALSE(registry_.slot(weight).digest.has_value());
}

TEST_F(RegistryTest, TheNextEpochIsAboveEveryOneThatWasEverPublished) {
  bound_weight("w");
  ASSERT_TRUE(registry_.seal(device_).ok());
  EXPECT_EQ(registry_.next_epoch(), Epoch{1});
  registry_.publish(Epoch{1}, {});
  registry_.publish(Epoch{2}, {});
  registry_.publish(Epoch{1}, {});
  EXPECT_EQ(registry_.epoch(), Epoch{1});
  EXPECT_EQ(registry_.next_epoch(), Epoch{3});
  registry_.publish(Epoch{3}, {});
  registry_.publish(Epoch{1}, {});
  EXPECT_EQ(registry_.next_epoch(), Epoch{4});
}

TEST_F(RegistryTest, ASlotThatACommitDoesNotStampHasNoDigest) {
  const SlotId first = bound_weight("first"), second = bound_weight("second");
  ASSERT_TRUE(registry_.seal(device_).ok());
  const SlotStamp stamps[] = {{first, {1, 2}}, {second, {3, 4}}};
  registry_.publish(Epoch{1}, stamps);
  registry_.publish(Epoch{2}, {stamps, 1});
  EXPECT_EQ(registry_.slot(first).digest, (base::Digest{1, 2}));
  EXPECT_FALSE(registry_.slot(second).digest.has_value());
}

TEST_F(RegistryDeathTest, PublishOfAnEpochThatIsNotTheNextIsAnAssertion) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  bound_weight("w");
  ASSERT_TRUE(registry_.seal(device_).ok());
  EXPECT_DEATH(registry_.publish(Epoch{2}, {}), "epoch 2 over epoch 0");
  EXPECT_DEATH(registry_.publish(Epoch{0}, {}), "epoch 0 over epoch 0");
  registry_.publish(Epoch{1}, {});
  registry_.publish(Epoch{0}, {});
  EXPECT_DEATH(registry_.publish(Epoch{1}, {}), "epoch 1 over epoch 0");
  EXPECT_DEATH(registry_.publish(Epoch{0}, {}), "epoch 0 over epoch 0");
}

TEST_F(RegistryTest, CloseFreesEveryArenaAndLeavesNoHome) {
  const SlotId weight = bound_weight("w");
  ASSERT_TRUE(registry_.seal(device_).ok());
  const device::AddressRange range = registry_.slot(weight).range;
  const std::uint64_t generation = registry_.layout_generation();
  registry_.close();
  EXPECT_EQ(device_.usage().live_bytes, 0u);
  EXPECT_FALSE(registry_.contains(range));
  EXPECT_FALSE(registry_.sealed());
  EXPECT_NE(registry_.layout_generation(), generation);
  expect_error(registry_.seal(device_), ErrorCode::kFailedPrecondition, "closing already");
}

}  // namespace
}  // namespace holdfast::storage
