#include "api/text_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace holdfast::api {
namespace {

using testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

const tokenizer::Tokenizer& tiny() {
  static const tokenizer::Tokenizer loaded =
      tokenizer::Tokenizer::load(HF_SOURCE_DIR "/models/gptoss-tiny-A/tokenizer.json").value();
  return loaded;
}

Ids ids_of(std::string_view text) { return tiny().encode(text).value(); }

// One id for each byte of `text`: tokens that end anywhere.
Ids byte_ids(std::string_view text) {
  Ids ids;
  for (const char byte : text) ids.push_back(tiny().id_of_token({&byte, 1}).value());
  return ids;
}

Event token_event(std::int32_t id, std::optional<FinishReason> reason = {}) {
  return {.request = {7}, .token = Token{.id = id}, .prompt_logprobs = {}, .finish_reason = reason};
}

struct Read {
  std::string text = {}, stop_string = {};
  std::size_t events = 0;  // up to the last one
  std::optional<FinishReason> reason = {};
};

// All of `ids`, the last one with `reason`.
Read read(const Ids& ids, TextSettings settings, FinishReason reason = FinishReason::kLength) {
  settings.want_text = true;
  RequestText text(tiny(), std::move(settings));
  Read result;
  for (std::size_t i = 0; i < ids.size() && !text.ended(); ++i) {
    Event event = token_event(ids[i]);
    if (i + 1 == ids.size()) event.finish_reason = reason;
    text.fill(event);
    result.text += event.text;
    result.stop_string += event.stop_string;
    result.reason = event.finish_reason;
    ++result.events;
  }
  return result;
}

Ids random_ids(base::Rng& rng, std::size_t count) {
  Ids ids(count);
  for (std::int32_t& id : ids) {
    id = static_cast<std::int32_t>(rng.next_below(static_cast<std::uint64_t>(tiny().vocab_size())));
  }
  return ids;
}

TEST(RequestText, PiecesTogetherAreWhatDecodeGivesForAnyIdsBrokenUtf8Included) {
  base::Rng rng(11);
  for (int round = 0; round < 2000; ++round) {
    const Ids ids = random_ids(rng, 1 + rng.next_below(40));
    const bool skip = rng.next_below(2) == 0;
    EXPECT_EQ(read(ids, {.skip_special = skip}).text,
              tiny().decode(ids, {.skip_special = skip}).value());
  }
}

// The definition, in other words than the implementation: the first end, then the longest.
std::optional<std::pair<std::size_t, std::string>> first_match(
    const std::string& text, const std::vector<std::string>& stop) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& s : stop) {
      if (std::string_view(text).substr(0, end).ends_with(s) && s.size() > longest.size()) {
        longest = s;
      }
    }
    if (!longest.empty()) return std::pair{end, longest};
  }
  return {};
}

TEST(RequestText, AStopStringIsFoundWhereverTokensEnd) {
  base::Rng rng(12);
  int matched = 0;
  for (int round = 0; round < 3000; ++round) {
    const Ids ids = random_ids(rng, 1 + rng.next_below(30));
    const std::string whole = tiny().decode(ids).value();
    std::vector<std::string> stop;
    for (std::uint64_t i = 0; i < 1 + rng.next_below(3); ++i) {
      const std::size_t begin = rng.next_below(whole.size());
      stop.push_back(whole.substr(begin, 1 + rng.next_below(12)));
      if (!check_stop_strings(stop).ok()) stop.pop_back();  // not cut between characters
    }
    const bool include = rng.next_below(2) == 0;
    const Read got = read(ids, {.stop = stop, .include_stop = include, .skip_special = false});
    const auto match = first_match(whole, stop);
    if (!match) {
      EXPECT_EQ(got.text, whole);
      EXPECT_EQ(got.reason, FinishReason::kLength);
      continue;
    }
    ++matched;
    EXPECT_EQ(got.stop_string, match->second);
    EXPECT_EQ(got.reason, FinishReason::kStop);
    EXPECT_EQ(got.text, whole.substr(0, match->first - (include ? 0 : match->second.size())));
  }
  EXPECT_GT(matched, 500);
}

TEST(RequestText, TextThatAStopStringMayBeginInIsHeldBackAndNothingElseIs) {
  RequestText text(tiny(), {.stop = {"stone", "tea"}, .want_text = true});
  std::string pieces;
  for (const std::int32_t id : byte_ids("a stostona te")) {
    Event event = token_event(id);
    text.fill(event);
    pieces += event.text + "|";
  }
  EXPECT_EQ(pieces, "a| ||||sto||||stona| |||");
  Event last{.request = {7}, .token = {}, .prompt_logprobs = {},
             .finish_reason = FinishReason::kAbort};
  text.fill(last);
  EXPECT_EQ(last.text, "te");
  EXPECT_EQ(last.finish_reason, FinishReason::kAbort);
}

TEST(RequestText, AStopStringMayCutACharacterSequenceButNeverACharacter) {
  const Read got = read(byte_ids("caf\xC3\xA9 \xF0\x9F\x8C\x8A!"), {.stop = {"\xF0\x9F\x8C\x8A"}});
  EXPECT_EQ(got.text, "caf\xC3\xA9 ");
  EXPECT_EQ(got.events, 10u);
}

TEST(RequestText, MatchesThatEndBeforeMinTokensAreNotLookedAt) {
  const Ids ids = byte_ids("aaab aaab.");
  EXPECT_EQ(read(ids, {.stop = {"aa"}, .min_tokens = 2}).text, "");
  EXPECT_EQ(read(ids, {.stop = {"aa"}, .min_tokens = 3}).text, "a");
  EXPECT_EQ(read(ids, {.stop = {"aa"}, .min_tokens = 4}).text, "aaab ");
  EXPECT_EQ(read(ids, {.stop = {"aa"}, .min_tokens = 8}).text, "aaab a");
  EXPECT_EQ(read(ids, {.stop = {"aa"}, .min_tokens = 9}).text, "aaab aaab.");
}

TEST(RequestText, TheTokenThatEndsARequestIsTextOnlyWithIncludeStop) {
  const Ids ids = ids_of("So be it\n");
  ASSERT_EQ(tiny().token_bytes(ids.back()).value(), "\n");
  EXPECT_EQ(read(ids, {}, FinishReason::kStop).text, "So be it");
  EXPECT_EQ(read(ids, {.include_stop = true}, FinishReason::kStop).text, "So be it\n");
  // The token came first: no string is looked for in it.
  const Read got = read(ids, {.stop = {"\n"}, .include_stop = true}, FinishReason::kStop);
  EXPECT_EQ(got.text, "So be it\n");
  EXPECT_EQ(got.stop_string, "");
}

TEST(RequestText, ACharacterThatNeverBecomesWholeIsReplacedAtTheEndAndCanStop) {
  EXPECT_EQ(read(byte_ids("a\xF0\x9F"), {}).text, "a\xEF\xBF\xBD");
  const Read got = read(byte_ids("a\xF0\x9F"), {.stop = {"\xEF\xBF\xBD"}});
  EXPECT_EQ(got.text, "a");
  EXPECT_EQ(got.reason, FinishReason::kStop);
}

TEST(RequestText, ARestartForgetsTheText) {
  RequestText text(tiny(), {.stop = {"abc"}, .want_text = true, .min_tokens = 3});
  for (const std::int32_t id : byte_ids("xab")) {
    Event event = token_event(id);
    text.fill(event);
  }
  Event restart{.request = {7}, .token = {}, .prompt_logprobs = {}, .finish_reason = {}};
  restart.restarted = true;
  text.fill(restart);
  std::string all = restart.text;
  for (const std::int32_t id : byte_ids("cabc")) {
    Event event = token_event(id);
    text.fill(event);
    all += event.text;
  }
  EXPECT_EQ(all, "c");
  EXPECT_TRUE(text.ended());
}

TEST(TextOutput, AStoppedRequestHasOneLastEventAndIsCancelledOnce) {
  TextOutput texts(tiny());
  texts.add({7}, {.stop = {"b"}});
  const Ids ids = byte_ids("abc");
  // Two tokens after one failed step: the second comes too late.
  std::vector<Event> events = {token_event(ids[0]), token_event(ids[1]), token_event(ids[2])};
  const auto cancelled = texts.fill(events);
  ASSERT_EQ(cancelled.size(), 1u);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ(events[1].token->id, ids[1]);
  EXPECT_FALSE(events[1].stop_token.has_value());
  events = {Event{.request = {7}, .token = {}, .prompt_logprobs = {},
                  .finish_reason = FinishReason::kAbort}};
  EXPECT_TRUE(texts.fill(events).empty());
  EXPECT_TRUE(events.empty());
}

TEST(TextOutput, AStopThatIsTheEnginesLastTokenAnywayIsNotCancelled) {
  TextOutput texts(tiny());
  texts.add({7}, {.stop = {"b"}});
  const Ids ids = byte_ids("ab");
  std::vector<Event> events = {token_event(ids[0]), token_event(ids[1], FinishReason::kLength)};
  EXPECT_TRUE(texts.fill(events).empty());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].finish_reason, FinishReason::kStop);
  EXPECT_EQ(events[1].stop_string, "b");
}

TEST(TextOutput, AnIdThatNoTokenHasIsNoText) {
  TextOutput texts(tiny());
  texts.add({7}, {.want_text = true});
  std::vector<Event> events = {token_event(tiny().max_token_id() + 1, FinishReason::kLength)};
  texts.fill(events);
  EXPECT_EQ(events.at(0).text, "");
}

TEST(TextOutput, RequestsThatWantNoTextGetNoneButTheTokenThatEndedThem) {
  TextOutput texts(tiny());
  std::vector<Event> events = {token_event(3, FinishReason::kStop)};
  texts.fill(events);
  EXPECT_EQ(events.at(0).text, "");
  EXPECT_EQ(events.at(0).stop_token, 3);
}

TEST(StopStrings, WhatCannotBeOneIsNamed) {
  const auto error_of = [](std::vector<std::string> stop) {
    Request request;
    request.stop = std::move(stop);
    const auto settings = take_text_settings(request);
    return settings.ok() ? std::string("taken") : settings.error().message();
  };
  EXPECT_THAT(error_of({"a", ""}), HasSubstr("stop[1] has 0 bytes, expected 1 to 1024"));
  EXPECT_THAT(error_of({std::string(1025, 'a')}), HasSubstr("stop[0] has 1025 bytes"));
  EXPECT_THAT(error_of({"ab\xFF"}), HasSubstr("stop[0] is not UTF-8 at byte 2"));
  EXPECT_THAT(error_of(std::vector<std::string>(17, "a")), HasSubstr("17 strings, at most 16"));
  EXPECT_EQ(error_of(std::vector<std::string>(16, std::string(1024, 'a'))), "taken");
}

}  // namespace
}  // namespace holdfast::api
