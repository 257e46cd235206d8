#include "reload/transaction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "reload/faults.h"
#include "reload/reload_fixture.h"

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

std::string message(const Status& status) {
  return status.ok() ? "ok" : status.error().to_string();
}

class TransactionTest : public ::testing::TestWithParam<CommitStrategy> {
 protected:
  CommitStrategy strategy() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Strategies, TransactionTest,
                         ::testing::Values(CommitStrategy::kRemap, CommitStrategy::kCopy),
                         [](const auto& tested) {
                           return std::string(commit_strategy_name(tested.param));
                         });

// Every slot of `engine` against values computed here from the source alone.
void expect_holds(const Engine& engine, FakeSource& source) {
  const storage::Registry& registry = engine.registry;
  for (const storage::ParameterSpec& parameter : registry.parameters()) {
    if (!parameter.slot.has_value()) continue;
    const auto& bytes = source.tensor(parameter.name).bytes;
    EXPECT_EQ(std::memcmp(registry.view(*parameter.slot).address + parameter.offset_bytes,
                          bytes.data(), bytes.size()),
              0)
        << parameter.name;
  }
  const auto& sinks = source.tensor("model.layers.0.sinks").bytes;
  const std::byte* widened = registry.view(registry.find_slot("layers.0.sinks").value()).address;
  for (std::size_t i = 0; i < sinks.size() / 2; ++i) {
    EXPECT_EQ(std::memcmp(widened + 4 * i + 2, sinks.data() + 2 * i, 2), 0);
    EXPECT_EQ(widened[4 * i], std::byte{0});
  }
  const auto& blocks = source.tensor("model.layers.2.experts.gate_blocks").bytes;
  const auto& scales = source.tensor("model.layers.2.experts.gate_scales").bytes;
  const auto packed = registry.view(registry.find_slot("layers.2.experts.packed").value());
  for (std::int64_t expert = 0; expert < packed.shape[0]; ++expert) {
    const std::byte* row = packed.row(expert).address;
    EXPECT_EQ(row[0], blocks[static_cast<std::size_t>(expert) * 7]);
    EXPECT_EQ(row[1], scales[static_cast<std::size_t>(expert) * 5]);
    EXPECT_EQ(row[11], blocks[static_cast<std::size_t>(expert) * 7 + 6]);
  }
}

TEST_P(TransactionTest, TheFirstLoadIsATransactionThatFillsEverySlot) {
  Engine engine;
  FakeSource a = engine.source(1);
  const Status status = engine.reload(a, strategy());
  ASSERT_TRUE(status.ok()) << message(status);
  EXPECT_EQ(engine.registry.epoch().value, 1u);
  EXPECT_EQ(engine.transaction->state(), TransactionState::kCommitted);
  expect_holds(engine, a);
  const auto alpha = engine.registry.find_slot("layers.1.experts.swiglu_alpha").value();
  EXPECT_EQ(engine.registry.view(alpha).as<float>()[2], 1.702f);
  for (const storage::Slot& slot : engine.registry.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    EXPECT_EQ(slot.epoch.value, 1u) << slot.spec.name;
    EXPECT_EQ(slot.digest, base::tree_digest_of(engine.registry.view(slot.id).const_span()));
  }
}

// I9, first half.
TEST_P(TransactionTest, AReloadOfTheSameWeightsChangesNoBitAndBumpsTheEpoch) {
  Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  const Snapshot before = snapshot(engine);
  for (std::uint64_t epoch = 2; epoch < 5; ++epoch) {
    FakeSource again = engine.source(1);
    ASSERT_TRUE(engine.reload(again, strategy()).ok());
    const Snapshot after = snapshot(engine);
    EXPECT_EQ(after.arenas, before.arenas);
    EXPECT_EQ(after.addresses, before.addresses);
    EXPECT_EQ(after.digests, before.digests);
    EXPECT_EQ(after.protections, before.protections);
    EXPECT_EQ(after.live_bytes, before.live_bytes);
    EXPECT_EQ(after.epoch, epoch);
    EXPECT_NE(after.slot_epochs, before.slot_epochs);
  }
}

// I9, second half.
TEST_P(TransactionTest, AWarmAToBEqualsAColdBInEveryByteOfEveryArena) {
  Engine warm, cold;
  FakeSource a = warm.source(1), b = warm.source(2), cold_b = cold.source(2);
  ASSERT_TRUE(warm.reload(a, strategy()).ok());
  const auto of_a = content(warm.registry);
  ASSERT_TRUE(warm.reload(b, strategy()).ok());
  // The other strategy, so that the two ways are equal too.
  ASSERT_TRUE(cold.reload(cold_b, strategy() == CommitStrategy::kRemap ? CommitStrategy::kCopy
                                                                       : CommitStrategy::kRemap)
                  .ok());
  EXPECT_EQ(content(warm.registry), content(cold.registry));
  EXPECT_NE(content(warm.registry), of_a);
  FakeSource back = warm.source(1);
  ASSERT_TRUE(warm.reload(back, strategy()).ok());
  EXPECT_EQ(content(warm.registry), of_a);
}

TEST_P(TransactionTest, TheBytesBetweenSlotsAreZeroAfterEveryLoad) {
  Engine engine;
  for (std::uint64_t seed = 1; seed < 3; ++seed) {
    FakeSource source = engine.source(seed);
    ASSERT_TRUE(engine.reload(source, strategy()).ok());
    auto arenas = content(engine.registry);
    const auto live = engine.registry.versioned_arenas();
    for (const storage::Slot& slot : engine.registry.slots()) {
      for (std::size_t i = 0; i < live.size(); ++i) {
        const auto base = reinterpret_cast<std::uintptr_t>(live[i]->memory().address);
        if (slot.range.begin < base || slot.range.begin >= base + live[i]->memory().bytes) continue;
        std::memset(arenas[i].data() + (slot.range.begin - base), 0, slot.range.bytes);
      }
    }
    for (const auto& arena : arenas) {
      EXPECT_THAT(arena, ::testing::Each(std::byte{0}));
    }
  }
}

TEST_P(TransactionTest, AGraphThatWasCapturedBeforeReadsTheNewWeightsAfter) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  auto graph = capture_sum(engine);
  ASSERT_TRUE(graph.ok()) << graph.error().to_string();
  const std::uint64_t of_a = replay_sum(engine, **graph);
  EXPECT_EQ(of_a, expected_sum(engine.registry));
  ASSERT_TRUE(engine.prepare(b, strategy()).ok());
  EXPECT_EQ(replay_sum(engine, **graph), of_a);
  ASSERT_TRUE(engine.transaction->commit().ok());
  const std::uint64_t of_b = replay_sum(engine, **graph);
  EXPECT_NE(of_b, of_a);
  EXPECT_EQ(of_b, expected_sum(engine.registry));
  ASSERT_TRUE(engine.transaction->verify().ok());
  EXPECT_EQ(replay_sum(engine, **graph), of_b);
  Engine cold;
  FakeSource cold_b = cold.source(2);
  ASSERT_TRUE(cold.reload(cold_b, strategy()).ok());
  EXPECT_EQ(of_b, expected_sum(cold.registry));
}

TEST_P(TransactionTest, GraphsReplayTheOldWeightsWhileAnotherThreadStages) {
  Engine engine({.layers = 3, .experts = 3, .big_rows = 20'000});
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  auto graph = capture_sum(engine);
  const std::uint64_t of_a = replay_sum(engine, **graph);
  auto plan = make_plan(engine.registry, engine.model_config, b, strategy());
  auto transaction =
      Transaction::begin(engine.registry, *plan, {.clock = &engine.clock, .fault = {}});
  ASSERT_TRUE(transaction.ok());
  auto staging_stream = engine.device->create_stream(1);
  Status staged;
  std::thread stager([&] {
    staged = (*transaction)->stage(b, **staging_stream);
    if (staged.ok()) staged = (*transaction)->prepare();
  });
  while ((*transaction)->state() == TransactionState::kPlanned ||
         (*transaction)->state() == TransactionState::kStaging) {
    EXPECT_EQ(replay_sum(engine, **graph), of_a);
    EXPECT_EQ((*transaction)->report().to_epoch, 1u);
  }
  stager.join();
  ASSERT_TRUE(staged.ok()) << message(staged);
  ASSERT_TRUE((*transaction)->commit().ok());
  Status verified;
  std::thread verifier([&] { verified = (*transaction)->verify(); });
  const std::uint64_t of_b = replay_sum(engine, **graph);
  verifier.join();
  EXPECT_TRUE(verified.ok()) << message(verified);
  EXPECT_NE(of_b, of_a);
}

TEST_P(TransactionTest, RollBackRestoresBytesEpochAndDigests) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  auto graph = capture_sum(engine);
  const std::uint64_t of_a = replay_sum(engine, **graph);
  const Snapshot before = snapshot(engine);
  ASSERT_TRUE(engine.prepare(b, strategy()).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  EXPECT_NE(replay_sum(engine, **graph), of_a);
  ASSERT_TRUE(engine.transaction->roll_back().ok());
  EXPECT_EQ(engine.transaction->state(), TransactionState::kRolledBack);
  EXPECT_EQ(engine.transaction->report().to_epoch, 1u);
  EXPECT_EQ(snapshot(engine), before);
  EXPECT_EQ(replay_sum(engine, **graph), of_a);
  EXPECT_FALSE(engine.transaction->roll_back().ok());
}

TEST_P(TransactionTest, AnEpochThatWasRolledBackIsNeverGivenToOtherWeights) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2), c = engine.source(3);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  ASSERT_TRUE(engine.prepare(b, strategy()).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  EXPECT_EQ(engine.registry.epoch().value, 2u);
  ASSERT_TRUE(engine.transaction->roll_back().ok());
  EXPECT_EQ(engine.registry.epoch().value, 1u);
  const auto plan = make_plan(engine.registry, engine.model_config, c, strategy());
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(to_text(*plan, engine.registry), HasSubstr("epoch        1 -> 3"));
  ASSERT_TRUE(engine.reload(c, strategy()).ok());
  EXPECT_EQ(engine.registry.epoch().value, 3u);
  EXPECT_EQ(engine.transaction->report().to_epoch, 3u);
}

TEST_P(TransactionTest, ARollBackOfTheFirstLoadLeavesNoDigest) {
  Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.prepare(a, strategy()).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  ASSERT_TRUE(engine.transaction->roll_back().ok());
  EXPECT_EQ(engine.registry.epoch().value, 0u);
  for (const storage::Slot& slot : engine.registry.slots()) {
    EXPECT_FALSE(slot.digest.has_value()) << slot.spec.name;
  }
}

TEST_P(TransactionTest, RollBackIsRefusedOnceTheCommitIsVerified) {
  Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  const Status status = engine.transaction->roll_back();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.error().message(), HasSubstr("verified"));
  EXPECT_EQ(engine.registry.epoch().value, 1u);
}

TEST_P(TransactionTest, VerifyNamesTheSlotThatChangedAfterTheCommitAndKeepsTheWayBack) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  const Snapshot before = snapshot(engine);
  ASSERT_TRUE(engine.prepare(b, strategy()).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  const auto slot = engine.registry.find_slot("layers.1.experts.packed").value();
  device::Arena& arena = engine.registry.arena_of(slot);
  ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
  engine.registry.view(slot).address[5] ^= std::byte{4};
  ASSERT_TRUE(arena.protect(device::Protection::kReadOnly).ok());
  const Status status = engine.transaction->verify();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().message(), HasSubstr("layers.1.experts.packed"));
  ASSERT_TRUE(engine.transaction->roll_back().ok());
  EXPECT_EQ(snapshot(engine), before);
}

TEST_P(TransactionTest, AStrayWriteToWhatIsStagedIsNoticedAfterTheCommit) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  const Snapshot before = snapshot(engine);
  // What was read first lies in staging, and is digested, when the second read comes.
  b.on_read = [&](std::uint64_t call) {
    if (call == 1) *b.first_destination ^= std::byte{1};
  };
  ASSERT_TRUE(engine.prepare(b, strategy()).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  const Status verified = engine.transaction->verify();
  ASSERT_FALSE(verified.ok());
  EXPECT_THAT(verified.error().message(),
              HasSubstr("1 of 23 slots differ from what was staged (embed)"));
  ASSERT_TRUE(engine.transaction->roll_back().ok());
  EXPECT_EQ(snapshot(engine), before);
}

TEST_P(TransactionTest, VerifyNoticesAByteBetweenTheSlots) {
  Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.prepare(a, strategy()).ok());
  ASSERT_TRUE(engine.transaction->commit().ok());
  device::Arena& arena = *engine.registry.versioned_arenas().front();
  ASSERT_TRUE(arena.protect(device::Protection::kReadWrite).ok());
  std::byte& last = arena.memory().address[arena.memory().bytes - 1];
  last = std::byte{1};
  EXPECT_THAT(engine.transaction->verify().error().message(),
              HasSubstr("byte " + std::to_string(arena.memory().bytes - 1)));
  last = std::byte{0};
  EXPECT_TRUE(engine.transaction->verify().ok());
}

TEST_P(TransactionTest, APlanForAnotherEpochIsRefused) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  auto stale = make_plan(engine.registry, engine.model_config, a, strategy());
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  const auto begun =
      Transaction::begin(engine.registry, *stale, {.clock = &engine.clock, .fault = {}});
  ASSERT_FALSE(begun.ok());
  EXPECT_EQ(begun.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(begun.error().message(), HasSubstr("epoch 0"));

  // Two prepared over the same epoch: the second commit would undo the first without knowing it.
  ASSERT_TRUE(engine.prepare(b, strategy()).ok());
  auto late = std::move(engine.transaction);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  const Status status = late->commit();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(late->state(), TransactionState::kRolledBack);
  EXPECT_EQ(engine.registry.epoch().value, 2u);
}

TEST_P(TransactionTest, CallsOutOfOrderAreRefusedAndChangeNothing) {
  Engine engine;
  FakeSource a = engine.source(1);
  auto plan = make_plan(engine.registry, engine.model_config, a, strategy());
  auto begun = Transaction::begin(engine.registry, *plan, {.clock = &engine.clock, .fault = {}});
  Transaction& transaction = **begun;
  EXPECT_FALSE(transaction.prepare().ok());
  EXPECT_FALSE(transaction.commit().ok());
  EXPECT_FALSE(transaction.verify().ok());
  EXPECT_FALSE(transaction.roll_back().ok());
  EXPECT_EQ(transaction.state(), TransactionState::kPlanned);
  ASSERT_TRUE(transaction.stage(a, *engine.stream).ok());
  EXPECT_FALSE(transaction.stage(a, *engine.stream).ok());
  EXPECT_FALSE(transaction.commit().ok());
  EXPECT_EQ(transaction.state(), TransactionState::kStaging);
  ASSERT_TRUE(transaction.prepare().ok());
  EXPECT_FALSE(transaction.prepare().ok());
  ASSERT_TRUE(transaction.commit().ok());
  EXPECT_FALSE(transaction.commit().ok());
  transaction.abort(Error(ErrorCode::kCancelled, "too late"));
  EXPECT_EQ(transaction.state(), TransactionState::kCommitted);
}

TEST_P(TransactionTest, AnAbortOrADestructorInAnyStateLeavesEverythingAsBefore) {
  Engine engine;
  FakeSource a = engine.source(1);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  const Snapshot before = snapshot(engine);
  for (int steps = 0; steps < 3; ++steps) {
    for (const bool explicitly : {true, false}) {
      FakeSource b = engine.source(2);
      auto plan = make_plan(engine.registry, engine.model_config, b, strategy());
      auto begun =
          Transaction::begin(engine.registry, *plan, {.clock = &engine.clock, .fault = {}});
      if (steps > 0) {
        ASSERT_TRUE((*begun)->stage(b, *engine.stream).ok());
      }
      if (steps > 1) {
        ASSERT_TRUE((*begun)->prepare().ok());
      }
      if (explicitly) {
        (*begun)->abort(Error(ErrorCode::kCancelled, "changed my mind"));
        (*begun)->abort(Error(ErrorCode::kCancelled, "again"));
        EXPECT_EQ((*begun)->state(), TransactionState::kRolledBack);
        EXPECT_EQ((*begun)->report().error, "cancelled: changed my mind");
      } else {
        begun->reset();
      }
      EXPECT_EQ(snapshot(engine), before);
    }
  }
}

TEST_P(TransactionTest, TheReportDeclaresBeforeAndMeasuresAfter) {
  Engine engine({.layers = 3, .experts = 3, .big_rows = 20'000});
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  ASSERT_TRUE(engine.reload(b, strategy()).ok());
  const TransactionReport report = engine.transaction->report();
  EXPECT_EQ(report.source, "fake source");
  EXPECT_EQ(report.strategy, strategy());
  EXPECT_EQ(report.from_epoch, 1u);
  EXPECT_EQ(report.to_epoch, 2u);
  EXPECT_EQ(report.measured_peak_device_bytes, report.declared_peak_device_bytes);
  EXPECT_EQ(report.receipts_expected, report.receipts_complete);
  EXPECT_EQ(report.receipts_expected, engine.registry.parameters().size());
  EXPECT_EQ(report.source_bytes, b.bytes_read);
  EXPECT_GT(report.stage_ns, 0);
  EXPECT_GT(report.prepare_ns, 0);
  EXPECT_GT(report.pause_ns, 0);
  EXPECT_GT(report.verify_ns, 0);
  EXPECT_EQ(report.error, "");
}

TEST_P(TransactionTest, AThousandReloadsDoNotGrowTheDevicesMemory) {
  Engine engine;
  FakeSource a = engine.source(1), b = engine.source(2);
  ASSERT_TRUE(engine.reload(a, strategy()).ok());
  ASSERT_TRUE(engine.reload(b, strategy()).ok());
  engine.transaction.reset();
  const device::MemoryUsage before = engine.device->usage();
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(engine.reload(a, strategy()).ok());
    ASSERT_TRUE(engine.reload(b, strategy()).ok());
  }
  engine.transaction.reset();
  const device::MemoryUsage after = engine.device->usage();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.pooled_bytes, before.pooled_bytes);
  EXPECT_EQ(engine.registry.epoch().value, 1002u);
}

}  // namespace
}  // namespace holdfast::reload
