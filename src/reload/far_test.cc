// Reloads of a device whose memory the host cannot address: the same bytes, digests and refusals
// as on a CPU, whichever way the bytes take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "device/sim/far_device.h"
#include "reload/derive.h"
#include "reload/reload_fixture.h"
#include "reload/verify.h"

namespace holdfast::reload {
namespace {

using testing::Engine;
using testing::FakeSource;
using ::testing::HasSubstr;
using testing::TinyOptions;

constexpr CommitStrategy kAll[] = {CommitStrategy::kRemap, CommitStrategy::kCopy,
                                   CommitStrategy::kStream};

TinyOptions big_options() {
  TinyOptions options;
  options.big_rows = 80'000;  // 10 MB: several pieces, many leaves of a digest
  return options;
}

// A source that may be read by several threads, or fetched from where its bytes lie.
class WideSource final : public Source {
 public:
  WideSource(const storage::Registry& registry, std::uint64_t seed)
      : inner_(testing::draw_tensors(registry, seed)) {}
  std::string describe() const override { return inner_.describe(); }
  const config::ModelConfig& config() const override { return inner_.config(); }
  std::span<const SourceTensor> tensors() const override { return inner_.tensors(); }
  Status read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) override {
    if (reads++ == fail_at_read) return Error(ErrorCode::kIo, "the source died");
    std::memcpy(to.data(), inner_.data[index].bytes.data() + offset, to.size());
    return {};
  }
  bool reads_concurrently() const override { return true; }
  std::span<const std::byte> memory(std::size_t index) const override {
    return in_memory ? std::span<const std::byte>(inner_.data[index].bytes)
                     : std::span<const std::byte>();
  }
  void fetched(std::size_t, std::uint64_t bytes) override { fetched_bytes += bytes; }
  Status finish() override { return {}; }
  testing::FakeTensor& tensor(std::string_view name) { return inner_.tensor(name); }

  std::atomic<std::uint64_t> reads{0};
  std::atomic<std::uint64_t> fetched_bytes{0};
  std::uint64_t fail_at_read = ~0ull;
  bool in_memory = false;

 private:
  FakeSource inner_;
};

struct FarEngine {
  explicit FarEngine(bool fetches = false, const TinyOptions& options = big_options())
      : device(std::make_unique<device::FarDevice>(device::make_cpu_device(), fetches)) {
    define_tiny(registry, options).value();
    registry.seal(device).value();
    stream = device.create_stream(1).value();
  }
  Status prepare(Source& from, PlanOptions plan_options, TransactionOptions options = {}) {
    HF_ASSIGN(ReloadPlan plan, make_plan(registry, model_config, from, plan_options));
    options.clock = &clock;
    HF_ASSIGN(transaction, Transaction::begin(registry, std::move(plan), options));
    HF_TRY(transaction->stage(from, *stream));
    return transaction->prepare();
  }
  Status reload(Source& from, CommitStrategy strategy, TransactionOptions options = {}) {
    PlanOptions plan_options;
    plan_options.strategy = strategy;
    HF_TRY(prepare(from, plan_options, options));
    HF_TRY(transaction->commit());
    return transaction->verify();
  }
  std::vector<std::vector<std::byte>> content() {
    std::vector<std::vector<std::byte>> arenas;
    for (const device::Arena* arena : registry.versioned_arenas()) {
      auto& bytes = arenas.emplace_back(arena->memory().bytes);
      device.read(bytes.data(), arena->memory().address, bytes.size()).value();
    }
    return arenas;
  }

  config::ModelConfig model_config;
  base::SteadyClock clock;
  // Its faults are those of the calls that staging makes.
  device::SimDevice device;
  storage::Registry registry;
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<Transaction> transaction;
};

// What the CPU holds after loading the same.
struct NearReference {
  explicit NearReference(std::uint64_t seed) : engine(big_options()) {
    FakeSource source = engine.source(seed);
    engine.reload(source, CommitStrategy::kRemap).value();
  }
  Engine engine;
};

void expect_same(FarEngine& far, const NearReference& near) {
  EXPECT_TRUE(far.content() == testing::content(near.engine.registry));
  for (const storage::Slot& slot : far.registry.slots()) {
    EXPECT_EQ(slot.digest, near.engine.registry.slot(slot.id).digest) << slot.spec.name;
  }
  const auto verified = verify_registry(far.registry);
  EXPECT_TRUE(verified.ok()) << verified.error().to_string();
}

TEST(Far, EveryStrategyAndEveryWayThereGivesTheBytesAndDigestsOfACpu) {
  const NearReference a(1), b(2);
  for (const CommitStrategy strategy : kAll) {
    for (const bool in_memory : {false, true}) {
      FarEngine far;
      WideSource first(far.registry, 1), second(far.registry, 2);
      first.in_memory = second.in_memory = in_memory;
      const Status loaded = far.reload(first, strategy);
      ASSERT_TRUE(loaded.ok()) << loaded.error().to_string();
      expect_same(far, a);
      ASSERT_TRUE(far.reload(second, strategy).ok());
      expect_same(far, b);
    }
  }
}

TEST(Far, WhatIsFetchedFromTheSourcesMemoryIsNotReadAndStaysUntilItHasLanded) {
  const NearReference a(1);
  device::FarDevice device(device::make_cpu_device(), true);
  storage::Registry registry;
  define_tiny(registry, big_options()).value();
  registry.seal(device).value();
  const auto stream = device.create_stream(1).value();
  WideSource source(registry, 1);
  source.in_memory = true;
  base::SteadyClock clock;
  auto transaction =
      Transaction::begin(registry, make_plan(registry, {}, source, CommitStrategy::kRemap).value(),
                         {.clock = &clock, .fault = {}})
          .value();
  ASSERT_TRUE(transaction->stage(source, *stream).ok());
  ASSERT_TRUE(transaction->prepare().ok());
  ASSERT_TRUE(transaction->commit().ok());
  ASSERT_TRUE(transaction->verify().ok());
  for (const storage::Slot& slot : registry.slots()) {
    EXPECT_EQ(slot.digest, a.engine.registry.slot(slot.id).digest) << slot.spec.name;
  }
  std::uint64_t resident = 0;  // the inputs of derivations alone are read
  for (const storage::ParameterSpec& spec : registry.parameters()) {
    if (spec.slot.has_value()) resident += tensor::byte_size(spec.dtype, spec.shape).value();
  }
  EXPECT_GT(source.reads, 0u);
  EXPECT_EQ(source.fetched_bytes, resident);
  transaction.reset();
  registry.close();
}

TEST(Far, PushedBytesInAnyCutGiveTheSame) {
  const NearReference a(1);
  FarEngine far;
  WideSource source(far.registry, 1);
  PlanOptions options;
  options.strategy = CommitStrategy::kRemap;
  options.pushed = true;
  for (const char* name : {"model.embed", "model.big"}) {
    options.expected_digests[name] = base::digest_of(source.tensor(name).bytes);
  }
  auto plan = make_plan(far.registry, {}, source, options).value();
  auto transaction = Transaction::begin(far.registry, std::move(plan),
                                        {.clock = &far.clock, .fault = {}})
                         .value();
  for (const SourceTensor& spec : source.tensors()) {
    const auto& bytes = source.tensor(spec.name).bytes;
    for (std::size_t at = 0; at < bytes.size(); at += 1'000'000) {
      const Fragment fragment{
          .transaction = transaction->id(), .tensor = spec.name, .offset_bytes = at};
      const auto piece =
          std::span(bytes).subspan(at, std::min<std::size_t>(1'000'000, bytes.size() - at));
      const Status put = transaction->put(fragment, piece, *far.stream);
      ASSERT_TRUE(put.ok()) << put.error().to_string();
    }
  }
  ASSERT_TRUE(transaction->finish_staging(*far.stream).ok());
  ASSERT_TRUE(transaction->prepare().ok());
  ASSERT_TRUE(transaction->commit().ok());
  ASSERT_TRUE(transaction->verify().ok());
  expect_same(far, a);
}

// Copies of what lies on the device, and outputs on their way there, for each way of staging.
TEST(Far, TheDeclaredHostPeakBoundsWhatDerivationsHold) {
  FarEngine far;
  WideSource source(far.registry, 1);
  std::uint64_t most = 0;
  for (const storage::Derivation& derivation : far.registry.derivations()) {
    most = std::max(most, derive_buffer_bytes(far.registry, derivation));
  }
  ASSERT_GT(most, 0u);
  const auto expect_bounded = [&](const TransactionReport& report) {
    EXPECT_GE(report.measured_peak_host_bytes, most);
    EXPECT_LE(report.measured_peak_host_bytes, report.declared_peak_host_bytes);
  };
  ASSERT_TRUE(far.reload(source, CommitStrategy::kRemap).ok());
  expect_bounded(far.transaction->report());
  const PlanOptions pushed{.strategy = CommitStrategy::kRemap, .pushed = true};
  auto plan = make_plan(far.registry, {}, source, pushed).value();
  const auto transaction =
      Transaction::begin(far.registry, std::move(plan), {.clock = &far.clock, .fault = {}}).value();
  for (const SourceTensor& spec : source.tensors()) {
    const Fragment whole{.transaction = transaction->id(), .tensor = spec.name};
    ASSERT_TRUE(transaction->put(whole, source.tensor(spec.name).bytes, *far.stream).ok());
  }
  ASSERT_TRUE(transaction->finish_staging(*far.stream).ok());
  expect_bounded(transaction->report());
}

TEST(Far, APromisedDigestIsCheckedInOrder) {
  FarEngine far;
  WideSource source(far.registry, 1);
  PlanOptions options;
  options.strategy = CommitStrategy::kRemap;
  options.expected_digests["model.big"] = base::digest_of(source.tensor("model.big").bytes);
  EXPECT_TRUE(far.prepare(source, options).ok());
  source.tensor("model.big").bytes[9'000'000] ^= std::byte{1};
  const Status status = far.prepare(source, options);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("tensor model.big: its bytes have digest"));
}

TEST(Far, AnInsaneValueIsNamedAsOnACpuAndNothingLiveIsTouched) {
  FarEngine far;
  Engine near(big_options());
  WideSource good(far.registry, 1), bad(far.registry, 2);
  FakeSource near_bad = near.source(2);
  ASSERT_TRUE(far.reload(good, CommitStrategy::kRemap).ok());
  const auto before = far.content();
  for (testing::FakeTensor* big : {&bad.tensor("model.big"), &near_bad.tensor("model.big")}) {
    big->bytes[2 * 4'654'321] = std::byte{0x80};
    big->bytes[2 * 4'654'321 + 1] = std::byte{0x7F};
    big->bytes[2 * 5'000'000 + 1] = std::byte{0xFF};
  }
  const Status status = far.reload(bad, CommitStrategy::kRemap);
  const Status on_cpu = near.reload(near_bad, CommitStrategy::kRemap);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().to_string(), on_cpu.error().to_string());
  EXPECT_THAT(status.error().message(), HasSubstr("element 4654321 is inf; a weight is finite"));
  EXPECT_TRUE(far.content() == before);
  EXPECT_EQ(far.registry.epoch().value, 1u);
}

TEST(Far, AReloadThatFailsAnywhereInStagingChangesNothing) {
  FarEngine far;
  WideSource a(far.registry, 1);
  ASSERT_TRUE(far.reload(a, CommitStrategy::kRemap).ok());
  const auto before = far.content();
  const std::size_t live_bytes = far.device.usage().live_bytes;
  for (std::uint64_t at = 0; at < 8; ++at) {
    WideSource dies(far.registry, 2);
    dies.fail_at_read = at;
    EXPECT_FALSE(far.reload(dies, CommitStrategy::kRemap).ok()) << at;
    WideSource b(far.registry, 2);
    far.device.arm({{.fault = device::Fault::kCopyFails, .at_call = at, .at_byte = 100}});
    EXPECT_FALSE(far.reload(b, CommitStrategy::kRemap).ok()) << at;
    far.device.disarm();
    EXPECT_TRUE(far.content() == before) << at;
    EXPECT_EQ(far.device.usage().live_bytes, live_bytes);
  }
}

TEST(Far, AStreamThatFailsPoisonsUnlessAnImageIsKept) {
  for (const UndoPolicy undo : {UndoPolicy::kNone, UndoPolicy::kImage}) {
    FarEngine far;
    WideSource a(far.registry, 1), b(far.registry, 2);
    ASSERT_TRUE(far.reload(a, CommitStrategy::kRemap).ok());
    const auto before = far.content();
    b.tensor("model.big").bytes[1001] = std::byte{0xFF};
    PlanOptions options;
    options.strategy = CommitStrategy::kStream;
    options.undo = undo;
    ASSERT_TRUE(far.prepare(b, options).ok());
    const Status status = far.transaction->commit();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(far.registry.poisoned(), undo == UndoPolicy::kNone);
    if (undo == UndoPolicy::kImage) {
      EXPECT_TRUE(far.content() == before);
    }
    WideSource c(far.registry, 3);
    EXPECT_TRUE(far.reload(c, CommitStrategy::kStream).ok());
    EXPECT_FALSE(far.registry.poisoned());
  }
}

TEST(Far, AnInjectedStaleSlotKeepsItsLiveBytesUnderEveryStrategy) {
  const NearReference a(1), b(2);
  for (const CommitStrategy strategy : kAll) {
    FarEngine far;
    WideSource first(far.registry, 1), second(far.registry, 2);
    ASSERT_TRUE(far.reload(first, strategy).ok());
    ASSERT_TRUE(far.reload(second, strategy, {.fault = {InjectedFault::Kind::kSkipLayer}}).ok());
    std::size_t stale = 0;
    for (const storage::Slot& slot : far.registry.slots()) {
      if (slot.spec.slot_class == storage::SlotClass::kConstant || !slot.digest) continue;
      const auto old = a.engine.registry.slot(slot.id).digest;
      const bool kept = slot.spec.name.starts_with("layers.1.");
      EXPECT_EQ(slot.digest, kept ? old : b.engine.registry.slot(slot.id).digest);
      stale += kept;
    }
    EXPECT_GT(stale, 0u);
  }
}

}  // namespace
}  // namespace holdfast::reload
