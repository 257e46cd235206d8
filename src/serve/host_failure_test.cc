// The engine thread when weights are poisoned, launches fail, or logits are no numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/host_fixture_test.h"

namespace holdfast::serve {
namespace {

using ::testing::HasSubstr;

TEST_F(HostTest, APoisonedEngineEndsItsRequestsRefusesNewOnesAndRecovers) {
  std::mutex mutex;
  std::vector<std::string> states;
  HostObserver observer;
  observer.on_state = [&](std::string_view state, const std::string&) {
    const std::lock_guard lock(mutex);
    states.emplace_back(state);
  };
  open_with_faults(observer);
  Receiver running;
  std::promise<void> started;
  submit(running, request(12, 250), [&](const Received& r) {
    if (r.ids.size() == 1) started.set_value();
  });
  started.get_future().wait();
  ASSERT_FALSE(reload(kModelB, {.commit = "stream", .inject = "source-dies"}).ok());
  const Received received = running.wait_end();
  EXPECT_EQ(received.events_after_the_last, 0);
  settle();
  const HostSnapshot poisoned = host_->snapshot();
  ASSERT_TRUE(poisoned.poisoned);
  EXPECT_NE(poisoned.failure, "");
  EXPECT_FALSE(poisoned.failed);
  Receiver refused;
  submit(refused, request(12, 3));
  ASSERT_TRUE(refused.wait_end().refused.has_value());
  EXPECT_EQ(refused.get().refused->code(), ErrorCode::kPoisoned);
  pause(PauseMode::kKeep);
  const Status resumed = resume();
  ASSERT_FALSE(resumed.ok());
  EXPECT_EQ(resumed.error().code(), ErrorCode::kPoisoned);
  ASSERT_TRUE(reload(kModelB).ok());
  EXPECT_TRUE(resume().ok());
  Receiver next;
  submit(next, request(12, 20));
  EXPECT_EQ(next.wait_end().ids, alone(kModelB, request(12, 20)).ids);
  settle();
  EXPECT_FALSE(host_->snapshot().poisoned);
  EXPECT_EQ(host_->snapshot().failure, "");
  const std::lock_guard lock(mutex);
  EXPECT_THAT(states, ::testing::ElementsAre("poisoned", "paused", "recovered", "resumed"));
}

// --- steps that fail

// What keeps every step's launch from working until the next reload begins.
const ReloadOptions kStepsFail = {.in_flight = InFlight::kRecompute, .inject = "steps-fail"};

TEST_F(HostTest, AStepThatFailsIsTriedAgainAndTheRequestGoesOnAsIfNothingHadBeen) {
  open_with_faults();
  for (int round = 0; round < 2; ++round) {  // what was tried before does not count
    ASSERT_TRUE(reload(kModelB, kStepsFail).ok());
    Receiver receiver;
    int boundaries = 0;
    // Runs once before each try: the device is whole again for the last one.
    std::function<void(Engine&)> each = [&](Engine& engine) {
      if (++boundaries <= kMaxStepRetries) return host_->post(each);
      EXPECT_TRUE(engine.begin_push({}, {}).ok());
    };
    host_->post([&](Engine&) {  // so that the request comes together with the first of them
      submit(receiver, request(12, 20));
      host_->post(each);
    });
    const Received received = receiver.wait_end();
    EXPECT_EQ(received.finish, FinishReason::kLength);
    EXPECT_EQ(received.ids, alone(kModelB, request(12, 20)).ids);
    EXPECT_EQ(boundaries, kMaxStepRetries + 1);
    EXPECT_FALSE(host_->snapshot().failed);
    host_->post([](Engine& engine) { EXPECT_TRUE(engine.abort_reload().ok()); });
  }
}

TEST_F(HostTest, AfterTheLastRetryTheHostHasFailedForGoodAndSaysWhy) {
  std::promise<std::string> failed;
  HostObserver observer;
  observer.on_state = [&](std::string_view state, const std::string& why) {
    if (state == "failed") failed.set_value(why);
  };
  open_with_faults(observer);
  Receiver running, waiting;
  std::promise<void> started;
  submit(running, request(12, 250), [&](const Received& r) {
    if (r.ids.size() == 1) started.set_value();
  });
  started.get_future().wait();
  ASSERT_TRUE(reload(kModelB, kStepsFail).ok());
  submit(waiting, request(13, 20));
  EXPECT_EQ(running.wait_end().finish, FinishReason::kAbort);
  const Received second = waiting.wait_end();
  EXPECT_TRUE(second.refused || second.finish == FinishReason::kAbort);
  EXPECT_EQ(running.get().events_after_the_last, 0);
  const std::string why = failed.get_future().get();
  EXPECT_THAT(why, HasSubstr("launch-fails"));
  settle();
  EXPECT_TRUE(host_->snapshot().failed);
  EXPECT_EQ(host_->snapshot().failure, why);
  Receiver late;
  submit(late, request(12, 3));
  ASSERT_TRUE(late.wait_end().refused.has_value());
  EXPECT_EQ(late.get().refused->code(), ErrorCode::kDevice);
  EXPECT_EQ(late.get().refused->message(), why);
  pause(PauseMode::kWait);  // answers: nothing runs any more
  EXPECT_EQ(resume().error().code(), ErrorCode::kDevice);
}

TEST_F(HostTest, WeightsWhoseLogitsAreNoNumbersEndTheirRequestsAndOtherWeightsHealThat) {
  std::mutex mutex;
  std::vector<std::string> states;
  HostObserver observer;
  observer.on_state = [&](std::string_view state, const std::string&) {
    const std::lock_guard lock(mutex);
    states.emplace_back(state);
  };
  open(small_engine(1), observer);
  ASSERT_TRUE(reload_what_overflows().ok());
  std::vector<Receiver> receivers(3 * kMaxStepRetries);  // one step each
  for (Receiver& receiver : receivers) submit(receiver, request(12, 20));
  for (Receiver& receiver : receivers) {
    EXPECT_EQ(receiver.wait_end().finish, FinishReason::kAbort);
    EXPECT_TRUE(receiver.get().ids.empty());
  }
  EXPECT_FALSE(host_->snapshot().failed);
  ASSERT_TRUE(reload(kModelB).ok());
  Receiver next;
  submit(next, request(12, 20));
  EXPECT_EQ(next.wait_end().ids, alone(kModelB, request(12, 20)).ids);
  const std::lock_guard lock(mutex);
  EXPECT_THAT(states, ::testing::ElementsAre("not finite"));
}

}  // namespace
}  // namespace holdfast::serve
