// Commits that stage nothing, what a transaction says about itself, and when a graph may run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "reload/reload_fixture.h"
#include "reload/verify.h"

namespace holdfast::reload {
namespace {

using testing::capture_sum;
using testing::content;
using testing::Engine;
using testing::expected_sum;
using testing::FakeSource;
using ::testing::HasSubstr;
using testing::replay_sum;
using testing::Snapshot;
using testing::snapshot;

constexpr auto kRemap = CommitStrategy::kRemap;
constexpr auto kStream = CommitStrategy::kStream;

Status prepare_stream(Engine& engine, FakeSource& source, UndoPolicy undo,
                      TransactionOptions options = {}) {
  PlanOptions plan_options;
  plan_options.strategy = kStream;
  plan_options.undo = undo;
  HF_ASSIGN(ReloadPlan plan,
            make_plan(engine.registry, engine.model_config, source, plan_options));
  options.clock = &engine.clock;
  HF_ASSIGN(engine.transaction, Transaction::begin(engine.registry, std::move(plan), options));
  HF_TRY(engine.transaction->stage(source, *engine.stream));
  return engine.transaction->prepare();
}

std::vector<std::vector<std::byte>> cold_content(std::uint64_t seed) {
  Engine cold;
  FakeSource source = cold.source(seed);
  cold.reload(source, kRemap).value();
  return content(cold.registry);
}

TEST(Stream, HoldsWhatAColdLoadHoldsAndAllocatesNothingOnTheDevice) {
  for (const UndoPolicy undo : {UndoPolicy::kNone, UndoPolicy::kImage}) {
    Engine engine;
    FakeSource a = engine.source(1), b = engine.source(2);
    ASSERT_TRUE(prepare_stream(engine, a, undo).ok());  // the first load, too
    ASSERT_TRUE(engine.transaction->commit().ok());
    ASSERT_TRUE(engine.transaction->verify().ok());
    EXPECT_TRUE(content(engine.registry) == cold_content(1));
    auto graph = capture_sum(engine).value();
    ASSERT_TRUE(prepare_stream(engine, b, undo).ok());
    ASSERT_TRUE(engine.transaction->commit().ok());
    ASSERT_TRUE(engine.transaction->verify().ok());
    EXPECT_TRUE(content(engine.registry) == cold_content(2));
    EXPECT_EQ(replay_sum(engine, *graph), expected_sum(engine.registry));
    EXPECT_TRUE(verify_registry(engine.registry).ok());
    const TransactionReport report = engine.transaction->report();
    EXPECT_EQ(report.measured_peak_device_bytes, report.declared_peak_device_bytes);
    EXPECT_EQ(report.measured_peak_device_bytes == 0, undo == UndoPolicy::kNone);
    EXPECT_EQ(report.measured_peak_host_bytes, report.declared_peak_host_bytes);
    EXPECT_EQ(report.receipts_complete, report.receipts_expected);
  }
}

TEST(Stream, VerifyNoticesAByteBetweenTheSlotsAndTheNextStreamHealsIt) {
  for (const UndoPolicy undo : {UndoPolicy::kNone, UndoPolicy::kImage}) {
    Engine engine;
    FakeSource a = engine.source(1), b = engine.source(2);
    ASSERT_TRUE(engine.reload(a, kRemap).ok());
    ASSERT_TRUE(prepare_stream(engine, b, undo).ok());
    ASSERT_TRUE(engine.transaction->commit().ok());
    device::Arena& arena = *engine.registry.versioned_arenas().front();
    ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
    arena.memory().address[arena.memory().bytes - 1] = std::byte{1};
    ASSERT_TRUE(arena.protect(device::Protection::kReadOnly).ok());
    const Status status = engine.transaction->verify();
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(),
                HasSubstr("byte " + std::to_string(arena.memory().bytes - 1)));
    EXPECT_EQ(engine.registry.poisoned(), undo == UndoPolicy::kNone);
    ASSERT_TRUE(prepare_stream(engine, b, UndoPolicy::kNone).ok());
    ASSERT_TRUE(engine.transaction->commit().ok());
    EXPECT_TRUE(engine.transaction->verify().ok());
    EXPECT_TRUE(content(engine.registry) == cold_content(2));
  }
}

TEST(Stream, AFailureAtAnyReadPoisonsAndNoGraphRunsUntilACompleteReload) {
  for (std::uint64_t call = 0;; ++call) {
    Engine engine;
    FakeSource a = engine.source(1), b = engine.source(2);
    ASSERT_TRUE(engine.reload(a, kRemap).ok());
    auto graph = capture_sum(engine).value();
    b.fail_at_call = call;
    ASSERT_TRUE(prepare_stream(engine, b, UndoPolicy::kNone).ok());
    const Status status = engine.transaction->commit();
    if (status.ok()) break;
    EXPECT_EQ(status.error().code(), ErrorCode::kPoisoned);
    EXPECT_THAT(status.error().message(), HasSubstr("the source died"));
    EXPECT_EQ(engine.transaction->state(), TransactionState::kPoisoned);
    EXPECT_EQ(engine.registry.epoch().value, 1u);
    EXPECT_EQ(graph->launch(*engine.stream).error().code(), ErrorCode::kPoisoned);
    EXPECT_EQ(verify_registry(engine.registry).error().code(), ErrorCode::kPoisoned);
    b.fail_at_call = ~0ull;
    ASSERT_TRUE(engine.reload(b, kRemap).ok());
    EXPECT_EQ(replay_sum(engine, *graph), expected_sum(engine.registry));
    EXPECT_TRUE(content(engine.registry) == cold_content(2));
    if (call > 40) FAIL() << "the source has no more reads";
  }
}

TEST(Stream, WithAnUndoImageAFailureAtAnyReadLeavesEverythingAsBefore) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  auto graph = capture_sum(engine).value();
  const Snapshot before = snapshot(engine);
  const std::uint64_t sum = replay_sum(engine, *graph);
  std::uint64_t call = 0;
  for (;; ++call) {
    b.read_calls = 0;
    b.fail_at_call = call;
    ASSERT_TRUE(prepare_stream(engine, b, UndoPolicy::kImage).ok());
    const Status status = engine.transaction->commit();
    if (status.ok()) break;
    EXPECT_EQ(status.error().code(), ErrorCode::kIo);
    EXPECT_EQ(engine.transaction->state(), TransactionState::kRolledBack);
    EXPECT_TRUE(snapshot(engine) == before) << call;
    EXPECT_EQ(replay_sum(engine, *graph), sum);
  }
  EXPECT_EQ(call, 1u + 3 * (3 + 1 + 2 * 3));
  // And after the commit there is a way back.
  ASSERT_TRUE(engine.transaction->roll_back().ok());
  EXPECT_TRUE(snapshot(engine) == before);
  EXPECT_EQ(replay_sum(engine, *graph), sum);
}

TEST(Stream, ACancelBeforeTheFirstWriteLeavesEverythingAsBefore) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  const Snapshot before = snapshot(engine);
  std::atomic<bool> cancel{false};
  ASSERT_TRUE(prepare_stream(engine, b, UndoPolicy::kNone, {.cancel = &cancel}).ok());
  cancel = true;
  EXPECT_EQ(engine.transaction->commit().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(engine.transaction->state(), TransactionState::kRolledBack);
  EXPECT_TRUE(snapshot(engine) == before);
}

TEST(Stream, AMismatchAfterwardsPoisonsBecauseThereIsNoWayBack) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  ASSERT_TRUE(prepare_stream(engine, b, UndoPolicy::kNone).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  const auto slot = engine.registry.find_slot("embed").value();
  device::Arena& arena = engine.registry.arena_of(slot);
  ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
  engine.registry.view(slot).address[0] ^= std::byte{1};
  ASSERT_TRUE(arena.protect(device::Protection::kReadOnly).ok());
  EXPECT_EQ(engine.transaction->verify().error().code(), ErrorCode::kPoisoned);
  EXPECT_EQ(engine.transaction->state(), TransactionState::kPoisoned);
  EXPECT_TRUE(engine.registry.poisoned());
}

TEST(LaunchGate, IsClosedWhilePagesAreExchangedAndNoCommitHasSaidSo) {
  Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  auto graph = capture_sum(engine).value();
  engine.registry.begin_apply();
  EXPECT_THAT(graph->launch(*engine.stream).error().message(),
              HasSubstr("graph sum: launched while a commit is applying"));
  engine.registry.end_apply(true);
  EXPECT_TRUE(graph->launch(*engine.stream).ok());
  device::Arena& arena = *engine.registry.versioned_arenas().front();
  auto backing = arena.create_backing().value();
  ASSERT_TRUE(arena.exchange(backing).ok());
  const Status refused = graph->launch(*engine.stream);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(), HasSubstr("no commit has published them"));
  FakeSource b = engine.source(2);
  ASSERT_TRUE(engine.reload(b, kRemap).ok());
  EXPECT_EQ(replay_sum(engine, *graph), expected_sum(engine.registry));
}

TEST(Label, MovesWithACommitAloneAndBackWithItsRollBack) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.prepare(a, kRemap, {.label = "step 100"}).ok());
  EXPECT_EQ(engine.registry.label(), "");
  ASSERT_TRUE(engine.transaction->commit().ok());
  EXPECT_EQ(engine.registry.label(), "step 100");
  b.fail_at_call = 5;
  EXPECT_FALSE(engine.prepare(b, kRemap, {.label = "step 200"}).ok());
  EXPECT_EQ(engine.registry.label(), "step 100");
  b.fail_at_call = ~0ull;
  ASSERT_TRUE(engine.prepare(b, kRemap, {.label = "step 200"}).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  EXPECT_EQ(engine.registry.label(), "step 200");
  EXPECT_EQ(engine.transaction->report().label, "step 200");
  ASSERT_TRUE(engine.transaction->roll_back().ok());
  EXPECT_EQ(engine.registry.label(), "step 100");
}

TEST(TransactionIds, GrowWithEachTransactionOfARegistry) {
  Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  const auto first = engine.transaction->id();
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  EXPECT_GT(engine.transaction->id(), first);
  EXPECT_EQ(engine.transaction->report().id, engine.transaction->id().value);
}

// Moves on by 10 ns at each look.
class TickingClock final : public base::Clock {
 public:
  std::int64_t now_ns() const override { return now_ns_ += 10; }

 private:
  mutable std::int64_t now_ns_ = 0;
};

TEST(Deadline, IsNoticedAtEveryStageAndLeavesEverythingAsBefore) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  engine.transaction.reset();
  const Snapshot before = snapshot(engine);
  std::set<std::string> stages;
  for (std::int64_t deadline_ns = 1;; deadline_ns += 7) {
    TickingClock clock;
    const auto run = [&]() -> Status {
      HF_ASSIGN(ReloadPlan plan, make_plan(engine.registry, engine.model_config, b, kRemap));
      HF_ASSIGN(const auto transaction,
                Transaction::begin(engine.registry, std::move(plan),
                                   {.clock = &clock, .deadline_ns = deadline_ns}));
      HF_TRY(transaction->stage(b, *engine.stream));
      HF_TRY(transaction->prepare());
      return transaction->commit();
    };
    const Status status = run();
    if (status.ok()) break;
    ASSERT_EQ(status.error().code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(status.error().message(), HasSubstr(" ms past its deadline"));
    for (const char* stage : {"beginning", "staging", "preparing", "committing"}) {
      const std::string text = std::string(stage) + " fake source is ";
      if (status.error().message().find(text) != std::string::npos) stages.insert(stage);
    }
    EXPECT_TRUE(snapshot(engine) == before);
  }
  EXPECT_EQ(stages, (std::set<std::string>{"beginning", "committing", "preparing", "staging"}));
}

TEST(Warnings, AnAllZeroTensorWhereTheOldOneWasNot) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  for (const char* name : {"model.embed", "model.layers.1.sinks"}) {
    auto& bytes = b.tensor(name).bytes;
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
  }
  ASSERT_TRUE(engine.reload(a, kRemap).ok());
  EXPECT_TRUE(engine.transaction->report().warnings.empty());
  ASSERT_TRUE(engine.reload(b, kRemap).ok());
  EXPECT_THAT(engine.transaction->report().warnings,
              ::testing::ElementsAre(HasSubstr("model.embed is all zero"),
                                     HasSubstr("model.layers.1.sinks is all zero")));
  ASSERT_TRUE(engine.reload(b, kRemap).ok());
  EXPECT_TRUE(engine.transaction->report().warnings.empty());
  EXPECT_EQ(engine.transaction->report().slots_changed, 0u);
}

}  // namespace
}  // namespace holdfast::reload
