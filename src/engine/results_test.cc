// What events say of the logits and expert ids of steps, over a queue whose steps are made up here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/request_queue.h"

namespace holdfast::engine {
namespace {

constexpr std::int64_t kVocab = 6, kLayers = 2, kExperts = 3;
constexpr std::int32_t kEnd = 5;

class ResultsOfSteps : public testing::Test {
 protected:
  // Pages: room for few, so that requests push each other out.
  static RequestQueue make_queue(std::int64_t pages) {
    Settings settings;
    settings.max_context = 96;
    settings.max_sequences = 4;
    settings.prefill_chunk = 5;
    settings.max_rows = 9;
    settings.page_count = pages;
    settings.max_waiting = 64;
    return RequestQueue(settings, {.size = kVocab, .eos_token_ids = {kEnd}});
  }

  // Of token `token` at `position`.
  static std::vector<float> logits_of(std::int32_t token, std::int32_t position) {
    std::vector<float> logits;
    for (std::int32_t id = 0; id < kVocab; ++id) {
      logits.push_back(static_cast<float>((id * 7 + token * 3 + position * 5) % 11) / 4);
    }
    return logits;
  }
  static std::vector<std::int16_t> experts_of(std::int32_t token, std::int32_t position) {
    std::vector<std::int16_t> experts;
    for (std::int32_t i = 0; i < kLayers * kExperts; ++i) {
      experts.push_back(static_cast<std::int16_t>(i + 10 * position + 1000 * token));
    }
    return experts;
  }

  struct Known {
    std::vector<Token> tokens;
    std::vector<std::vector<TokenLogprob>> top;
    std::vector<std::int16_t> experts;
    std::vector<float> prompt_logprobs;
    std::shared_ptr<const PromptDetail> prompt;
    std::optional<FinishReason> reason;
  };

  void step(RequestQueue& queue) {
    ASSERT_TRUE(queue.plan(1, [](std::int32_t, std::span<const std::int32_t>) -> Status {
                       return {};
                     }).ok());
    const std::vector<StepRow> rows = queue.batch().rows;
    std::vector<StepRow> wanted;
    for (const StepRow& row : rows) {
      if (row.wants_logits) wanted.push_back(row);
    }
    std::vector<float> logits;
    const auto read_logits = [&](std::int64_t index) -> Result<std::span<const float>> {
      const StepRow& row = wanted.at(static_cast<std::size_t>(index));
      logits = logits_of(row.token, row.position);
      return std::span<const float>(logits);
    };
    const auto read_experts = [&](Results::RowRange range,
                                  std::vector<std::int16_t>& into) -> Status {
      expert_rows_read_ += range.count;
      for (std::int64_t r = range.begin; r < range.begin + range.count; ++r) {
        const StepRow& row = rows.at(static_cast<std::size_t>(r));
        const auto experts = experts_of(row.token, row.position);
        into.insert(into.end(), experts.begin(), experts.end());
      }
      return experts_error_ ? Status(*experts_error_) : Status();
    };
    const Status taken = queue.take_results(
        {.logits = read_logits, .experts = read_experts, .choice = {}}, 1);
    ASSERT_TRUE(taken.ok() == !experts_error_.has_value());
    for (Event& event : queue.take_events()) {
      Known& known = known_[event.request.value];
      EXPECT_FALSE(known.reason.has_value()) << "an event after the last";
      if (event.token) {
        known.tokens.push_back(*event.token);
        known.top.push_back(event.top_logprobs);
      }
      known.experts.insert(known.experts.end(), event.routed_experts.begin(),
                           event.routed_experts.end());
      if (event.prompt) known.prompt = event.prompt;
      if (!event.prompt_logprobs.empty()) known.prompt_logprobs = event.prompt_logprobs;
      known.reason = event.finish_reason;
    }
  }

  static std::vector<std::int32_t> prompt(std::int64_t tokens) {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<std::int32_t>(i * i % 5));
    return ids;
  }
  // Every position's, from the tokens alone.
  static std::vector<std::int16_t> expected_experts(const std::vector<std::int32_t>& ids,
                                                    std::size_t begin) {
    std::vector<std::int16_t> all;
    for (std::size_t i = begin; i < ids.size(); ++i) {
      const auto experts = experts_of(ids[i], static_cast<std::int32_t>(i));
      all.insert(all.end(), experts.begin(), experts.end());
    }
    return all;
  }

  std::map<std::uint64_t, Known> known_;
  std::int64_t expert_rows_read_ = 0;
  std::optional<Error> experts_error_;
};

TEST_F(ResultsOfSteps, RoutedExpertsComeOncePerPositionThroughChunksAndPreemption) {
  RequestQueue queue = make_queue(6);
  constexpr std::int64_t kPrompt = 23, kTokens = 30;
  for (int i = 0; i < 3; ++i) {
    Request request{.prompt_ids = prompt(kPrompt)};
    request.max_tokens = kTokens;
    request.ignore_eos = true;
    request.routed_experts = i != 1;
    request.cache_salt = std::to_string(i);  // so that none uses the pages of another
    ASSERT_TRUE(queue.submit(std::move(request)).ok());
  }
  while (!queue.idle()) step(queue);
  EXPECT_GT(queue.stats().preemptions, 0u) << "the test is to see requests computed again";
  for (const std::uint64_t id : {1u, 3u}) {
    const Known& known = known_.at(id);
    ASSERT_EQ(std::ssize(known.tokens), kTokens);
    std::vector<std::int32_t> ids = prompt(kPrompt);
    for (const Token& token : known.tokens) ids.push_back(token.id);
    ids.pop_back();  // the last token has no position
    ASSERT_NE(known.prompt, nullptr);
    std::vector<std::int32_t> before(ids.begin(), ids.begin() + kPrompt - 1);
    EXPECT_EQ(known.prompt->routed_experts, expected_experts(before, 0));
    EXPECT_EQ(known.experts, expected_experts(ids, kPrompt - 1));
  }
  EXPECT_TRUE(known_.at(2).experts.empty());
  EXPECT_EQ(expert_rows_read_, 2 * (kPrompt + kTokens - 1)) << "what nobody wants is not read";
}

TEST_F(ResultsOfSteps, ExpertsThatCannotBeReadEndTheRequestsThatWantThem) {
  RequestQueue queue = make_queue(12);
  for (const bool wants : {true, false}) {
    Request request{.prompt_ids = prompt(3)};
    request.max_tokens = 1;
    request.routed_experts = wants;
    ASSERT_TRUE(queue.submit(std::move(request)).ok());
  }
  experts_error_ = Error(ErrorCode::kDevice, "the device is gone");
  step(queue);
  experts_error_.reset();
  while (!queue.idle()) step(queue);
  EXPECT_EQ(known_.at(1).reason, FinishReason::kAbort);
  EXPECT_TRUE(known_.at(1).tokens.empty());
  EXPECT_EQ(known_.at(2).reason, FinishReason::kLength);
  EXPECT_EQ(known_.at(2).tokens.size(), 1u);
}

TEST_F(ResultsOfSteps, PromptTokensComeWithLogProbabilityRankAndTheLikeliest) {
  RequestQueue queue = make_queue(12);
  Request request{.prompt_ids = prompt(12)};
  request.max_tokens = 0;
  request.prompt_top_logprobs = 2;
  request.sampling.allowed_token_ids = {0};
  request.logprobs_mode = LogprobsMode::kProcessed;
  ASSERT_TRUE(queue.submit(request).ok());
  while (!queue.idle()) step(queue);
  const Known& known = known_.at(1);
  ASSERT_NE(known.prompt, nullptr);
  ASSERT_EQ(known.prompt->ranks.size(), 11u);
  ASSERT_EQ(known.prompt->top.size(), 11u);
  ASSERT_EQ(known.prompt_logprobs.size(), 11u);
  const auto ids = prompt(12);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    const auto logits = logits_of(ids[i], static_cast<std::int32_t>(i));
    double total = 0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit));
    const auto next = static_cast<std::size_t>(ids[i + 1]);
    EXPECT_NEAR(known.prompt_logprobs[i],
                static_cast<double>(logits[next]) - std::log(total), 1e-6);
    int rank = 1;
    for (std::size_t id = 0; id < logits.size(); ++id) {
      rank += logits[id] > logits[next] || (logits[id] == logits[next] && id < next);
    }
    EXPECT_EQ(known.prompt->ranks[i], rank);
    const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_EQ(known.prompt->top[i].size(), 2u);
    EXPECT_EQ(known.prompt->top[i][0].id, best);
    EXPECT_GE(known.prompt->top[i][0].logprob, known.prompt->top[i][1].logprob);
  }
}

TEST_F(ResultsOfSteps, WithoutBeingAskedForThereIsNoDetailAndNoRank) {
  RequestQueue queue = make_queue(12);
  Request request{.prompt_ids = prompt(4)};
  request.prompt_logprobs = true;
  request.max_tokens = 2;
  request.ignore_eos = true;
  ASSERT_TRUE(queue.submit(request).ok());
  while (!queue.idle()) step(queue);
  const Known& known = known_.at(1);
  EXPECT_EQ(known.prompt_logprobs.size(), 3u);
  EXPECT_EQ(known.prompt, nullptr);
  EXPECT_EQ(known.tokens.at(0).rank, 0);
  EXPECT_TRUE(known.top.at(0).empty());
  EXPECT_EQ(expert_rows_read_, 0);
}

TEST_F(ResultsOfSteps, CachedPromptPositionsAreCountedWithTheFirstEvent) {
  RequestQueue queue = make_queue(12);
  for (int i = 0; i < 2; ++i) {
    Request request{.prompt_ids = prompt(40)};
    request.max_tokens = 1;
    ASSERT_TRUE(queue.submit(request).ok());
    while (!queue.idle()) step(queue);
  }
  EXPECT_EQ(known_.at(1).prompt, nullptr);
  ASSERT_NE(known_.at(2).prompt, nullptr);
  EXPECT_EQ(known_.at(2).prompt->cached_tokens, 2 * kPageSize);
}

TEST_F(ResultsOfSteps, NoTokenThatEndsARequestComesBeforeItsMinTokens) {
  // Ends and stops are liked best, so that they come as soon as they may.
  const auto run = [this](std::int64_t min_tokens, bool ignore_eos) {
    RequestQueue queue = make_queue(12);
    Request request{.prompt_ids = prompt(4)};
    request.max_tokens = 20;
    request.min_tokens = min_tokens;
    request.ignore_eos = ignore_eos;
    request.stop_token_ids = {3};
    request.sampling.logit_bias = {{kEnd, 50.0f}, {3, 40.0f}};
    known_.clear();
    EXPECT_TRUE(queue.submit(request).ok());
    while (!queue.idle()) step(queue);
    return known_.at(1);
  };
  for (const std::int64_t min_tokens : {0, 1, 6}) {
    const Known known = run(min_tokens, false);
    ASSERT_EQ(std::ssize(known.tokens), min_tokens + 1);
    EXPECT_EQ(known.reason, FinishReason::kStop);
    EXPECT_EQ(known.tokens.back().id, kEnd);
    for (std::int64_t i = 0; i < min_tokens; ++i) {
      const std::int32_t id = known.tokens[static_cast<std::size_t>(i)].id;
      EXPECT_TRUE(id != kEnd && id != 3) << i;
    }
  }
  // An end token that ends nothing is a token as others are.
  const Known ignoring = run(6, true);
  EXPECT_EQ(std::ssize(ignoring.tokens), 20);
  EXPECT_EQ(ignoring.tokens.front().id, kEnd);
}

TEST_F(ResultsOfSteps, PenaltiesSeePromptAndOutput) {
  RequestQueue queue = make_queue(12);
  Request request{.prompt_ids = {0, 1}};
  request.max_tokens = 4;
  request.ignore_eos = true;
  // So large a bias for three tokens that the penalty decides between them.
  request.sampling.logit_bias = {{0, 90.0f}, {1, 90.0f}, {2, 90.0f}};
  request.sampling.repetition_penalty = 10.0f;
  ASSERT_TRUE(queue.submit(request).ok());
  while (!queue.idle()) step(queue);
  const Known& known = known_.at(1);
  EXPECT_EQ(known.tokens.at(0).id, 2) << "the only one that was not in the prompt";
}

}  // namespace
}  // namespace holdfast::engine
