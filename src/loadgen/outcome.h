// Outcome: what a client saw of one request; and the reader that makes it from a stream's events.
// Values, one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::loadgen {

// Output tokens [start, end) were made by the weights of this label and epoch.
struct VersionSpan {
  std::string version = {};
  std::uint64_t epoch = 0;  // 0: the server gives none
  std::int64_t start = 0, end = 0;
  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

// Times in seconds since the run began.
struct Outcome {
  std::vector<std::int32_t> prompt = {};
  std::int64_t asked_tokens = 0;
  int status = 0;             // HTTP; 0: no answer
  std::string error = {};     // why it failed; empty: the stream ended as it should
  bool done = false;          // "[DONE]" came
  std::string finish_reason = {};
  double sent_s = 0, end_s = 0;
  int retries = 0;            // answered 429 before
  std::vector<double> token_times_s = {};  // of each output token, as it arrived
  std::vector<std::int32_t> ids = {};      // where the server gives them
  std::vector<VersionSpan> spans = {};
  std::int64_t usage_prompt_tokens = -1, usage_completion_tokens = -1;  // -1: not said
  std::int64_t cached_tokens = 0;

  bool completed() const { return error.empty() && done; }
};

// Reads the JSON of streamed completions (or the body of one that is not streamed) into outcomes.
// Shared by all streams of a run: holds the parser's memory.
class OutcomeReader {
 public:
  OutcomeReader();
  ~OutcomeReader();
  // One event's data that arrived at `now_s`. An error object inside a stream becomes the
  // outcome's error. Errors: kCorrupt for what is not JSON or not a completion.
  Status read_event(std::string_view data, double now_s, Outcome& outcome);
  // "HTTP 429: message" of an error body, whatever its form.
  std::string error_text(int status, std::string_view body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Adds what a chunk says to what is known: a list that begins anew replaces, what goes on extends.
void merge_spans(std::vector<VersionSpan>& known, const std::vector<VersionSpan>& chunk);

}  // namespace holdfast::loadgen
