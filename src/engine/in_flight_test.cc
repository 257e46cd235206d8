// What a commit does to requests that run: ReloadOptions::in_flight, token by token.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

const std::vector<ReferencePrompt>& prompts() {
  static const auto prompts = read_reference_prompts("gptoss-tiny-A");
  return prompts;
}

// An engine of two sequences with A's weights, and what becomes of its requests.
class InFlightTest : public testing::Test {
 protected:
  static EngineOptions options(const std::string& directory) {
    EngineOptions options = test_options(directory);
    options.max_sequences = 2;
    return options;
  }

  RequestId submit(Request request) {
    const RequestId id = core_->submit(std::move(request)).value();
    transcripts_[id.value] = {};
    return id;
  }

  void step() {
    const auto events = core_->step();
    ASSERT_TRUE(events.ok()) << events.error().to_string();
    for (const Event& event : *events) {
      if (event.restarted) {
        EXPECT_FALSE(event.token || event.finish_reason);
        EXPECT_TRUE(event.prompt_logprobs.empty());
        ++restarts_[event.request.value];
        before_restart_[event.request.value] = transcripts_[event.request.value];
        transcripts_[event.request.value] = {};
      }
      transcripts_[event.request.value].add(event);
    }
  }

  void step_until_idle() {
    while (!core_->idle() && !HasFatalFailure()) step();
  }

  // Ready to commit B, with no step in between.
  void stage(InFlight policy, bool commit_when_ready = false) {
    ReloadOptions reload;
    reload.commit_when_ready = commit_when_ready;
    reload.in_flight = policy;
    ASSERT_TRUE(core_->begin_reload(model_b(), reload).ok());
    while (core_->reload_phase() == ReloadPhase::kStaging) std::this_thread::yield();
    ASSERT_EQ(core_->reload_phase(), ReloadPhase::kReady);
  }

  const Transcript& transcript(RequestId id) { return transcripts_[id.value]; }

  // What a cold engine of B says after a prompt and tokens so far.
  static Transcript cold_b(Request request, const std::vector<std::int32_t>& so_far = {}) {
    request.prompt_ids.insert(request.prompt_ids.end(), so_far.begin(), so_far.end());
    request.max_tokens -= static_cast<std::int64_t>(so_far.size());
    return run_together(*open_core(options(model_b())), {request}).front();
  }

  static void expect_tail(const Transcript& whole, std::size_t from, const Transcript& tail) {
    EXPECT_EQ(std::vector<std::int32_t>(whole.ids.begin() + static_cast<std::ptrdiff_t>(from),
                                        whole.ids.end()),
              tail.ids);
    EXPECT_EQ(std::vector<float>(whole.logprobs.begin() + static_cast<std::ptrdiff_t>(from),
                                 whole.logprobs.end()),
              tail.logprobs);
  }

  // Old weights up to `change`, new ones from there.
  static void expect_spans(const Transcript& transcript, std::size_t change) {
    for (std::size_t i = 0; i < transcript.epochs.size(); ++i) {
      EXPECT_EQ(transcript.epochs[i], i < change ? 1u : 2u) << "token " << i;
    }
  }

  std::unique_ptr<EngineCore> core_ = open_core(options(model_a()));
  std::map<std::uint64_t, Transcript> transcripts_, before_restart_;
  std::map<std::uint64_t, int> restarts_;
  const Request first_ = greedy_request(prompts()[1]);
  const Request second_ = greedy_request(prompts()[2]);
};

TEST_F(InFlightTest, RecomputeGoesOnAsAColdEngineWouldFromPromptAndTokens) {
  const RequestId first = submit(first_), second = submit(second_);
  while (transcript(second).ids.size() < 7) step();
  const auto so_far_first = transcript(first).ids, so_far_second = transcript(second).ids;
  stage(InFlight::kRecompute);
  ASSERT_TRUE(core_->commit_reload().ok());
  step_until_idle();
  EXPECT_EQ(transcript(first).ids.size(), 48u);
  expect_spans(transcript(first), so_far_first.size());
  expect_spans(transcript(second), so_far_second.size());
  expect_tail(transcript(first), so_far_first.size(), cold_b(first_, so_far_first));
  expect_tail(transcript(second), so_far_second.size(), cold_b(second_, so_far_second));
}

TEST_F(InFlightTest, RestartSaysWhatAColdEngineOfTheNewWeightsSays) {
  Request scored = first_;
  scored.prompt_logprobs = true;
  const RequestId first = submit(scored), second = submit(second_), waiting = submit(second_);
  while (transcript(second).ids.size() < 7) step();
  stage(InFlight::kRestart);
  ASSERT_TRUE(core_->commit_reload().ok());
  step_until_idle();
  EXPECT_EQ(restarts_[first.value], 1);
  EXPECT_EQ(restarts_[second.value], 1);
  EXPECT_EQ(restarts_[waiting.value], 0) << "nothing had been told of it";
  EXPECT_GE(before_restart_[second.value].ids.size(), 7u);
  const Transcript cold = cold_b(scored);
  EXPECT_TRUE(transcript(first).same_tokens(cold));
  EXPECT_EQ(transcript(first).prompt_logprobs, cold.prompt_logprobs);
  EXPECT_NE(before_restart_[first.value].prompt_logprobs, cold.prompt_logprobs);
  EXPECT_TRUE(transcript(second).same_tokens(cold_b(second_)));
  EXPECT_TRUE(transcript(waiting).same_tokens(cold_b(second_)));
  expect_spans(transcript(first), 0);
}

TEST_F(InFlightTest, AbortEndsWhatRunsWithItsTokensAndStartsWhatWaits) {
  const RequestId first = submit(first_), second = submit(second_), waiting = submit(first_);
  while (transcript(second).ids.size() < 7) step();
  const auto so_far = transcript(first).ids;
  stage(InFlight::kAbort);
  ASSERT_TRUE(core_->commit_reload().ok());
  step_until_idle();
  EXPECT_EQ(transcript(first).reason, FinishReason::kAbort);
  EXPECT_EQ(transcript(second).reason, FinishReason::kAbort);
  EXPECT_EQ(transcript(first).ids, so_far);
  expect_spans(transcript(first), so_far.size());
  EXPECT_TRUE(transcript(waiting).same_tokens(cold_b(first_)));
}

TEST_F(InFlightTest, DrainCommitsOnceWhatRunsHasEndedAndStartsNothingMeanwhile) {
  const auto undisturbed = run_one_by_one(*core_, {first_, second_});
  core_->reset_prefix_cache();
  const RequestId first = submit(first_);
  step();
  const RequestId second = submit(second_);
  step();
  const RequestId waiting = submit(first_);
  stage(InFlight::kDrain, true);
  step_until_idle();
  EXPECT_TRUE(transcript(first).same_tokens(undisturbed[0]));
  EXPECT_TRUE(transcript(second).same_tokens(undisturbed[1]));
  expect_spans(transcript(first), 48);
  expect_spans(transcript(second), 48);
  expect_spans(transcript(waiting), 0);
  EXPECT_TRUE(transcript(waiting).same_tokens(cold_b(first_)));
  EXPECT_TRUE(core_->finish_reload().ok());
}

TEST_F(InFlightTest, DrainRefusesToCommitOnRequestWhileSomethingRunsAndHoldsAdmissionFromThen) {
  submit(first_);
  step();
  stage(InFlight::kDrain);
  for (const Status& refused : {core_->commit_reload(), Status(core_->finish_reload().error())}) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_NE(refused.error().message().find("1 requests run"), std::string::npos);
  }
  EXPECT_EQ(core_->reload_phase(), ReloadPhase::kReady);
  EXPECT_EQ(core_->epoch(), 1u);
  const RequestId waiting = submit(second_);
  while (core_->stats().running > 0) step();
  EXPECT_TRUE(transcript(waiting).ids.empty());
  ASSERT_TRUE(core_->commit_reload().ok());
  step_until_idle();
  EXPECT_TRUE(transcript(waiting).same_tokens(cold_b(second_)));
}

TEST_F(InFlightTest, AReloadThatIsAbortedWhileItDrainsLetsRequestsStartAgain) {
  submit(first_);
  step();
  stage(InFlight::kDrain);
  ASSERT_FALSE(core_->commit_reload().ok());
  const RequestId waiting = submit(second_);
  step();
  EXPECT_EQ(core_->stats().running, 1);
  ASSERT_TRUE(core_->abort_reload().ok());
  step();
  EXPECT_EQ(core_->stats().running, 2);
  step_until_idle();
  expect_spans(transcript(waiting), 48);
}

// I7: what a request keeps over the commit is its own, and nobody else's.
TEST_F(InFlightTest, KeysAndValuesThatContinueNeverServeAnotherRequest) {
  const RequestId first = submit(first_);
  while (transcript(first).ids.size() < 20) step();
  const std::size_t change = transcript(first).ids.size();
  stage(InFlight::kContinue);
  ASSERT_TRUE(core_->commit_reload().ok());
  step_until_idle();
  expect_spans(transcript(first), change);
  const EngineStats before = core_->stats();
  EXPECT_EQ(before.kv_pages_cached, 0);
  // The same prompt, and the prompt with all that it came to.
  Request longer = first_;
  longer.prompt_ids.insert(longer.prompt_ids.end(), transcript(first).ids.begin(),
                           transcript(first).ids.end());
  longer.max_tokens = 8;
  for (const Request& request : {first_, longer}) {
    const RequestId id = submit(request);
    while (transcript(id).ids.empty()) step();
    EXPECT_EQ(core_->stats().prefix_hits, before.prefix_hits);
    step_until_idle();
    EXPECT_TRUE(transcript(id).same_tokens(cold_b(request)));
    core_->reset_prefix_cache();
  }
}

TEST_F(InFlightTest, EveryPolicyHasItsName) {
  EXPECT_STREQ(in_flight_name(InFlight::kContinue), "continue");
  EXPECT_STREQ(in_flight_name(InFlight::kRecompute), "recompute");
  EXPECT_STREQ(in_flight_name(InFlight::kRestart), "restart");
  EXPECT_STREQ(in_flight_name(InFlight::kAbort), "abort");
  EXPECT_STREQ(in_flight_name(InFlight::kDrain), "drain");
}

}  // namespace
}  // namespace holdfast::engine
