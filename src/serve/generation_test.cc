#include "serve/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/scripted_test.h"

namespace holdfast::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// "index:text tokens reason|" for each choice.
class PlainFormat final : public ReplyFormat {
 public:
  std::string body(std::span<const Choice> choices) override {
    std::string all;
    for (const Choice& choice : choices) all += chunk(choice, {.text = choice.text});
    return all;
  }
  std::string chunk(const Choice& choice, const Gain& gain) override {
    return std::to_string(choice.index) + ":" + std::string(gain.text) + " " +
           std::to_string(choice.tokens.size() - gain.first_token) +
           (choice.finish ? std::string(" ") + finish_reason_name(*choice.finish) : "") + "|";
  }
  std::string last(std::span<const Choice>) override { return "end"; }
};

GenerationPlan plan(std::size_t requests, std::size_t per_prompt, bool stream) {
  GenerationPlan made;
  made.requests.resize(requests);
  for (Request& request : made.requests) request.prompt_ids = {1};
  made.per_prompt = per_prompt;
  made.stream = stream;
  for (std::size_t i = 0; i < requests / per_prompt; ++i) {
    made.names.push_back({"r", "r-" + std::to_string(i)});
  }
  return made;
}

class GenerationTest : public ::testing::Test {
 protected:
  void start(GenerationPlan made, std::size_t max_streams = 0) {
    Generation::start(engine_.ports(max_streams), std::move(made),
                      std::make_unique<PlainFormat>(), response_);
  }
  ScriptedEngine engine_;
  std::shared_ptr<KeptResponse> response_ = std::make_shared<KeptResponse>();
};

TEST_F(GenerationTest, AWholeReplyComesOnceEveryChoiceHasEnded) {
  start(plan(2, 2, false));
  ASSERT_EQ(engine_.submitted.size(), 2u);
  engine_.accept_all();
  engine_.send(1, token_event(5, "b"));
  engine_.send(0, ending(token_event(6, "a"), FinishReason::kStop));
  EXPECT_EQ(response_->answers, 0);
  engine_.send(1, ending(token_event(7, "c"), FinishReason::kLength));
  EXPECT_EQ(response_->status, 200);
  EXPECT_EQ(response_->body, "0:a 1 stop|1:bc 2 length|");
  EXPECT_EQ(engine_.registry->open(), 0u);
}

TEST_F(GenerationTest, AStreamBeginsWhenAllAreAcceptedAndEndsOnce) {
  start(plan(2, 1, true));
  engine_.accept(0);
  engine_.send(0, token_event(5, "a"));
  EXPECT_EQ(response_->answers, 0);
  engine_.accept(1);
  EXPECT_EQ(response_->body, "0:a 1|1: 0|");
  Event held;  // text that came free without a token
  held.text = "z";
  engine_.send(0, ending(held, FinishReason::kStop));
  engine_.send(1, ending(token_event(5, "b"), FinishReason::kLength));
  EXPECT_EQ(response_->body, "0:a 1|1: 0|0:z 0 stop|1:b 1 length|end");
  EXPECT_TRUE(response_->ended);
  EXPECT_EQ(response_->answers, 1);
}

TEST_F(GenerationTest, OneRefusalRefusesTheWholeRequestAndCancelsTheRest) {
  start(plan(3, 3, true));
  engine_.accept(0);
  engine_.submitted[1].accepted(Error(ErrorCode::kResourceExhausted, "4096 requests wait"));
  engine_.accept(2);
  EXPECT_EQ(response_->status, 429);
  EXPECT_FALSE(response_->streamed);
  ASSERT_EQ(response_->headers.size(), 1u);
  EXPECT_EQ(response_->headers[0].first, "Retry-After");
  EXPECT_THAT(engine_.cancelled, UnorderedElementsAre(0, 2));
  engine_.send(0, ending({}, FinishReason::kAbort));
  engine_.send(2, ending({}, FinishReason::kAbort));
  EXPECT_EQ(response_->answers, 1);
  EXPECT_EQ(engine_.registry->open(), 0u);
}

TEST_F(GenerationTest, ErrorsOfTheEngineKeepTheirStatus) {
  start(plan(1, 1, false));
  engine_.submitted[0].accepted(Error(ErrorCode::kPoisoned, "the weights are a mixture"));
  EXPECT_EQ(response_->status, 503);
  EXPECT_THAT(response_->body, HasSubstr("mixture"));
}

TEST_F(GenerationTest, AClientThatGoesAwayIsCancelled) {
  start(plan(2, 2, true));
  engine_.accept(0);
  response_->gone();
  EXPECT_THAT(engine_.cancelled, ElementsAre(0));
  engine_.accept(1);  // after it has gone
  EXPECT_THAT(engine_.cancelled, ElementsAre(0, 1));
  engine_.send(0, ending({}, FinishReason::kAbort));
  engine_.send(1, ending({}, FinishReason::kAbort));
  EXPECT_EQ(response_->answers, 0);
  EXPECT_EQ(engine_.registry->open(), 0u);
  EXPECT_EQ(engine_.registry->open_streams(), 0u);
}

TEST_F(GenerationTest, AClientThatReadsNoMoreIsCancelled) {
  start(plan(1, 1, true));
  engine_.accept_all();
  response_->client_gone = true;
  engine_.send(0, token_event(5, "a"));
  EXPECT_THAT(engine_.cancelled, ElementsAre(0));
}

TEST_F(GenerationTest, AbortByNameGivesTheTokensSoFar) {
  start(plan(2, 1, false));
  engine_.accept(0);
  engine_.send(0, token_event(5, "a"));
  EXPECT_EQ(engine_.registry->abort("unknown"), 0u);
  EXPECT_EQ(engine_.registry->abort("r-0"), 1u);
  EXPECT_THAT(engine_.cancelled, ElementsAre(0));
  EXPECT_EQ(engine_.registry->abort("r"), 1u);  // the other prompt, not accepted yet
  engine_.accept(1);
  EXPECT_THAT(engine_.cancelled, ElementsAre(0, 1));
  EXPECT_EQ(engine_.registry->abort_all(), 0u);
  engine_.send(0, ending({}, FinishReason::kAbort));
  engine_.send(1, ending({}, FinishReason::kAbort));
  EXPECT_EQ(response_->body, "0:a 1 abort|1: 0 abort|");
  EXPECT_EQ(engine_.registry->abort("r-0"), 0u);
  EXPECT_EQ(engine_.registry->names(), 0u);
}

TEST_F(GenerationTest, TwoRequestsOfOneNameAreAbortedTogetherAndForgottenApart) {
  start(plan(1, 1, false));
  const auto first = response_;
  response_ = std::make_shared<KeptResponse>();
  start(plan(1, 1, false));
  engine_.accept_all();
  engine_.send(0, ending({}, FinishReason::kStop));
  EXPECT_EQ(engine_.registry->names(), 2u);
  EXPECT_EQ(engine_.registry->abort("r"), 1u);
  EXPECT_THAT(engine_.cancelled, ElementsAre(1));
}

TEST_F(GenerationTest, AbortByPrefixFindsEveryNameThatBeginsSo) {
  start(plan(2, 1, true));
  engine_.accept_all();
  EXPECT_EQ(engine_.registry->abort_prefix("r-"), 2u);
  EXPECT_EQ(engine_.registry->abort_prefix("x"), 0u);
}

TEST_F(GenerationTest, StreamsHaveALimit) {
  start(plan(1, 1, true), 1);
  const auto first = response_;
  response_ = std::make_shared<KeptResponse>();
  start(plan(1, 1, true), 1);
  EXPECT_EQ(response_->status, 429);
  EXPECT_EQ(engine_.submitted.size(), 1u);
  response_ = std::make_shared<KeptResponse>();
  start(plan(1, 1, false), 1);  // no stream
  EXPECT_EQ(engine_.submitted.size(), 2u);
  engine_.accept_all();
  engine_.send(0, ending({}, FinishReason::kStop));
  response_ = std::make_shared<KeptResponse>();
  start(plan(1, 1, true), 1);
  EXPECT_EQ(engine_.submitted.size(), 3u);
}

TEST_F(GenerationTest, ARestartIsUnseenUntilTokensHaveBeenStreamed) {
  start(plan(1, 1, false));
  engine_.accept_all();
  engine_.send(0, token_event(5, "old"));
  Event restarted;
  restarted.restarted = true;
  engine_.send(0, restarted);
  engine_.send(0, ending(token_event(6, "new"), FinishReason::kStop));
  EXPECT_EQ(response_->body, "0:new 1 stop|");

  response_ = std::make_shared<KeptResponse>();
  start(plan(1, 1, true));
  engine_.accept(1);
  engine_.send(1, token_event(5, "old"));
  engine_.send(1, restarted);
  EXPECT_THAT(engine_.cancelled, ElementsAre(1));
  engine_.send(1, token_event(6, "new"));
  engine_.send(1, ending({}, FinishReason::kAbort));
  EXPECT_EQ(response_->body, "0: 0|0:old 1|0: 0 abort|end");
}

TEST_F(GenerationTest, AnEngineThatFailedIsSaidAndTokensAreKept) {
  engine_.failure = "device lost";
  start(plan(1, 1, false));
  engine_.accept_all();
  engine_.send(0, ending({}, FinishReason::kAbort));
  EXPECT_EQ(response_->status, 503);
  EXPECT_THAT(response_->body, HasSubstr("device lost"));

  response_ = std::make_shared<KeptResponse>();
  start(plan(1, 1, false));
  engine_.accept(1);
  engine_.send(1, token_event(5, "a"));
  engine_.send(1, ending({}, FinishReason::kAbort));
  EXPECT_EQ(response_->status, 200);

  response_ = std::make_shared<KeptResponse>();
  start(plan(1, 1, true));
  engine_.accept(2);
  engine_.send(2, ending({}, FinishReason::kAbort));
  EXPECT_THAT(response_->body, HasSubstr("data: {\"error\":{\"message\":\"device lost\""));
  EXPECT_TRUE(response_->ended);
}

TEST(ChoiceTest, SpansFollowVersionAndEpoch) {
  Choice choice;
  const std::string none, v2 = "v2";
  choice.take({.event = token_event(1, "", 1), .version = none});
  choice.take({.event = token_event(2, "", 1), .version = none});
  choice.take({.event = token_event(3, "", 2), .version = v2});
  choice.take({.event = token_event(4, "", 3), .version = v2});
  JsonWriter out;
  out.begin_object();
  write_versions(out, choice);
  out.end_object();
  EXPECT_EQ(out.take(), R"({"weight_versions":[)"
                        R"({"version":"default","epoch":1,"start":0,"end":2},)"
                        R"({"version":"v2","epoch":2,"start":2,"end":3},)"
                        R"({"version":"v2","epoch":3,"start":3,"end":4}]})");
  Choice empty;
  empty.take({.event = ending({}, FinishReason::kAbort), .version = v2});
  EXPECT_THAT(empty.versions, IsEmpty());
  EXPECT_EQ(empty.last_version, "v2");
}

TEST(ChoiceTest, AFilterKeepsTheFirstAndTheNamedOnes) {
  std::vector<TokenLogprob> top = {{.id = 4}, {.id = 2}, {.id = 7}, {.id = 1}};
  TopFilter{.most = 1, .ids = {1, 2}}.apply(top);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].id, 4);
  EXPECT_EQ(top[1].id, 2);
  EXPECT_EQ(top[2].id, 1);
}

}  // namespace
}  // namespace holdfast::serve
