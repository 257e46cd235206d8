// Requests: what they come to, their limits, cancelling, sampling through the whole engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "engine/test_support.h"

namespace holdfast::engine {
namespace {

class Requests : public testing::Test {
 protected:
  static void SetUpTestSuite() { core_ = open_core(test_options(model_a())).release(); }
  static void TearDownTestSuite() {
    delete core_;
    core_ = nullptr;
  }
  static EngineCore* core_;
  std::vector<ReferencePrompt> prompts_ = read_reference_prompts("gptoss-tiny-A");
};
EngineCore* Requests::core_ = nullptr;

TEST_F(Requests, SampledTokensDependOnTheSeedAndNotOnTheBatch) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    Request request = greedy_request(prompts_[i]);
    request.sampling = {.temperature = 0.9f, .top_p = 0.95f, .top_k = 40, .seed = 100 + i};
    requests.push_back(std::move(request));
  }
  const auto together = run_together(*core_, requests);
  const auto alone = run_one_by_one(*core_, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(together[i].same_tokens(alone[i])) << i;
    EXPECT_NE(together[i].ids, prompts_[i].greedy_ids) << i;
  }
  for (Request& request : requests) request.sampling.seed += 1000;
  const auto reseeded = run_together(*core_, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_NE(reseeded[i].ids, together[i].ids);
}

TEST_F(Requests, EveryFieldOfSamplingGivesTheSameBitsAloneAndInABatch) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    Request request = greedy_request(prompts_[i]);
    request.ignore_eos = false;
    request.min_tokens = request.max_tokens / 2;
    request.sampling = {.temperature = i % 3 == 0 ? 0.0f : 1.1f, .top_p = 0.9f, .min_p = 0.001f,
                        .seed = 7 + i, .repetition_penalty = 1.3f, .frequency_penalty = 0.5f,
                        .presence_penalty = -0.25f, .logit_bias = {{5, 3.0f}, {9, -3.0f}}};
    request.logprobs_mode = i % 2 == 0 ? LogprobsMode::kProcessed : LogprobsMode::kRaw;
    request.top_logprobs = 3;
    request.routed_experts = i % 4 == 0;
    requests.push_back(std::move(request));
  }
  const auto together = run_together(*core_, requests);
  const auto alone = run_one_by_one(*core_, requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(together[i].same_tokens(alone[i])) << i;
    EXPECT_GE(std::ssize(together[i].ids), requests[i].min_tokens);
    EXPECT_NE(together[i].ids, prompts_[i].greedy_ids) << i;
  }
}

TEST_F(Requests, TopKOfOneIsTheGreedyContinuation) {
  Request request = greedy_request(prompts_[3]);
  request.sampling = {.temperature = 2.0f, .top_k = 1, .seed = 9};
  EXPECT_EQ(run_together(*core_, {request}).front().ids, prompts_[3].greedy_ids);
}

TEST_F(Requests, AStopTokenEndsTheRequestAndIsItsLastToken) {
  Request request = greedy_request(prompts_[2]);
  const auto& greedy = prompts_[2].greedy_ids;
  const std::int32_t stop = greedy[5];
  const auto first = std::find(greedy.begin(), greedy.end(), stop) - greedy.begin();
  request.stop_token_ids = {stop};
  const Transcript transcript = run_together(*core_, {request}).front();
  EXPECT_EQ(transcript.reason, FinishReason::kStop);
  EXPECT_EQ(transcript.ids,
            std::vector<std::int32_t>(greedy.begin(), greedy.begin() + first + 1));
}

TEST_F(Requests, TheModelsEndTokensStopUnlessIgnored) {
  const std::vector<std::int32_t> eos = core_->runtime().config().eos_token_ids;
  ASSERT_FALSE(eos.empty());
  // A continuation of the harmony prompt that is drawn at random meets an end token or its length.
  Request request;
  request.prompt_ids = prompts_[2].ids;
  request.max_tokens = 200;
  request.sampling = {.temperature = 1.5f, .seed = 3};
  request.ignore_eos = true;
  const Transcript whole = run_together(*core_, {request}).front();
  EXPECT_EQ(whole.reason, FinishReason::kLength);
  EXPECT_EQ(whole.ids.size(), 200u);
  request.ignore_eos = false;
  const auto end = std::find_first_of(whole.ids.begin(), whole.ids.end(), eos.begin(), eos.end());
  const Transcript stopped = run_together(*core_, {request}).front();
  if (end == whole.ids.end()) {
    EXPECT_EQ(stopped.ids, whole.ids);
  } else {
    EXPECT_EQ(stopped.reason, FinishReason::kStop);
    EXPECT_EQ(stopped.ids, std::vector<std::int32_t>(whole.ids.begin(), end + 1));
  }
}

TEST_F(Requests, GenerationEndsWhenTheContextIsFull) {
  Request request;
  request.prompt_ids = prompts_[7].ids;  // 200 tokens of 256
  request.max_tokens = std::numeric_limits<std::int64_t>::max();
  request.ignore_eos = true;
  const Transcript transcript = run_together(*core_, {request}).front();
  EXPECT_EQ(transcript.reason, FinishReason::kLength);
  EXPECT_EQ(transcript.ids.size(), 256u - 200u + 1u) << "the last token needs no place";
}

TEST_F(Requests, MoreRequestsThanSequencesAreServedInTurns) {
  std::vector<Request> requests;
  for (int i = 0; i < 25; ++i) {
    requests.push_back(greedy_request(prompts_[static_cast<std::size_t>(i) % prompts_.size()]));
    requests.back().max_tokens = 5;
  }
  const auto transcripts = run_together(*core_, std::move(requests));
  for (std::size_t i = 0; i < transcripts.size(); ++i) {
    const auto& greedy = prompts_[i % prompts_.size()].greedy_ids;
    EXPECT_EQ(transcripts[i].ids, std::vector<std::int32_t>(greedy.begin(), greedy.begin() + 5));
  }
}

TEST_F(Requests, ACancelledRequestEndsWithAbortAndDisturbsNoOther) {
  const auto kept = core_->submit(greedy_request(prompts_[1])).value();
  const auto dropped = core_->submit(greedy_request(prompts_[2])).value();
  Transcript kept_transcript, dropped_transcript;
  int steps = 0;
  while (!core_->idle()) {
    const auto events = core_->step();
    ASSERT_TRUE(events.ok());
    for (const Event& event : *events) {
      (event.request == kept ? kept_transcript : dropped_transcript).add(event);
    }
    if (++steps == 5) {
      ASSERT_TRUE(core_->cancel(dropped).ok());
    }
  }
  EXPECT_EQ(kept_transcript.ids, prompts_[1].greedy_ids);
  EXPECT_EQ(dropped_transcript.reason, FinishReason::kAbort);
  EXPECT_GT(dropped_transcript.ids.size(), 0u);
  EXPECT_LT(dropped_transcript.ids.size(), 6u);
  EXPECT_EQ(core_->cancel(dropped).error().code(), ErrorCode::kNotFound);
}

TEST_F(Requests, AWaitingRequestCanBeCancelled) {
  const auto id = core_->submit(greedy_request(prompts_[1])).value();
  ASSERT_TRUE(core_->cancel(id).ok());
  EXPECT_FALSE(core_->idle()) << "its event is still to be taken";
  const auto events = core_->step();
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ(events->front().finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(core_->idle());
}

TEST_F(Requests, PromptLogProbabilitiesComeOnceWithTheFirstEvent) {
  Request request = greedy_request(prompts_[5]);
  request.max_tokens = 3;
  request.prompt_logprobs = true;
  const auto id = core_->submit(request).value();
  std::vector<std::size_t> counts;
  while (!core_->idle()) {
    const auto events = core_->step();
    for (const Event& event : *events) {
      EXPECT_EQ(event.request, id);
      counts.push_back(event.prompt_logprobs.size());
    }
  }
  EXPECT_EQ(counts, (std::vector<std::size_t>{prompts_[5].ids.size() - 1, 0, 0}));
}

TEST_F(Requests, AFieldOutOfRangeIsNamed) {
  const auto spoiled = [this](const std::function<void(Request&)>& spoil) {
    Request request = greedy_request(prompts_[0]);
    spoil(request);
    const auto id = core_->submit(std::move(request));
    EXPECT_FALSE(id.ok());
    EXPECT_EQ(id.error().code(), ErrorCode::kInvalidArgument);
    return id.error().message();
  };
  EXPECT_NE(spoiled([](Request& r) { r.prompt_ids.clear(); }).find("0 tokens"), std::string::npos);
  EXPECT_NE(spoiled([](Request& r) { r.prompt_ids.assign(257, 1); }).find("257 tokens"),
            std::string::npos);
  EXPECT_NE(spoiled([](Request& r) { r.prompt_ids = {1, 1024}; }).find("prompt_ids[1] is 1024"),
            std::string::npos);
  EXPECT_NE(spoiled([](Request& r) { r.prompt_ids = {-1}; }).find("prompt_ids[0] is -1"),
            std::string::npos);
  EXPECT_NE(spoiled([](Request& r) { r.max_tokens = -1; }).find("max_tokens is -1"),
            std::string::npos);
  EXPECT_NE(spoiled([](Request& r) { r.stop_token_ids = {1 << 30}; }).find("stop_token_ids[0]"),
            std::string::npos);
  EXPECT_NE(spoiled([](Request& r) { r.stop_token_ids.assign(1000, 1); }).find("1000 ids"),
            std::string::npos);
  EXPECT_NE(spoiled([](Request& r) { r.sampling.top_p = 7; }).find("top_p is 7"),
            std::string::npos);
  EXPECT_TRUE(core_->idle());
}

TEST_F(Requests, TheQueueHasAnEnd) {
  Request request = greedy_request(prompts_[0]);
  std::vector<RequestId> ids;
  const auto most = static_cast<std::size_t>(EngineOptions().max_waiting);
  for (std::size_t i = 0; i < most; ++i) ids.push_back(core_->submit(request).value());
  const auto one_more = core_->submit(request);
  ASSERT_FALSE(one_more.ok());
  EXPECT_EQ(one_more.error().code(), ErrorCode::kResourceExhausted);
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) ASSERT_TRUE(core_->cancel(*id).ok());
  EXPECT_EQ(core_->step()->size(), most);
  EXPECT_TRUE(core_->idle());
}

TEST_F(Requests, AllocationPressureChangesNoTokenAndLeavesNoMemoryBehind) {
  const auto before = run_together(*core_, greedy_requests(prompts_));
  const std::size_t live = core_->runtime().device().usage().live_bytes;
  ASSERT_TRUE(core_->allocation_pressure(64, 1 << 16).ok());
  EXPECT_EQ(core_->runtime().device().usage().live_bytes, live);
  const auto after = run_together(*core_, greedy_requests(prompts_));
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].same_tokens(after[i]));
  EXPECT_FALSE(core_->allocation_pressure(0, 1).ok());
  EXPECT_FALSE(core_->allocation_pressure(1, -1).ok());
}

}  // namespace
}  // namespace holdfast::engine
