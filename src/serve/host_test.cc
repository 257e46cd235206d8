// The engine thread on the tiny models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "serve/host_fixture_test.h"

namespace holdfast::serve {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST_F(HostTest, GivesTheTokensOfTheEngineToTheSinksOfTheirRequests) {
  open();
  Receiver first, second;
  submit(first, request(12, 20));
  submit(second, request(77, 10));
  EXPECT_EQ(first.wait_end().ids, alone(kModelA, request(12, 20)).ids);
  const Received received = second.wait_end();
  EXPECT_EQ(received.ids, alone(kModelA, request(77, 10)).ids);
  EXPECT_EQ(received.finish, FinishReason::kLength);
  EXPECT_TRUE(received.id.has_value());
  EXPECT_THAT(received.epochs, Each(1u));
  EXPECT_THAT(received.versions, Each(std::string()));
}

TEST_F(HostTest, ARefusedRequestSaysWhyAndItsSinkIsNeverCalled) {
  open();
  Receiver receiver;
  Request wrong = request(12, 4);
  wrong.prompt_ids = {-1};
  submit(receiver, wrong);
  const Received received = receiver.wait_end();
  ASSERT_TRUE(received.refused.has_value());
  EXPECT_EQ(received.refused->code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(received.finish.has_value());
}

TEST_F(HostTest, RequestsFromManyThreadsAllEnd) {
  open();
  std::vector<Receiver> receivers(24);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 3; ++j) submit(receivers[i * 3 + j], request(10 + i, 5));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Receiver& receiver : receivers) EXPECT_EQ(receiver.wait_end().ids.size(), 5u);
}

// --- cancelling

TEST_F(HostTest, CancellingFromTheSinkEndsTheRequestOnce) {
  open();
  Receiver receiver;
  submit(receiver, request(12, 200), [&](const Received& r) {
    if (r.ids.size() == 3) host_->cancel(*r.id);
  });
  const Received received = receiver.wait_end();
  EXPECT_EQ(received.finish, FinishReason::kAbort);
  EXPECT_GE(received.ids.size(), 3u);
  EXPECT_LT(received.ids.size(), 200u);
  host_->cancel(*received.id);  // again: unknown by now
  settle();
  EXPECT_EQ(receiver.get().events_after_the_last, 0);
}

TEST_F(HostTest, CancelAllEndsRunningAndWaitingRequests) {
  open(small_engine(1));
  std::vector<Receiver> receivers(3);
  std::promise<void> started;
  submit(receivers[0], request(12, 200), [&](const Received& r) {
    if (r.ids.size() == 1) started.set_value();
  });
  submit(receivers[1], request(13, 200));
  submit(receivers[2], request(14, 200));
  started.get_future().wait();
  settle();
  EXPECT_EQ(await<std::size_t>([&](auto done) { host_->cancel_all(done); }), 3u);
  for (Receiver& receiver : receivers) EXPECT_EQ(receiver.wait_end().finish, FinishReason::kAbort);
}

// --- pausing

TEST_F(HostTest, AKeepingPauseFreezesARequestAndChangesNoBitOfIt) {
  open();
  Receiver receiver;
  std::promise<void> paused;
  submit(receiver, request(12, 60), [&](const Received& r) {
    if (r.ids.size() == 5) host_->pause(PauseMode::kKeep, [&] { paused.set_value(); });
  });
  paused.get_future().wait();
  const std::size_t before = receiver.get().ids.size();
  for (int i = 0; i < 20; ++i) settle();
  EXPECT_EQ(receiver.get().ids.size(), before);
  EXPECT_TRUE(host_->snapshot().paused);
  EXPECT_TRUE(resume().ok());
  const Received received = receiver.wait_end();
  const Received expected = alone(kModelA, request(12, 60));
  EXPECT_EQ(received.ids, expected.ids);
  EXPECT_EQ(received.logprobs, expected.logprobs);
  settle();
  EXPECT_FALSE(host_->snapshot().paused);
  EXPECT_GT(host_->snapshot().paused_seconds, 0);
}

TEST_F(HostTest, AWaitingPauseLetsRunningRequestsEndAndKeepsTheOthersWaiting) {
  open(small_engine(1));
  Receiver running, waiting;
  std::promise<std::size_t> paused;
  submit(running, request(12, 30), [&](const Received& r) {
    if (r.ids.size() != 5) return;
    host_->pause(PauseMode::kWait, [&] { paused.set_value(running.get().ids.size()); });
  });
  submit(waiting, request(13, 5));
  EXPECT_EQ(paused.get_future().get(), 30u);
  EXPECT_EQ(running.wait_end().finish, FinishReason::kLength);
  settle();
  EXPECT_TRUE(waiting.get().ids.empty());
  EXPECT_TRUE(host_->snapshot().paused);
  EXPECT_TRUE(resume().ok());
  EXPECT_EQ(waiting.wait_end().ids.size(), 5u);
}

TEST_F(HostTest, AnAbortingPauseEndsRequestsWithTheirTokensBeforeItAnswers) {
  open();
  Receiver receiver;
  std::promise<bool> ended;
  submit(receiver, request(12, 200), [&](const Received& r) {
    if (r.ids.size() != 5) return;
    host_->pause(PauseMode::kAbort, [&] { ended.set_value(receiver.get().finish.has_value()); });
  });
  EXPECT_TRUE(ended.get_future().get());
  const Received received = receiver.get();
  EXPECT_EQ(received.finish, FinishReason::kAbort);
  const Received expected = alone(kModelA, request(12, 200));
  ASSERT_LE(received.ids.size(), expected.ids.size());
  EXPECT_TRUE(std::equal(received.ids.begin(), received.ids.end(), expected.ids.begin()));
}

TEST_F(HostTest, PausesAndResumesAreIdempotentAndAddUp) {
  open();
  EXPECT_TRUE(resume().ok());
  pause(PauseMode::kKeep);
  pause(PauseMode::kKeep);
  pause(PauseMode::kWait);
  Receiver receiver;
  submit(receiver, request(12, 5));  // accepted, and waits
  receiver.wait([](const Received& r) { return r.id.has_value(); });
  settle();
  EXPECT_TRUE(receiver.get().ids.empty());
  pause(PauseMode::kAbort);
  EXPECT_EQ(receiver.get().finish, FinishReason::kAbort);
  EXPECT_TRUE(resume().ok());
  EXPECT_TRUE(resume().ok());
  Receiver next;
  submit(next, request(12, 5));
  EXPECT_EQ(next.wait_end().ids.size(), 5u);
}

TEST_F(HostTest, AWaitingPauseThatIsResumedOrFrozenAnswersWhoeverWaits) {
  open();
  for (const bool freeze : {false, true}) {
    Receiver receiver;
    std::promise<void> waited, frozen;
    submit(receiver, request(12, 100), [&](const Received& r) {
      if (r.ids.size() != 3) return;
      host_->pause(PauseMode::kWait, [&] { waited.set_value(); });
      if (freeze) {
        host_->pause(PauseMode::kKeep, [&] { frozen.set_value(); });
      } else {
        host_->resume([&](const Status&) { frozen.set_value(); });
      }
    });
    frozen.get_future().wait();
    waited.get_future().wait();
    EXPECT_TRUE(resume().ok());
    EXPECT_EQ(receiver.wait_end().ids.size(), 100u);
  }
}

TEST_F(HostTest, ARequestThatIsCancelledInAPauseEndsInThePause) {
  open();
  Receiver receiver, other;
  std::promise<void> paused;
  submit(other, request(13, 60));
  submit(receiver, request(12, 60), [&](const Received& r) {
    if (r.ids.size() == 5) host_->pause(PauseMode::kKeep, [&] { paused.set_value(); });
  });
  paused.get_future().wait();
  host_->cancel(*receiver.get().id);
  EXPECT_EQ(receiver.wait_end().finish, FinishReason::kAbort);
  EXPECT_TRUE(host_->snapshot().paused);
  EXPECT_FALSE(other.get().finish.has_value());
  EXPECT_TRUE(resume().ok());
  EXPECT_EQ(other.wait_end().ids, alone(kModelA, request(13, 60)).ids);
}

TEST_F(HostTest, SleepEndsRequestsAndOnlyWakingEndsIt) {
  open();
  Receiver receiver;
  std::promise<void> asleep;
  submit(receiver, request(12, 200), [&](const Received& r) {
    if (r.ids.size() == 2) host_->sleep([&] { asleep.set_value(); });
  });
  asleep.get_future().wait();
  EXPECT_EQ(receiver.get().finish, FinishReason::kAbort);
  settle();
  EXPECT_TRUE(host_->snapshot().sleeping);
  const Status resumed = resume();
  ASSERT_FALSE(resumed.ok());
  EXPECT_EQ(resumed.error().code(), ErrorCode::kFailedPrecondition);
  await<bool>([&](auto done) { host_->wake([done] { done(true); }); });
  Receiver next;
  submit(next, request(12, 5));
  EXPECT_EQ(next.wait_end().ids.size(), 5u);
}

// --- reloads

TEST_F(HostTest, AReloadCommitsWhilePausedAndWhileIdle) {
  open();
  pause(PauseMode::kKeep);
  const auto report = reload(kModelB, {.version = "v2"});
  ASSERT_TRUE(report.ok()) << report.error().message();
  EXPECT_EQ(report->state, "committed");
  settle();
  HostSnapshot snapshot = host_->snapshot();
  EXPECT_TRUE(snapshot.paused);
  EXPECT_EQ(snapshot.epoch, report->to_epoch);
  EXPECT_EQ(snapshot.version, "v2");
  ASSERT_EQ(snapshot.reloads.size(), 1u);
  EXPECT_LE(snapshot.reloads[0].began_unix_ms, snapshot.reloads[0].ended_unix_ms);
  EXPECT_TRUE(resume().ok());
  Receiver receiver;
  submit(receiver, request(12, 20));
  const Received received = receiver.wait_end();
  EXPECT_EQ(received.ids, alone(kModelB, request(12, 20)).ids);
  EXPECT_THAT(received.versions, Each(std::string("v2")));
  EXPECT_TRUE(reload(kModelA, {.version = "v3"}).ok());  // idle
  settle();
  EXPECT_EQ(host_->snapshot().version, "v3");
}

// Nothing else wakes the engine thread then: what the reload waited for is the end of its own step.
TEST_F(HostTest, AReloadThatDrainsCommitsWhenTheLastRequestHasEndedAndNothingElseComes) {
  open();
  for (int k = 0; k < 3; ++k) {
    Receiver receiver;
    submit(receiver, request(static_cast<std::int32_t>(10 + k), 240));
    receiver.wait([](const Received& r) { return !r.ids.empty(); });
    const auto report =
        reload(k % 2 == 0 ? kModelB : kModelA, {.in_flight = InFlight::kDrain});
    ASSERT_TRUE(report.ok()) << report.error().message();
    const Received received = receiver.wait_end();
    EXPECT_EQ(received.ids.size(), 240u);
    EXPECT_THAT(received.epochs, Each(report->from_epoch));
  }
}

// A reload that is ready and waits for somebody ends at its deadline, although nobody asks.
TEST_F(HostTest, AReloadThatNobodyCommitsEndsAtItsDeadlineWhileIdle) {
  open();
  const auto report = reload(kModelB, {.deadline_ms = 300, .commit_when_ready = false});
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message(), HasSubstr("deadline"));
  settle();
  EXPECT_EQ(host_->snapshot().epoch, 1u);
}

TEST_F(HostTest, UnderTrafficEveryTokenSaysWhichWeightsMadeIt) {
  int reported = 0;
  HostObserver observer;
  observer.on_reload = [&](const ReloadReport&) { ++reported; };
  open(small_engine(), observer);
  std::map<std::uint64_t, std::string> labels = {{1, ""}};
  std::vector<Receiver> receivers(6);
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    submit(receivers[i], request(static_cast<std::int32_t>(10 + i), 150));
  }
  for (int k = 0; k < 4; ++k) {
    const std::string label = "v" + std::to_string(k);
    const auto report = reload(k % 2 == 0 ? kModelB : kModelA, {.version = label});
    ASSERT_TRUE(report.ok()) << report.error().message();
    labels[report->to_epoch] = label;
  }
  for (Receiver& receiver : receivers) {
    const Received received = receiver.wait_end();
    EXPECT_EQ(received.ids.size(), 150u);
    EXPECT_TRUE(std::is_sorted(received.epochs.begin(), received.epochs.end()));
    for (std::size_t i = 0; i < received.ids.size(); ++i) {
      EXPECT_EQ(received.versions[i], labels.at(received.epochs[i]));
    }
  }
  EXPECT_EQ(reported, 4);
}

TEST_F(HostTest, ALabelStaysUntilACommitBringsAnother) {
  open();
  await<bool>([&](auto done) { host_->set_version("first", [done] { done(true); }); });
  Receiver receiver;
  submit(receiver, request(12, 3));
  EXPECT_THAT(receiver.wait_end().versions, Each(std::string("first")));
  EXPECT_TRUE(reload(kModelB).ok());
  settle();
  EXPECT_EQ(host_->snapshot().version, "first");
  EXPECT_TRUE(reload(kModelA, {.version = "second"}).ok());
  settle();
  EXPECT_EQ(host_->snapshot().version, "second");
}

TEST_F(HostTest, AReloadThatFailsIsToldAndTheOldWeightsServeOn) {
  open();
  const auto report = reload(kModelA + "-missing");
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message(), HasSubstr("gptoss-tiny-A-missing"));
  const auto refused = reload(kModelB, {.commit = "sideways"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  settle();
  ASSERT_EQ(host_->snapshot().reloads.size(), 1u);  // the second never began
  EXPECT_NE(host_->snapshot().reloads[0].report.error, "");
  Receiver receiver;
  submit(receiver, request(12, 20));
  EXPECT_EQ(receiver.wait_end().ids, alone(kModelA, request(12, 20)).ids);
}

TEST_F(HostTest, APushThatIsAbortedIsToldByItsId) {
  open();
  std::promise<Result<ReloadReport>> ended;
  const auto id = await<Result<std::uint64_t>>([&](auto begun) {
    host_->begin_push({}, {}, begun, [&](Result<ReloadReport> report) {
      ended.set_value(std::move(report));
    });
  });
  ASSERT_TRUE(id.ok()) << id.error().message();
  EXPECT_TRUE(host_->reload_status().pushed);
  const auto abort = [&](std::uint64_t which) {
    return await<Status>([&](auto done) { host_->abort_reload(which, done); });
  };
  const Status other = abort(*id + 1);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(abort(*id).ok());
  const Result<ReloadReport> report = ended.get_future().get();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(abort(0).ok());
}

TEST_F(HostTest, WhoWaitsForAReloadThatIsReplacedIsToldSo) {
  open();
  std::promise<Error> replaced;
  const auto first = await<Result<std::uint64_t>>([&](auto begun) {
    host_->begin_push({}, {}, begun, [&](const Result<ReloadReport>& report) {
      replaced.set_value(report.error());
    });
  });
  ASSERT_TRUE(first.ok());
  const auto second = await<Result<std::uint64_t>>([&](auto begun) {
    ReloadOptions options;
    options.replace_open = true;
    host_->begin_push({}, options, begun, [](const Result<ReloadReport>&) {});
  });
  ASSERT_TRUE(second.ok());
  const Error told = replaced.get_future().get();
  EXPECT_EQ(told.code(), ErrorCode::kCancelled);
  EXPECT_NE(told.message().find(std::to_string(*second)), std::string::npos) << told.message();
  // What was given up is on record, too.
  settle();
  settle();  // what the first found is published by then
  const HostSnapshot now = host_->snapshot();
  ASSERT_EQ(now.reloads.size(), 1u);
  EXPECT_EQ(now.reloads[0].report.id, *first);
  EXPECT_EQ(now.reloads[0].report.state, "rolled_back");
  EXPECT_EQ(now.stats.roll_backs, 1u);
}

TEST_F(HostTest, ReloadsAreCountedAsTheirRecordsSay) {
  open();
  EXPECT_FALSE(reload("no such directory").ok());
  EXPECT_FALSE(reload(HF_SOURCE_DIR "/tests/golden/mixtral-tiny-bf16").ok());
  EXPECT_TRUE(reload(kModelB).ok());
  const HostSnapshot now = host_->snapshot();
  std::uint64_t committed = 0, rolled_back = 0;
  for (const ReloadRecord& record : now.reloads) {
    committed += record.report.state == "committed";
    rolled_back += record.report.state == "rolled_back";
  }
  EXPECT_EQ(rolled_back, 2u);
  EXPECT_EQ(committed, 1u);
  EXPECT_EQ(now.stats.roll_backs, rolled_back);
  EXPECT_EQ(now.stats.commits, committed);
}

// --- the end

TEST_F(HostTest, DrainingRefusesNewRequestsAndWaitsForTheOthers) {
  open();
  Receiver running;
  std::promise<std::size_t> drained;
  submit(running, request(12, 50), [&](const Received& r) {
    if (r.ids.size() != 3) return;
    host_->drain([&] { drained.set_value(running.get().ids.size()); });
  });
  EXPECT_EQ(drained.get_future().get(), 50u);
  Receiver late;
  submit(late, request(12, 5));
  ASSERT_TRUE(late.wait_end().refused.has_value());
  EXPECT_EQ(late.get().refused->code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(host_->snapshot().draining);
}

TEST_F(HostTest, EndingItEndsItsRequestsItsReloadAndItsPauses) {
  open();
  Receiver running, waiting;
  std::promise<void> started;
  std::optional<Result<ReloadReport>> reloaded;
  bool paused = false;
  submit(running, request(12, 250), [&](const Received& r) {
    if (r.ids.size() == 1) started.set_value();
  });
  started.get_future().wait();
  host_->begin_push({}, {}, [](const Result<std::uint64_t>&) {},
                    [&](Result<ReloadReport> report) { reloaded = std::move(report); });
  settle();
  host_->pause(PauseMode::kWait, [&] { paused = true; });
  submit(waiting, request(12, 5));
  host_.reset();
  EXPECT_EQ(running.get().finish, FinishReason::kAbort);
  EXPECT_TRUE(waiting.get().finish || waiting.get().refused);
  ASSERT_TRUE(reloaded.has_value());
  EXPECT_FALSE(reloaded->ok());
  EXPECT_TRUE(paused);
}

TEST_F(HostTest, AModelThatIsNotThereIsAnError) {
  EngineOptions options;
  options.model_directory = kModelA + "-missing";
  EXPECT_FALSE(EngineHost::open(options).ok());
}

}  // namespace
}  // namespace holdfast::serve
