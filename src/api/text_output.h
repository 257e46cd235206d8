// TextOutput: the text of requests, on top of an engine that knows token ids alone: turns them into
// text, and ends a request where a stop string does. Owned by the engine; engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "api/stop_matcher.h"
#include "holdfast/request.h"
#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::api {

// What a request asks of its text.
struct TextSettings {
  std::vector<std::string> stop = {};
  bool include_stop = false;
  bool want_text = false;
  bool skip_special = true;
  std::int64_t min_tokens = 0;

  bool wanted() const { return want_text || !stop.empty(); }
};
// Takes the stop strings out of `request`. Errors: those of check_stop_strings.
Result<TextSettings> take_text_settings(Request& request);

// One request's text. The match that ends first wins, and of those that end at the same byte the
// longest; one that ends before min_tokens tokens is not looked at.
class RequestText {
 public:
  RequestText(const tokenizer::Tokenizer& tokenizer, TextSettings settings);

  // Fills the text of the request's next event. A stop string makes it the last one, whatever the
  // engine says.
  void fill(Event& event);
  // The last event has been filled.
  bool ended() const { return ended_; }

 private:
  void push(std::string_view text, Event& event, bool look);
  void restart();

  tokenizer::Tokenizer tokenizer_;
  TextSettings settings_;
  tokenizer::StreamDecoder decoder_;
  StopMatcher matcher_;
  std::string held_;  // not given away yet: a stop string may begin in it
  std::int64_t tokens_ = 0;
  bool ended_ = false;
};

class TextOutput {
 public:
  explicit TextOutput(const tokenizer::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(RequestId request, TextSettings settings);
  // Fills text, stop_string and stop_token of a step's events, and drops the events of requests
  // that a stop string has ended. Returns those that the engine still runs and is to cancel.
  std::vector<RequestId> fill(std::vector<Event>& events);
  // The engine has no more events of this request.
  void forget(RequestId request) { texts_.erase(request.value); }

 private:
  // Whether the caller gets to see the event.
  bool fill_one(Event& event, std::vector<RequestId>& to_cancel);

  tokenizer::Tokenizer tokenizer_;
  std::unordered_map<std::uint64_t, RequestText> texts_;  // by request id; only those that want it
};

}  // namespace holdfast::api
