// Live reloads through the engine: weights replaced under captured graphs while requests run.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "device/cpu/cpu_device.h"
#include "device/forwarding_device.h"
#include "device/sim/sim_device.h"
#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

const std::vector<ReferencePrompt>& prompts_a() {
  static const auto prompts = read_reference_prompts("gptoss-tiny-A");
  return prompts;
}

std::vector<Transcript> cold_tokens(const std::string& directory) {
  return run_together(*open_core(test_options(directory)), greedy_requests(prompts_a()));
}

void expect_same_tokens(const std::vector<Transcript>& a, const std::vector<Transcript>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].same_tokens(b[i])) << "prompt " << i;
}

void step_into(EngineCore& core, Transcript& transcript) {
  const auto events = core.step();
  ASSERT_TRUE(events.ok()) << events.error().to_string();
  for (const Event& event : *events) transcript.add(event);
}

// Steps until the open reload is ready or has failed, at most `max_steps` of them with work to do.
void step_while_staging(EngineCore& core, int max_steps, Transcript& transcript) {
  while (core.reload_phase() == ReloadPhase::kStaging) {
    if (max_steps-- <= 0) {
      std::this_thread::yield();
      continue;
    }
    step_into(core, transcript);
  }
}

// Slots that a commit replaces must stand where they stood; `before` and `after` may be of two
// engines when only contents are to be compared.
void expect_same_addresses(const CensusReport& before, const CensusReport& after) {
  ASSERT_EQ(before.slots.size(), after.slots.size());
  for (std::size_t i = 0; i < before.slots.size(); ++i) {
    EXPECT_EQ(before.slots[i].name, after.slots[i].name);
    EXPECT_EQ(before.slots[i].address, after.slots[i].address) << before.slots[i].name;
    EXPECT_EQ(before.slots[i].bytes, after.slots[i].bytes) << before.slots[i].name;
  }
  EXPECT_TRUE(after.homeless.empty());
  EXPECT_TRUE(after.rehomed.empty());
}
void expect_same_digests(const CensusReport& a, const CensusReport& b) {
  ASSERT_EQ(a.slots.size(), b.slots.size());
  for (std::size_t i = 0; i < a.slots.size(); ++i) {
    EXPECT_EQ(a.slots[i].digest, b.slots[i].digest) << a.slots[i].name;
  }
}

class Reload : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Reload, testing::Values("remap", "copy"),
                         [](const auto& parameter) { return parameter.param; });

TEST_P(Reload, EveryTokenCarriesTheEpochOfTheWeightsThatMadeIt) {
  const auto core = open_core(test_options(model_a()));
  const Transcript undisturbed =
      run_together(*core, {greedy_request(prompts_a()[2])}).front();
  ASSERT_TRUE(core->submit(greedy_request(prompts_a()[2])).ok());
  Transcript live;
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = GetParam(), .commit_when_ready = false,
                                             .inject = {}}).ok());
  step_while_staging(*core, 20, live);
  ASSERT_EQ(core->reload_phase(), ReloadPhase::kReady);
  while (live.ids.size() < 20) {
    step_into(*core, live);
  }
  EXPECT_EQ(core->epoch(), 1u) << "a ready reload waits for the caller's word";
  const std::size_t before = live.ids.size();
  ASSERT_TRUE(core->commit_reload().ok());
  EXPECT_EQ(core->epoch(), 2u);
  while (!live.ended) {
    step_into(*core, live);
  }
  ASSERT_EQ(live.ids.size(), 48u);
  for (std::size_t i = 0; i < live.ids.size(); ++i) {
    EXPECT_EQ(live.epochs[i], i < before ? 1u : 2u) << "token " << i;
    if (i < before) {
      EXPECT_EQ(live.ids[i], undisturbed.ids[i]) << "token " << i;
    }
  }
  EXPECT_NE(live.ids, undisturbed.ids) << "the new weights show";
  const auto report = core->finish_reload();
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  EXPECT_EQ(report->state, "committed");
  EXPECT_EQ(report->strategy, GetParam());
  EXPECT_EQ(report->from_epoch, 1u);
  EXPECT_EQ(report->to_epoch, 2u);
  EXPECT_GT(report->source_bytes, 0u);
  EXPECT_GT(report->pause_us, 0.0);
  EXPECT_LE(report->measured_peak_bytes, report->declared_peak_bytes);
}

TEST_P(Reload, AWarmEngineEqualsAColdOneBitForBit) {
  const auto cold = open_core(test_options(model_b()));
  const auto cold_transcripts = run_together(*cold, greedy_requests(prompts_a()));
  const auto warm = open_core(test_options(model_a()));
  const CensusReport before = warm->census().value();
  ASSERT_TRUE(warm->begin_reload(model_b(), {.commit = GetParam(), .inject = {}}).ok());
  const auto report = warm->finish_reload();
  ASSERT_TRUE(report.ok()) << report.error().to_string();
  expect_same_tokens(run_together(*warm, greedy_requests(prompts_a())), cold_transcripts);
  const CensusReport after = warm->census().value();
  expect_same_addresses(before, after);
  expect_same_digests(after, cold->census().value());
  EXPECT_EQ(after.epoch, 2u);
}

TEST_P(Reload, IdenticalWeightsChangeNoBitAndNoToken) {
  const auto core = open_core(test_options(model_a()));
  const auto before = run_together(*core, greedy_requests(prompts_a()));
  const CensusReport census_before = core->census().value();
  for (std::uint64_t epoch = 2; epoch <= 4; ++epoch) {
    ASSERT_TRUE(core->begin_reload(model_a(), {.commit = GetParam(), .inject = {}}).ok());
    ASSERT_TRUE(core->finish_reload().ok());
    EXPECT_EQ(core->epoch(), epoch);
  }
  const CensusReport census_after = core->census().value();
  expect_same_addresses(census_before, census_after);
  expect_same_digests(census_before, census_after);
  expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), before);
}

TEST_P(Reload, TheCommitAllocatesNothingOnTheEngineThread) {
  const auto core = open_core(test_options(model_a()));
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = GetParam(), .commit_when_ready = false,
                                             .inject = {}}).ok());
  Transcript none;
  step_while_staging(*core, 0, none);
  ASSERT_EQ(core->reload_phase(), ReloadPhase::kReady);
  const std::size_t live_bytes = core->runtime().device().usage().live_bytes;
  core->runtime().device().reset_peak();
  Status committed;
  EXPECT_EQ(count_allocations([&] { committed = core->commit_reload(); }), 0u);
  EXPECT_TRUE(committed.ok());
  EXPECT_EQ(core->runtime().device().usage().peak_bytes, live_bytes);
  EXPECT_TRUE(core->finish_reload().ok());
  EXPECT_LT(core->runtime().device().usage().live_bytes, live_bytes)
      << "the previous weights are freed once the new ones are verified";
}

TEST_P(Reload, AFailedExchangeRollsBackAndTheOldWeightsServeOn) {
  auto sim = std::make_unique<device::SimDevice>(device::make_cpu_device());
  device::SimDevice& faults = *sim;
  const auto core = EngineCore::open(test_options(model_a()), std::move(sim)).value();
  const auto before = run_together(*core, greedy_requests(prompts_a()));
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = GetParam(), .commit_when_ready = false,
                                             .inject = {}}).ok());
  Transcript none;
  step_while_staging(*core, 0, none);
  const auto fault = GetParam() == "remap" ? device::Fault::kExchangeFails
                                           : device::Fault::kCopyFails;
  faults.arm({{.fault = fault, .at_call = 1, .at_byte = 64}});
  const Status committed = core->commit_reload();
  faults.disarm();
  ASSERT_FALSE(committed.ok());
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kFailed);
  EXPECT_FALSE(core->poisoned());
  EXPECT_EQ(core->epoch(), 1u);
  EXPECT_EQ(core->last_reload()->state, "rolled_back");
  EXPECT_FALSE(core->last_reload()->error.empty());
  EXPECT_FALSE(core->finish_reload().ok());
  expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), before);
}

// ------------------------------------------------------------------------------ commits

// A device whose memory goes bad in the very moment of the exchange.
class TamperingDevice final : public device::ForwardingDevice {
 public:
  bool tamper = false;
  Status exchange_backing(device::Memory a, device::Memory b) override {
    HF_TRY(ForwardingDevice::exchange_backing(a, b));
    if (!tamper) return {};
    HF_TRY(protect(a, device::Protection::kReadWrite));
    *a.address ^= std::byte{1};
    return protect(a, device::Protection::kReadOnly);
  }
};

TEST(ReloadCommit, WeightsThatFailTheirVerificationAreRolledBackWithWhatTheyComputed) {
  auto owned = std::make_unique<TamperingDevice>();
  TamperingDevice& memory = *owned;
  const auto core = EngineCore::open(test_options(model_a()), std::move(owned)).value();
  const auto before = run_together(*core, greedy_requests(prompts_a()));
  ASSERT_TRUE(core->submit(greedy_request(prompts_a()[1])).ok());
  Transcript live;
  step_into(*core, live);
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = "remap", .commit_when_ready = false,
                                             .inject = {}}).ok());
  step_while_staging(*core, 0, live);
  memory.tamper = true;
  ASSERT_TRUE(core->commit_reload().ok());
  memory.tamper = false;
  // May run under the bad epoch, or find it rolled back already; either way nothing of it stays.
  step_into(*core, live);
  const auto report = core->finish_reload();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(core->last_reload()->state, "rolled_back");
  EXPECT_EQ(core->epoch(), 1u);
  EXPECT_FALSE(core->poisoned());
  while (!core->idle()) step_into(*core, live);
  const bool touched = std::find(live.epochs.begin(), live.epochs.end(), 2u) != live.epochs.end();
  EXPECT_EQ(live.reason, touched ? FinishReason::kAbort : FinishReason::kLength);
  expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), before);
  EXPECT_EQ(core->stats().roll_backs, 1u);
  EXPECT_EQ(core->stats().commits, 0u);
  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  EXPECT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(core->stats().roll_backs, 1u);
  EXPECT_EQ(core->stats().commits, 1u);
}

TEST(ReloadCommit, AReadyReloadCommitsByItselfBetweenTwoSteps) {
  const auto expected = cold_tokens(model_b());
  const auto core = open_core(test_options(model_a()));
  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  while (core->epoch() == 1) {
    ASSERT_TRUE(core->step().ok());
    std::this_thread::yield();
  }
  expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), expected);
  EXPECT_TRUE(core->finish_reload().ok());
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kDone);
}

TEST(ReloadCommit, WeightsThatCannotBePutBackPoisonTheEngineUntilACompleteReload) {
  auto sim = std::make_unique<device::SimDevice>(device::make_cpu_device());
  device::SimDevice& faults = *sim;
  const auto core = EngineCore::open(test_options(model_a()), std::move(sim)).value();
  const auto running = core->submit(greedy_request(prompts_a()[1])).value();
  ASSERT_TRUE(core->step().ok());
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = "copy", .commit_when_ready = false,
                                             .inject = {}}).ok());
  Transcript none;
  step_while_staging(*core, 0, none);
  // The copy fails half way, and so does every attempt to undo it.
  std::vector<device::FaultPlan> plans;
  for (std::uint64_t call = 1; call < 64; ++call) {
    plans.push_back({.fault = device::Fault::kCopyFails, .at_call = call, .at_byte = 64});
  }
  faults.arm(plans);
  EXPECT_FALSE(core->commit_reload().ok());
  faults.disarm();
  EXPECT_TRUE(core->poisoned());
  EXPECT_EQ(core->last_reload()->state, "poisoned");
  const auto step = core->step();
  ASSERT_FALSE(step.ok());
  EXPECT_EQ(step.error().code(), ErrorCode::kPoisoned);
  const auto refused = core->submit(greedy_request(prompts_a()[0]));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kPoisoned);
  EXPECT_TRUE(core->cancel(running).ok());

  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  EXPECT_FALSE(core->poisoned());
  ASSERT_EQ(core->step().value().size(), 1u) << "the end of the cancelled request";
  expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), cold_tokens(model_b()));
}

TEST(ReloadCommit, ReboundConstantsShowInTheCensus) {
  const auto core = open_core(test_options(model_a()));
  ASSERT_TRUE(core->begin_reload(model_a(), {.commit = {}, .inject = "rebind-constants"}).ok());
  ASSERT_TRUE(core->finish_reload().ok());
  const CensusReport census = core->census().value();
  EXPECT_GT(census.homeless.size() + census.rehomed.size(), 0u);
  EXPECT_NE(census.rehomed.front().find("swiglu"), std::string::npos) << census.rehomed.front();
  EXPECT_NE(census.json.find("\"rehomed\""), std::string::npos);
}

// ------------------------------------------------------------------------------ failures

class ReloadFailure : public testing::Test {
 protected:
  // A copy of B with one file changed by `spoil`.
  std::string spoiled_copy(const std::string& name,
                           const std::function<void(const std::filesystem::path&)>& spoil) {
    const std::filesystem::path copy = temp_root() / name;
    std::filesystem::remove_all(copy);
    std::filesystem::copy(model_b(), copy);
    spoil(copy);
    return copy.string();
  }

  // Tries to reload `directory` while a request runs; the engine must not notice.
  void expect_refused(const std::string& directory, ErrorCode code) {
    const auto core = open_core(test_options(model_a()));
    const auto before = run_together(*core, greedy_requests(prompts_a()));
    const CensusReport census = core->census().value();
    const std::size_t live_bytes = core->runtime().device().usage().live_bytes;
    ASSERT_TRUE(core->begin_reload(directory, {}).ok());
    expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), before);
    const auto report = core->finish_reload();
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code(), code) << report.error().to_string();
    EXPECT_EQ(core->reload_phase(), ReloadPhase::kFailed);
    EXPECT_EQ(core->last_reload()->state, "rolled_back");
    EXPECT_EQ(core->epoch(), 1u);
    const CensusReport after = core->census().value();
    expect_same_addresses(census, after);
    expect_same_digests(census, after);
    expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), before);
    EXPECT_EQ(core->runtime().device().usage().live_bytes, live_bytes);
    ASSERT_TRUE(core->begin_reload(model_b(), {}).ok()) << "a failure is no obstacle to the next";
    EXPECT_TRUE(core->finish_reload().ok());
    EXPECT_EQ(core->epoch(), 2u);
  }
};

TEST_F(ReloadFailure, ADirectoryThatIsNotThereChangesNothing) {
  expect_refused(source_path("models/no-such-model"), ErrorCode::kNotFound);
}

TEST_F(ReloadFailure, ATruncatedShardChangesNothing) {
  const auto directory = spoiled_copy("truncated", [](const std::filesystem::path& copy) {
    const auto shard = copy / "model-00002-of-00002.safetensors";
    std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
  });
  expect_refused(directory, ErrorCode::kCorrupt);
}

TEST_F(ReloadFailure, WeightsOfAnotherLayoutChangeNothing) {
  expect_refused(model_a_bf16(), ErrorCode::kMismatch);
}

TEST_F(ReloadFailure, AnUnknownOptionIsNamedAndNothingBegins) {
  const auto core = open_core(test_options(model_a()));
  const Status fault = core->begin_reload(model_b(), {.commit = {}, .inject = "no-such-fault"});
  ASSERT_FALSE(fault.ok());
  EXPECT_NE(fault.error().message().find("no-such-fault"), std::string::npos);
  const Status commit = core->begin_reload(model_b(), {.commit = "streem", .inject = {}});
  ASSERT_FALSE(commit.ok());
  EXPECT_NE(commit.error().message().find("streem"), std::string::npos);
  EXPECT_EQ(core->reload_phase(), ReloadPhase::kNone);
  EXPECT_EQ(core->finish_reload().error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(core->commit_reload().error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(core->abort_reload().error().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(ReloadFailure, OneReloadAtATime) {
  const auto core = open_core(test_options(model_a()));
  ASSERT_TRUE(core->begin_reload(model_b(), {.commit = {}, .commit_when_ready = false,
                                             .inject = {}}).ok());
  const Status second = core->begin_reload(model_a(), {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(core->finish_reload().ok());
}

TEST_F(ReloadFailure, AnAbortedReloadLeavesNothingBehind) {
  const auto core = open_core(test_options(model_a()));
  const std::size_t live_bytes = core->runtime().device().usage().live_bytes;
  for (const bool wait : {false, true}) {
    ASSERT_TRUE(core->begin_reload(model_b(), {.commit = {}, .commit_when_ready = false,
                                               .inject = {}}).ok());
    Transcript none;
    if (wait) step_while_staging(*core, 0, none);
    ASSERT_TRUE(core->abort_reload().ok());
    EXPECT_EQ(core->reload_phase(), ReloadPhase::kFailed);
    EXPECT_EQ(core->finish_reload().error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(core->runtime().device().usage().live_bytes, live_bytes);
  }
  EXPECT_EQ(core->epoch(), 1u);
}

TEST_F(ReloadFailure, AnEngineCanGoAwayWhileAReloadIsOpen) {
  for (const bool wait : {false, true}) {
    const auto core = open_core(test_options(model_a()));
    ASSERT_TRUE(core->begin_reload(model_b(), {.commit = {}, .commit_when_ready = false,
                                               .inject = {}}).ok());
    Transcript none;
    if (wait) step_while_staging(*core, 0, none);
  }
}

TEST_F(ReloadFailure, AMachineWithoutTheMemoryRefusesAndServesOn) {
  auto sim = std::make_unique<device::SimDevice>(device::make_cpu_device());
  device::SimDevice& faults = *sim;
  const auto core = EngineCore::open(test_options(model_a()), std::move(sim)).value();
  const auto before = run_together(*core, greedy_requests(prompts_a()));
  faults.arm({{.fault = device::Fault::kAllocationFails, .at_call = 1}});
  ASSERT_TRUE(core->begin_reload(model_b(), {}).ok());
  EXPECT_FALSE(core->finish_reload().ok());
  faults.disarm();
  EXPECT_EQ(core->epoch(), 1u);
  expect_same_tokens(run_together(*core, greedy_requests(prompts_a())), before);
}

TEST(EngineOpen, AnErrorNamesTheDirectoryOrTheOption) {
  const auto absent = EngineCore::open(test_options(source_path("models/none")));
  ASSERT_FALSE(absent.ok());
  EXPECT_NE(absent.error().message().find("models/none"), std::string::npos);
  EngineOptions options = test_options(model_a());
  options.max_context = 5000;
  const auto too_long = EngineCore::open(options);
  ASSERT_FALSE(too_long.ok());
  EXPECT_NE(too_long.error().message().find("5000"), std::string::npos);
}

TEST(EngineOpen, ALaunchThatFailsLosesNoTokenWhenTheStepIsTriedAgain) {
  auto sim = std::make_unique<device::SimDevice>(device::make_cpu_device());
  device::SimDevice& faults = *sim;
  const auto core = EngineCore::open(test_options(model_a()), std::move(sim)).value();
  ASSERT_TRUE(core->submit(greedy_request(prompts_a()[3])).ok());
  Transcript transcript;
  int failures = 0;
  for (int step = 0; !core->idle(); ++step) {
    if (step % 7 == 3) {
      faults.arm({{.fault = device::Fault::kLaunchFails}});
    }
    const auto events = core->step();
    faults.disarm();
    if (!events.ok()) {
      ++failures;
      continue;
    }
    for (const Event& event : *events) transcript.add(event);
  }
  EXPECT_GT(failures, 0);
  EXPECT_EQ(transcript.ids, prompts_a()[3].greedy_ids);
}

}  // namespace
}  // namespace holdfast::engine
