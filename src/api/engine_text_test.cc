// The public engine: what it does besides its core, on a real model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/engine.h"
#include "holdfast/tokenizer.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

class EngineText : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.model_directory = HF_SOURCE_DIR "/models/gptoss-tiny-A";
    options.threads = 1;
    options.max_context = 256;
    auto opened = Engine::open(options);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    engine_ = std::move(*opened);
  }
  static void TearDownTestSuite() { engine_.reset(); }

  static Request request(std::vector<std::string> stop) {
    Request result;
    result.prompt_ids = engine_->tokenizer().encode("First Citizen:\nBefore we").value();
    result.max_tokens = 40;
    result.ignore_eos = true;
    result.want_text = true;
    result.stop = std::move(stop);
    return result;
  }
  struct Answer {
    std::string text = {}, stop_string = {};
    std::vector<std::int32_t> ids = {};
    int last_events = 0;
    FinishReason reason = FinishReason::kAbort;
  };
  // Runs all to the end; answers in the order of `requests`.
  static std::vector<Answer> run(const std::vector<Request>& requests) {
    std::vector<RequestId> ids;
    for (const Request& r : requests) ids.push_back(engine_->submit(r).value());
    std::vector<Answer> answers(requests.size());
    while (!engine_->idle()) {
      for (const Event& event : engine_->step().value()) {
        const auto at = std::find(ids.begin(), ids.end(), event.request) - ids.begin();
        Answer& answer = answers.at(static_cast<std::size_t>(at));
        EXPECT_EQ(answer.last_events, 0) << "an event after the last one";
        answer.text += event.text;
        if (event.token) answer.ids.push_back(event.token->id);
        if (!event.finish_reason) continue;
        ++answer.last_events;
        answer.reason = *event.finish_reason;
        answer.stop_string = event.stop_string;
      }
    }
    return answers;
  }
  static std::unique_ptr<Engine> engine_;
};
std::unique_ptr<Engine> EngineText::engine_;

TEST_F(EngineText, AStopStringEndsItsRequestAndNoOther) {
  const Answer whole = run({request({})}).at(0);
  EXPECT_EQ(whole.reason, FinishReason::kLength);
  EXPECT_EQ(whole.text, engine_->tokenizer().decode(whole.ids, true).value());
  const std::string stop = whole.text.substr(whole.text.size() / 2, 7);
  const std::size_t place = whole.text.find(stop);
  const auto answers = run({request({"no such text", stop}), request({})});
  EXPECT_EQ(answers[0].text, whole.text.substr(0, place));
  EXPECT_EQ(answers[0].stop_string, stop);
  EXPECT_EQ(answers[0].reason, FinishReason::kStop);
  EXPECT_LT(answers[0].ids.size(), whole.ids.size());
  EXPECT_EQ(answers[0].last_events, 1);
  EXPECT_EQ(answers[1].text, whole.text);
  EXPECT_EQ(answers[1].last_events, 1);
}

TEST_F(EngineText, AWrongStopStringIsRefusedAndNothingIsSubmitted) {
  const auto refused = engine_->submit(request({""}));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("stop[0]"));
  EXPECT_TRUE(engine_->idle());
}

TEST_F(EngineText, ACancelledRequestGivesWhatWasHeldBack) {
  const Answer whole = run({request({})}).at(0);
  const RequestId id = engine_->submit(request({whole.text + "?"})).value();
  std::string text;
  for (int i = 0; i < 6; ++i) {
    for (const Event& event : engine_->step().value()) text += event.text;
  }
  EXPECT_EQ(text, "");
  ASSERT_TRUE(engine_->cancel(id).ok());
  for (const Event& event : engine_->step().value()) text += event.text;
  EXPECT_FALSE(text.empty());
  EXPECT_TRUE(whole.text.starts_with(text));
}

}  // namespace
}  // namespace holdfast
