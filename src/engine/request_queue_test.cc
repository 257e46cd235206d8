// The queue alone, over logits that the test makes up: what a whole engine can't be made to show.
#include "engine/request_queue.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

namespace holdfast::engine {
namespace {

constexpr std::int64_t kVocab = 4;

Settings small_settings() {
  Settings settings;
  settings.max_context = 64;
  settings.max_sequences = 2;
  settings.prefill_chunk = 8;
  settings.max_rows = 8;
  settings.page_count = 8;
  settings.max_waiting = 64;
  return settings;
}

class Queue : public testing::Test {
 protected:
  struct Change {
    std::int64_t page_count = 8;
    std::int64_t max_waiting = 64;
  };
  static RequestQueue make_queue(const Change& change) {
    Settings settings = small_settings();
    settings.page_count = change.page_count;
    settings.max_waiting = change.max_waiting;
    return RequestQueue(settings, {.size = kVocab, .eos_token_ids = {3}});
  }

  RequestId submit(std::int64_t prompt_tokens, std::int64_t max_tokens,
                   const std::string& salt = "") {
    Request request;
    request.cache_salt = salt;
    request.prompt_ids.assign(static_cast<std::size_t>(prompt_tokens), 1);
    request.max_tokens = max_tokens;
    return queue_.submit(std::move(request)).value();
  }

  Status plan(std::uint64_t epoch) {
    HF_TRY(queue_.plan(
        epoch, [this](std::int32_t row, std::span<const std::int32_t> pages) -> Status {
          tables_[row] = std::vector<std::int32_t>(pages.begin(), pages.end());
          return table_error_ ? Status(*table_error_) : Status();
        }));
    rows_ = queue_.batch().rows;
    return {};
  }

  // One step at `epoch`; every wanted row gets logits that choose token 2, except where spoiled.
  Status step(std::uint64_t epoch, std::map<std::int64_t, float> spoiled = {}) {
    HF_TRY(plan(epoch));
    return queue_.take_results(
        {.logits = [&](std::int64_t index) -> Result<std::span<const float>> {
           logits_.assign(kVocab, 0.0f);
           logits_[2] = spoiled.contains(index) ? spoiled.at(index) : 5.0f;
           return std::span<const float>(logits_);
         },
         .experts = {},
         .choice = {}},
        epoch);
  }

  RequestQueue queue_{small_settings(), {.size = kVocab, .eos_token_ids = {3}}};
  std::vector<StepRow> rows_;
  std::vector<float> logits_;
  std::map<std::int32_t, std::vector<std::int32_t>> tables_;
  std::optional<Error> table_error_;
};

TEST_F(Queue, ARequestWhoseLogitsAreNotFiniteEndsAndTheOthersGoOn) {
  const RequestId bad = submit(2, 3);
  const RequestId good = submit(3, 3);
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(queue_.take_events().size(), 2u);
  const Status broken = step(1, {{0, std::numeric_limits<float>::quiet_NaN()}});
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(broken.error().message().find("request 1"), std::string::npos);
  auto events = queue_.take_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].request, bad);
  EXPECT_EQ(events[0].finish_reason, FinishReason::kAbort);
  EXPECT_FALSE(events[0].token.has_value());
  EXPECT_EQ(events[1].request, good);
  EXPECT_TRUE(events[1].token.has_value());
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(queue_.take_events().front().finish_reason, FinishReason::kLength);
  EXPECT_TRUE(queue_.idle());
}

TEST_F(Queue, ARollBackEndsWhatALaterEpochComputedAndNothingElse) {
  const RequestId touched = submit(2, 9);
  ASSERT_TRUE(step(2).ok());
  EXPECT_EQ(queue_.take_events().size(), 1u);
  const RequestId untouched = submit(2, 1);
  queue_.abort_computed_after(1);
  const auto events = queue_.take_events();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].request, touched);
  EXPECT_EQ(events[0].finish_reason, FinishReason::kAbort);
  ASSERT_TRUE(step(1).ok());
  const auto rest = queue_.take_events();
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].request, untouched);
  EXPECT_EQ(rest[0].token->epoch, 1u);
}

TEST_F(Queue, PlanningTwiceGivesTheSameRows) {
  submit(20, 2);
  ASSERT_TRUE(step(1).ok());
  ASSERT_TRUE(plan(1).ok());
  const auto first = rows_;
  ASSERT_TRUE(plan(1).ok());
  const auto second = rows_;
  ASSERT_EQ(first.size(), 8u);
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].position, second[i].position);
    EXPECT_EQ(first[i].position, 8 + static_cast<std::int32_t>(i));
    EXPECT_EQ(first[i].kv_slot, second[i].kv_slot);
    EXPECT_FALSE(first[i].wants_logits);
  }
}

TEST_F(Queue, ATableThatCannotBeWrittenIsWrittenWithTheNextStep) {
  submit(2, 1);
  table_error_ = Error(ErrorCode::kDevice, "the device is busy");
  EXPECT_FALSE(step(1).ok());
  table_error_.reset();
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(queue_.take_events().front().finish_reason, FinishReason::kLength);
}

TEST_F(Queue, PagesAreTakenAsTheyAreNeeded) {
  submit(20, 13);  // 32 positions: the last token needs none
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(tables_.at(0).size(), 1u) << "a chunk of 8";
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(tables_.at(0).size(), 2u);
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    queue_.take_events();
  }
  EXPECT_EQ(tables_.at(0).size(), 2u);
  EXPECT_EQ(queue_.stats().kv_pages_used, 0);
}

TEST_F(Queue, ADrawDependsOnTheOutputIndexAndNotOnTheLengthOfThePrompt) {
  std::map<std::uint64_t, std::vector<std::int32_t>> drawn;
  for (const std::size_t prompt_tokens : {2, 5}) {
    Request request;
    request.prompt_ids.assign(prompt_tokens, 1);
    request.max_tokens = 30;
    request.ignore_eos = true;
    request.sampling = {.temperature = 100.0f, .seed = 11};
    ASSERT_TRUE(queue_.submit(std::move(request)).ok());
  }
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    for (const Event& event : queue_.take_events()) {
      drawn[event.request.value].push_back(event.token->id);
    }
  }
  EXPECT_EQ(drawn[1].size(), 30u);
  EXPECT_EQ(drawn[1], drawn[2]);
}

TEST_F(Queue, AStopTokenOfTheRequestEndsIt) {
  Request request;
  request.prompt_ids = {0};
  request.max_tokens = 2;
  request.sampling = {.temperature = 1e-6f, .seed = 1};
  request.stop_token_ids = {2};
  ASSERT_TRUE(queue_.submit(request).ok());
  ASSERT_TRUE(step(1).ok());
  const auto events = queue_.take_events();
  EXPECT_EQ(events.front().finish_reason, FinishReason::kStop);
  EXPECT_EQ(events.front().token->id, 2);
}

// ------------------------------------------------------------------------------ who goes first

TEST_F(Queue, TheLowestPriorityGoesFirstAndEqualsInTheOrderOfSubmission) {
  const auto with_priority = [this](std::int64_t priority) {
    Request request;
    request.prompt_ids = {1};
    request.max_tokens = 1;
    request.priority = priority;
    return queue_.submit(std::move(request)).value();
  };
  const RequestId late = with_priority(7), first_of_two = with_priority(2),
                  second_of_two = with_priority(2), first = with_priority(-1);
  std::vector<RequestId> ended;
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    for (const Event& event : queue_.take_events()) ended.push_back(event.request);
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{first, first_of_two, second_of_two, late}));
}

// Two that would each fill the cache: they can't run together, and neither may wait for ever.
TEST_F(Queue, TwoRequestsThatNeedAllPagesDoNotPreemptEachOtherForEver) {
  queue_ = make_queue({.page_count = 4});
  const RequestId first = submit(4, 61), second = submit(4, 61);
  std::map<std::uint64_t, std::int64_t> tokens;
  std::vector<RequestId> ended;
  int steps = 0;
  while (!queue_.idle()) {
    ASSERT_LT(++steps, 300);
    ASSERT_TRUE(step(1).ok());
    for (const Event& event : queue_.take_events()) {
      tokens[event.request.value] += event.token ? 1 : 0;
      if (event.finish_reason) ended.push_back(event.request);
    }
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{first, second}));
  EXPECT_EQ(tokens[first.value], 61);
  EXPECT_EQ(tokens[second.value], 61) << "none told twice, none lost";
  EXPECT_EQ(queue_.stats().preemptions, 1u);
}

TEST_F(Queue, ARequestThatDoesNotFitHoldsBackThoseBehindIt) {
  queue_ = make_queue({.page_count = 4});
  const RequestId running = submit(40, 3);  // three pages
  ASSERT_TRUE(step(1).ok());
  const RequestId large = submit(33, 1, "shares nothing"), small = submit(1, 1);
  std::vector<RequestId> ended;
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    for (const Event& event : queue_.take_events()) {
      if (event.finish_reason) ended.push_back(event.request);
    }
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{running, small, large}))
      << "small starts together with large, and needs fewer steps";
  EXPECT_EQ(queue_.stats().preemptions, 0u);
}

TEST_F(Queue, WhenPagesRunOutTheHighestPriorityNumberGivesWayWhoeverCameFirst) {
  queue_ = make_queue({.page_count = 4});
  Request request;
  request.prompt_ids.assign(31, 1);
  request.max_tokens = 20;
  request.priority = 1;
  const RequestId unimportant = queue_.submit(request).value();
  request.priority = 0;
  request.cache_salt = "another";
  const RequestId important = queue_.submit(request).value();
  std::vector<RequestId> ended;
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    for (const Event& event : queue_.take_events()) {
      if (event.finish_reason) ended.push_back(event.request);
    }
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{important, unimportant}));
  EXPECT_GE(queue_.stats().preemptions, 1u);
}

TEST_F(Queue, HeldAdmissionStartsNothingAndLetsThePreemptedGoOn) {
  queue_ = make_queue({.page_count = 4});
  const RequestId first = submit(31, 20), second = submit(31, 20, "salt");
  while (queue_.stats().preemptions == 0) {
    ASSERT_TRUE(step(1).ok());
  }
  const RequestId third = submit(1, 1);
  queue_.hold_admission(true);
  queue_.take_events();
  std::vector<RequestId> ended;
  while (queue_.started() > 0) {
    ASSERT_TRUE(step(1).ok());
    for (const Event& event : queue_.take_events()) {
      if (event.finish_reason) ended.push_back(event.request);
    }
  }
  EXPECT_EQ(ended, (std::vector<RequestId>{first, second}));
  ASSERT_TRUE(step(1).ok());
  EXPECT_TRUE(rows_.empty());
  EXPECT_EQ(queue_.stats().waiting, 1);
  queue_.hold_admission(false);
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(queue_.take_events().front().request, third);
}

TEST_F(Queue, CancellingAllSparesThoseThatWaitUnlessTheyAreMeant) {
  for (int i = 0; i < 5; ++i) submit(2, 9);
  ASSERT_TRUE(step(1).ok());
  queue_.take_events();
  EXPECT_EQ(queue_.cancel_all(false), 2u);
  EXPECT_EQ(queue_.take_events().size(), 2u);
  EXPECT_EQ(queue_.stats().waiting, 3);
  EXPECT_EQ(queue_.cancel_all(true), 3u);
  for (const Event& event : queue_.take_events()) {
    EXPECT_EQ(event.finish_reason, FinishReason::kAbort);
  }
  EXPECT_TRUE(queue_.idle());
  EXPECT_EQ(queue_.stats().kv_pages_used, 0);
}

TEST_F(Queue, TheQueueRefusesMoreThanMayWait) {
  queue_ = make_queue({.max_waiting = 3});
  for (int i = 0; i < 3; ++i) submit(2, 9);
  Request request;
  request.prompt_ids = {1};
  const auto refused = queue_.submit(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().message().find("max_waiting"), std::string::npos);
  ASSERT_TRUE(step(1).ok());  // two of them run now
  EXPECT_TRUE(queue_.submit(request).ok());
}

// ------------------------------------------------------------------------------ prefixes

TEST_F(Queue, EqualPromptsThatComeTogetherAreComputedOnce) {
  for (int i = 0; i < 2; ++i) submit(33, 1);
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    queue_.take_events();
  }
  const EngineStats stats = queue_.stats();
  EXPECT_EQ(stats.prefix_queries, 66u);
  EXPECT_EQ(stats.prefix_hits, 32u);
  EXPECT_EQ(stats.prompt_tokens, 34u);
  EXPECT_EQ(stats.generated_tokens, 2u);
}

TEST_F(Queue, ARequestThatAsksAboutItsPromptComputesAllOfIt) {
  submit(33, 1);
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    queue_.take_events();
  }
  Request request;
  request.prompt_ids.assign(33, 1);
  request.max_tokens = 1;
  request.prompt_logprobs = true;
  ASSERT_TRUE(queue_.submit(request).ok());
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(rows_.size(), 8u);
  EXPECT_EQ(rows_.front().position, 0);
}

// Its prefix was made by weights that are gone, though it has computed nothing yet.
TEST_F(Queue, ARollBackTakesAPrefixOfTheUndoneWeightsFromWhoeverHasIt) {
  submit(33, 1);
  while (!queue_.idle()) {
    ASSERT_TRUE(step(2).ok());
    queue_.take_events();
  }
  submit(60, 1, "first in order, so that the other gets no row");
  const RequestId with_prefix = submit(60, 1);
  ASSERT_TRUE(step(2).ok());
  EXPECT_EQ(queue_.stats().prefix_hits, 32u);
  queue_.abort_computed_after(1);
  queue_.enter_epoch(1);
  ASSERT_EQ(queue_.take_events().size(), 1u);
  ASSERT_TRUE(step(1).ok());
  EXPECT_EQ(rows_.front().position, 0);
  while (!queue_.idle()) {
    ASSERT_TRUE(step(1).ok());
    for (const Event& event : queue_.take_events()) EXPECT_EQ(event.request, with_prefix);
  }
}

}  // namespace
}  // namespace holdfast::engine
