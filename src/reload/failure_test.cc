// Every way in which a reload may fail: afterwards all is as before, or the engine is poisoned and
// heals by a complete reload. Never a mixture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "reload/faults.h"
#include "reload/reload_fixture.h"
#include "reload/transaction.h"

namespace holdfast::reload {
namespace {

using device::Fault;
using testing::capture_sum;
using testing::content;
using testing::Engine;
using testing::FakeSource;
using ::testing::HasSubstr;
using testing::replay_sum;
using testing::Snapshot;
using testing::snapshot;

constexpr auto kRemap = CommitStrategy::kRemap;
constexpr auto kCopy = CommitStrategy::kCopy;

// An engine that serves A, and what it was then.
struct Serving {
  explicit Serving(const testing::TinyOptions& options = {})
      : engine(options), options_of_cold(options) {
    FakeSource a = engine.source(1);
    engine.reload(a, kRemap).value();
    graph = capture_sum(engine).value();
    sum = replay_sum(engine, *graph);
    before = snapshot(engine);
  }
  void expect_as_before(const std::string& when) {
    EXPECT_TRUE(snapshot(engine) == before) << when;
    EXPECT_EQ(replay_sum(engine, *graph), sum) << when;
    EXPECT_EQ(engine.transaction->state(), TransactionState::kRolledBack) << when;
    EXPECT_NE(engine.transaction->report().error, "") << when;
  }
  // A complete reload makes it a cold B, whatever happened.
  void expect_heals() {
    FakeSource b = engine.source(2);
    const Status status = engine.reload(b, kRemap);
    ASSERT_TRUE(status.ok()) << status.error().to_string();
    Engine cold(options_of_cold);
    FakeSource cold_b = cold.source(2);
    ASSERT_TRUE(cold.reload(cold_b, kRemap).ok());
    EXPECT_TRUE(content(engine.registry) == content(cold.registry));
  }

  Engine engine;
  testing::TinyOptions options_of_cold;
  std::unique_ptr<device::Graph> graph;
  std::uint64_t sum = 0;
  Snapshot before;
};

TEST(SourceFailure, AtEveryReadLeavesEverythingAsBefore) {
  Serving serving;
  FakeSource b = serving.engine.source(2);
  std::uint64_t call = 0;
  for (;; ++call) {
    b.read_calls = 0;
    b.fail_at_call = call;
    const Status status = serving.engine.prepare(b, kRemap);
    if (status.ok()) break;
    EXPECT_EQ(status.error().code(), ErrorCode::kIo);
    EXPECT_THAT(status.error().message(), HasSubstr("the source died"));
    EXPECT_THAT(status.error().message(), HasSubstr("model."));
    serving.expect_as_before("call " + std::to_string(call));
  }
  // Every copy, and every slice of every transient input.
  EXPECT_EQ(call, 1u + 3 * (3 + 1 + 2 * 3));
  serving.expect_heals();
}

TEST(SourceFailure, AtEveryByteLeavesEverythingAsBefore) {
  Serving serving;
  FakeSource b = serving.engine.source(2);
  std::uint64_t bytes = 0;
  for (;; ++bytes) {
    b.bytes_read = 0;
    b.short_at_byte = bytes;
    const Status status = serving.engine.prepare(b, kCopy);
    if (status.ok()) break;
    EXPECT_EQ(status.error().code(), ErrorCode::kIo);
    serving.expect_as_before("byte " + std::to_string(bytes));
  }
  EXPECT_EQ(bytes, serving.engine.transaction->report().source_bytes);
  serving.expect_heals();
}

TEST(SourceFailure, AtTheEdgesOfChunksLeavesEverythingAsBefore) {
  Serving serving({.layers = 2, .experts = 2, .big_rows = 20'000});
  FakeSource b = serving.engine.source(2);
  constexpr std::uint64_t kChunk = 1 << 20;
  const std::uint64_t big = 13 * 10 * 2;  // where the big tensor begins in what is read
  for (const std::uint64_t edge : {big, big + kChunk, big + 2 * kChunk, big + 20'000 * 128}) {
    for (const std::uint64_t byte : {edge - 1, edge, edge + 1}) {
      b.bytes_read = 0;
      b.short_at_byte = byte;
      ASSERT_FALSE(serving.engine.prepare(b, kRemap).ok());
      serving.expect_as_before("byte " + std::to_string(byte));
    }
  }
}

TEST(SourceFailure, AFileThatChangedWhileItWasReadIsNotCommitted) {
  Serving serving;
  FakeSource b = serving.engine.source(2);
  b.fail_finish = true;
  const Status status = serving.engine.prepare(b, kRemap);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("the file was replaced"));
  serving.expect_as_before("finish");
}

TEST(SourceFailure, AnotherSourceThanThePlannedOneIsRefused) {
  Serving serving;
  FakeSource b = serving.engine.source(2), other = serving.engine.source(3);
  std::reverse(other.data.begin(), other.data.end());
  other.refresh();
  const auto plan = make_plan(serving.engine.registry, {}, b, kRemap);
  serving.engine.transaction = Transaction::begin(serving.engine.registry, *plan,
                                                  {.clock = &serving.engine.clock, .fault = {}})
                                   .value();
  const Status status = serving.engine.transaction->stage(other, *serving.engine.stream);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kMismatch);
  serving.expect_as_before("another source");
}

TEST(SourceFailure, AnInsaneValueIsRefusedNamingTensorAndElement) {
  Serving serving;
  struct Case {
    const char* tensor;
    std::size_t byte;
    std::byte value;
    const char* says;
  };
  const std::vector<Case> cases = {
      {"model.embed", 2 * 77 + 1, std::byte{0x7F},
       "tensor model.embed bf16 [13, 10]: element 77 is NaN; a weight is finite"},
      {"model.layers.2.v_proj.weight", 1, std::byte{0xFF}, "model.layers.2.v_proj.weight"},
      {"model.layers.1.sinks", 9, std::byte{0x7F},
       "tensor model.layers.1.sinks bf16 [5]: element 4 is NaN; a weight is finite"},
      {"model.layers.1.experts.gate_scales", 14, std::byte{0xFF},
       "element 14 is the e8m0 NaN 0xFF"},
  };
  for (const Case& c : cases) {
    FakeSource b = serving.engine.source(2);
    auto& bytes = b.tensor(c.tensor).bytes;
    bytes[c.byte] = c.value;
    if (c.byte % 2 == 1) bytes[c.byte - 1] |= std::byte{0x80};
    const Status status = serving.engine.prepare(b, kRemap);
    ASSERT_FALSE(status.ok()) << c.tensor;
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message(), HasSubstr(c.says));
    serving.expect_as_before(c.tensor);
  }
}

TEST(Cancel, AtEveryReadLeavesEverythingAsBefore) {
  Serving serving;
  std::atomic<bool> cancel{false};
  FakeSource b = serving.engine.source(2);
  for (std::uint64_t call = 0; call <= b.read_calls; ++call) {
    cancel = false;
    b.read_calls = 0;
    b.on_read = [&](std::uint64_t now) { cancel = cancel || now == call; };
    const Status status =
        serving.engine.prepare(b, kRemap, {.clock = nullptr, .fault = {}, .cancel = &cancel});
    if (status.ok()) break;
    EXPECT_EQ(b.read_calls, call + 1);
    EXPECT_EQ(status.error().code(), ErrorCode::kCancelled);
    serving.expect_as_before("call " + std::to_string(call));
  }
  EXPECT_EQ(b.read_calls, 1u + 3 * (3 + 1 + 2 * 3));
  serving.expect_heals();
}

TEST(Cancel, BetweenStageAndPrepareLeavesEverythingAsBefore) {
  Serving serving;
  Engine& engine = serving.engine;
  std::atomic<bool> cancel{false};
  FakeSource b = engine.source(2);
  engine.transaction =
      Transaction::begin(engine.registry, *make_plan(engine.registry, {}, b, kRemap),
                         {.clock = &engine.clock, .fault = {}, .cancel = &cancel})
          .value();
  ASSERT_TRUE(engine.transaction->stage(b, *engine.stream).ok());
  cancel = true;
  EXPECT_EQ(engine.transaction->prepare().error().code(), ErrorCode::kCancelled);
  serving.expect_as_before("prepare");
}

// A plan is a value, so that a test can forge one that leaves something out.
Status stage_forged(Serving& serving, const std::function<void(ReloadPlan&)>& forge) {
  Engine& engine = serving.engine;
  FakeSource b = engine.source(2);
  ReloadPlan plan = make_plan(engine.registry, {}, b, kRemap).value();
  forge(plan);
  engine.transaction =
      Transaction::begin(engine.registry, std::move(plan), {.clock = &engine.clock, .fault = {}})
          .value();
  HF_TRY(engine.transaction->stage(b, *engine.stream));
  return engine.transaction->prepare();
}

TEST(Prepare, RefusesAPlanThatLeavesOutACopyOrADerivation) {
  Serving serving;
  const std::size_t copies = 1 + 3 * 3, derivations = 3 * 3 + 1;
  for (std::size_t i = 0; i < copies + derivations; ++i) {
    const Status status = stage_forged(serving, [&](ReloadPlan& plan) {
      if (i < copies) {
        plan.copies.erase(plan.copies.begin() + static_cast<long>(i));
      } else {
        plan.derivations.erase(plan.derivations.begin() + static_cast<long>(i - copies));
      }
    });
    ASSERT_FALSE(status.ok()) << i;
    EXPECT_THAT(status.error().message(), ::testing::AnyOf(HasSubstr("not written for epoch 2"),
                                                           HasSubstr("before it holds")));
    serving.expect_as_before("left out " + std::to_string(i));
  }
}

TEST(Prepare, RefusesDerivationsOutOfOrder) {
  Serving serving;
  const Status status = stage_forged(serving, [](ReloadPlan& plan) {
    std::reverse(plan.derivations.begin(), plan.derivations.end());
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.error().message(), HasSubstr("before it holds the bytes of epoch 2"));
  serving.expect_as_before("order");
}

TEST(Prepare, RefusesATensorThatArrivesTwice) {
  Serving serving;
  const Status status =
      stage_forged(serving, [](ReloadPlan& plan) { plan.copies.push_back(plan.copies[4]); });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().message(), HasSubstr("written a second time"));
  serving.expect_as_before("twice");
}

// A registry with one derivation that misbehaves once `broken` is set.
struct Misbehaving {
  explicit Misbehaving(bool& broken) {
    auto in =
        registry.bind({.name = "w", .dtype = tensor::DType::kU8, .shape = {3, 64}, .slot = {}});
    auto out = registry.define({.name = "packed",
                                .slot_class = storage::SlotClass::kDerived,
                                .dtype = tensor::DType::kU8,
                                .shape = {3, 64},
                                .arena = {}});
    registry
        .derive({.name = "pack",
                 .inputs = {*in},
                 .outputs = {*out},
                 .slice_count = 3,
                 .function = [&broken](device::Stream&, std::span<const tensor::TensorView> from,
                                       std::span<const tensor::TensorView> to) -> Status {
                   std::memcpy(to[0].address, from[0].address, broken ? 40 : 64);
                   return {};
                 }})
        .value();
    registry.seal(*device).value();
    stream = device->create_stream(1).value();
  }
  std::unique_ptr<device::Device> device = device::make_cpu_device();
  storage::Registry registry;
  std::unique_ptr<device::Stream> stream;
};

TEST(Prepare, RefusesADerivationThatLeavesBytesUnwrittenAndToleratesDataThatLooksLikePoison) {
  bool broken = false;
  Misbehaving engine(broken);
  base::SteadyClock clock;
  FakeSource source({{.spec = {"w", tensor::DType::kU8, {3, 64}},
                      .bytes = std::vector<std::byte>(192, device::kPoisonByte)}});
  for (broken = false;; broken = true) {
    auto plan = make_plan(engine.registry, {}, source, kRemap);
    auto transaction = Transaction::begin(engine.registry, *plan, {.clock = &clock, .fault = {}});
    const Status status = (*transaction)->stage(source, *engine.stream);
    if (!broken) {
      ASSERT_TRUE(status.ok()) << status.error().to_string();
      continue;
    }
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(status.error().message(),
                HasSubstr("derivation pack, expert 0 (reads w): byte 40 of slot packed was left "
                          "unwritten"));
    break;
  }
}

enum class Outcome { kCommitted, kRolledBack, kPoisoned };

struct Trial {
  CommitStrategy strategy = kRemap;
  Fault fault = Fault::kAllocationFails;
  std::uint64_t at_byte = 0;
  bool twice = false;         // the next call fails too
  bool in_roll_back = false;  // the fault strikes in roll_back, not in the reload
  testing::TinyOptions options = {};
};

struct Struck {
  Outcome outcome = Outcome::kPoisoned;
  bool fired = false;
};

// Reloads A -> B (and back) with a fault at call `call`; checks that the engine is wholly A, wholly
// B or poisoned, and that it heals.
Struck strike(const Trial& trial, std::uint64_t call) {
  const std::string when =
      fmt::format("{} {} at call {}, byte {}{}{}", commit_strategy_name(trial.strategy),
                  device::fault_name(trial.fault), call, trial.at_byte,
                  trial.twice ? ", twice" : "", trial.in_roll_back ? ", in roll_back" : "");
  std::vector<device::FaultPlan> plans = {
      {.fault = trial.fault, .at_call = call, .at_byte = trial.at_byte}};
  if (trial.twice) plans.push_back({trial.fault, call + 1, trial.at_byte});
  Serving serving(trial.options);
  Engine& engine = serving.engine;
  Engine cold(trial.options);
  FakeSource b = engine.source(2), cold_b = cold.source(2);
  cold.reload(cold_b, kRemap).value();
  Status status;
  if (trial.in_roll_back) {
    engine.prepare(b, trial.strategy).value();
    engine.transaction->commit().value();
    engine.device->arm(std::move(plans));
    status = engine.transaction->roll_back();
  } else {
    engine.device->arm(std::move(plans));
    status = engine.reload(b, trial.strategy);
  }
  Struck struck{.fired = !engine.device->fired().empty()};
  engine.device->disarm();
  switch (engine.transaction->state()) {
    case TransactionState::kCommitted:
      struck.outcome = Outcome::kCommitted;
      EXPECT_EQ(status.ok(), !trial.in_roll_back) << when;
      EXPECT_TRUE(content(engine.registry) == content(cold.registry)) << when;
      EXPECT_EQ(engine.registry.epoch().value, 2u) << when;
      break;
    case TransactionState::kRolledBack:
      struck.outcome = Outcome::kRolledBack;
      EXPECT_EQ(status.ok(), trial.in_roll_back) << when;
      serving.expect_as_before(when);
      break;
    case TransactionState::kPoisoned:
      EXPECT_EQ(status.error().code(), ErrorCode::kPoisoned) << when;
      EXPECT_EQ(snapshot(engine).addresses, serving.before.addresses) << when;
      break;
    default: ADD_FAILURE() << when << ": " << transaction_state_name(engine.transaction->state());
  }
  engine.transaction.reset();
  serving.expect_heals();
  return struck;
}

using Tally = std::map<Outcome, int>;

// Strikes each call of the fault's kind, until none is left.
Tally strike_every_call(const Trial& trial) {
  Tally tally;
  for (std::uint64_t call = 0;; ++call) {
    const Struck struck = strike(trial, call);
    if (!struck.fired) return tally;
    ++tally[struck.outcome];
  }
}

class DeviceFailure : public ::testing::TestWithParam<CommitStrategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, DeviceFailure, ::testing::Values(kRemap, kCopy),
                         [](const auto& tested) {
                           return std::string(commit_strategy_name(tested.param));
                         });

TEST_P(DeviceFailure, OfOneCallIsUndone) {
  const bool remap = GetParam() == kRemap;
  for (const Fault fault : {Fault::kAllocationFails, Fault::kProtectFails, Fault::kExchangeFails,
                            Fault::kCopyFails, Fault::kLaunchFails}) {
    for (const std::uint64_t at_byte : {0ull, 1ull, 300ull, 4095ull}) {
      if (at_byte > 0 && fault != Fault::kCopyFails) continue;
      const Tally tally =
          strike_every_call({.strategy = GetParam(), .fault = fault, .at_byte = at_byte});
      EXPECT_EQ(tally.count(Outcome::kCommitted), 0u) << device::fault_name(fault);
      const bool unused = fault == (remap ? Fault::kCopyFails : Fault::kExchangeFails);
      EXPECT_EQ(tally.empty(), unused) << device::fault_name(fault);
      EXPECT_EQ(tally.count(Outcome::kPoisoned), 0u) << device::fault_name(fault);
    }
  }
}

TEST(DeviceFailureOfALargeArena, PutsBackTheBlocksThatWereSwapped) {
  const testing::TinyOptions options{.layers = 2, .experts = 2, .big_rows = 5'000};
  const Tally tally = strike_every_call(
      {.strategy = kCopy, .fault = Fault::kCopyFails, .at_byte = 100'000, .options = options});
  EXPECT_EQ(tally.count(Outcome::kPoisoned), 0u);
  // Two writes for each of the three blocks of the weights and for the constants' one.
  EXPECT_EQ(tally.at(Outcome::kRolledBack), 2 * (3 + 1));
}

TEST_P(DeviceFailure, OfTheUndoPoisonsAndACompleteReloadHeals) {
  const Fault fault = GetParam() == kRemap ? Fault::kExchangeFails : Fault::kCopyFails;
  for (const Trial& trial :
       {Trial{.fault = fault, .at_byte = 5, .twice = true},
        Trial{.fault = Fault::kProtectFails, .twice = true}, Trial{.fault = Fault::kDeviceLost}}) {
    Trial with_strategy = trial;
    with_strategy.strategy = GetParam();
    EXPECT_GT(strike_every_call(with_strategy)[Outcome::kPoisoned], 0);
  }
}

TEST_P(DeviceFailure, InARollBackLeavesTheCommitOrPoisons) {
  const Fault fault = GetParam() == kRemap ? Fault::kExchangeFails : Fault::kCopyFails;
  Trial trial{.strategy = GetParam(), .fault = fault, .at_byte = 7, .in_roll_back = true};
  const Tally once = strike_every_call(trial);
  EXPECT_GT(once.at(Outcome::kCommitted), 0);
  EXPECT_EQ(once.count(Outcome::kPoisoned), 0u);
  trial.twice = true;
  EXPECT_GT(strike_every_call(trial)[Outcome::kPoisoned], 0);
  for (const Fault other : {Fault::kProtectFails, Fault::kDeviceLost}) {
    strike_every_call({.strategy = GetParam(), .fault = other, .in_roll_back = true});
  }
}

TEST_P(DeviceFailure, OfAFirstLoadLeavesEpochZero) {
  for (const Fault fault : {Fault::kAllocationFails, Fault::kProtectFails, Fault::kLaunchFails}) {
    bool fired = true;
    for (std::uint64_t call = 0; fired; ++call) {
      Engine engine;
      FakeSource a = engine.source(1);
      const Snapshot before = snapshot(engine);
      engine.device->arm({{.fault = fault, .at_call = call}});
      const Status status = engine.reload(a, GetParam());
      fired = !engine.device->fired().empty();
      EXPECT_EQ(status.ok(), !fired);
      engine.device->disarm();
      if (!fired) break;
      if (engine.transaction->state() == TransactionState::kRolledBack) {
        EXPECT_TRUE(snapshot(engine) == before);
      }
      EXPECT_EQ(engine.registry.epoch().value, 0u);
      ASSERT_TRUE(engine.reload(a, GetParam()).ok());
      EXPECT_EQ(engine.registry.epoch().value, 1u);
    }
  }
}

// Slots of `engine` whose bytes differ from those of a cold B.
std::vector<std::string> wrong_slots(const Engine& engine) {
  Engine cold;
  FakeSource b = cold.source(2);
  cold.reload(b, kRemap).value();
  std::vector<std::string> wrong;
  for (const storage::Slot& slot : engine.registry.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    const auto is = engine.registry.view(slot.id).const_span();
    const auto should = cold.registry.view(slot.id).const_span();
    if (!std::equal(is.begin(), is.end(), should.begin(), should.end()))
      wrong.push_back(slot.spec.name);
  }
  return wrong;
}

TEST_P(DeviceFailure, InjectedStaleSlotsPassTheTransactionsOwnChecksAndAreWrong) {
  using Kind = InjectedFault::Kind;
  const std::map<Kind, std::vector<std::string>> expected = {
      {Kind::kStaleDerived, {"layers.0.sinks"}},
      {Kind::kSkipLayer,
       {"layers.1.qkv", "layers.1.sinks", "layers.1.experts.packed", "layers.1.experts.sums"}},
      {Kind::kDropSink, {"layers.0.sinks", "layers.1.sinks", "layers.2.sinks"}},
      {Kind::kNone, {}},
  };
  for (const auto& [kind, slots] : expected) {
    Engine engine;
    FakeSource a = engine.source(1), b = engine.source(2);
    const TransactionOptions options{.clock = nullptr, .fault = {kind}};
    ASSERT_TRUE(engine.reload(b, GetParam(), options).ok());
    EXPECT_EQ(wrong_slots(engine), std::vector<std::string>{}) << "a first load has no old bytes";
    ASSERT_TRUE(engine.reload(a, GetParam()).ok());
    const Status status = engine.reload(b, GetParam(), options);
    EXPECT_TRUE(status.ok()) << fault_kind_name(kind);
    EXPECT_EQ(wrong_slots(engine), slots) << fault_kind_name(kind);
    EXPECT_EQ(fault_kind_from_name(fault_kind_name(kind)), kind);
  }
}

TEST_P(DeviceFailure, InjectedRebindMovesTheConstantsAndNothingElse) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, GetParam()).ok());
  const Snapshot before = snapshot(engine);
  const TransactionOptions options{.clock = nullptr,
                                   .fault = {InjectedFault::Kind::kRebindConstants}};
  ASSERT_TRUE(engine.reload(b, GetParam(), options).ok());
  EXPECT_EQ(wrong_slots(engine), std::vector<std::string>{});
  for (const storage::Slot& slot : engine.registry.slots()) {
    const bool moved = slot.range.begin != before.addresses[slot.id.index()];
    EXPECT_EQ(moved, slot.spec.slot_class == storage::SlotClass::kConstant) << slot.spec.name;
  }
}

TEST(InjectedFault, ThatHasNothingToActOnIsAnError) {
  bool broken = false;
  Misbehaving engine(broken);
  using Kind = InjectedFault::Kind;
  for (const Kind kind :
       {Kind::kRebindConstants, Kind::kSkipLayer, Kind::kDropSink, Kind::kRebuiltWorkspace,
        Kind::kReregisteredScale, Kind::kStaleSortIndex, Kind::kStalePermutation,
        Kind::kStaleAlpha, Kind::kShuffleTwice, Kind::kNoShuffle}) {
    const auto slots = stale_slots(engine.registry, kind);
    ASSERT_FALSE(slots.ok());
    EXPECT_EQ(slots.error().code(), ErrorCode::kNotFound);
    EXPECT_THAT(slots.error().message(), HasSubstr(std::string(fault_kind_name(kind))));
  }
  EXPECT_EQ(stale_slots(engine.registry, Kind::kStaleDerived)->size(), 1u);
}

}  // namespace
}  // namespace holdfast::reload
