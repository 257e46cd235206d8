// Choice: one output sequence of a request as it grows: what replies of every dialect are made of.
// A value; changed on the engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/request.h"
#include "serve/host.h"
#include "serve/json_writer.h"

namespace holdfast::serve {

// Output tokens [start, end) were made by these weights.
struct VersionSpan {
  std::string version = {};  // "default" where the weights have no label, as vLLM says
  std::uint64_t epoch = 0;
  std::size_t start = 0, end = 0;
};

// Which of the likeliest tokens of a position a reply needs: the first `most`, and these ids.
struct TopFilter {
  std::size_t most = std::numeric_limits<std::size_t>::max();
  std::vector<std::int32_t> ids = {};  // sorted
  void apply(std::vector<TokenLogprob>& top) const;
};

struct Choice {
  std::size_t index = 0;          // in the reply
  std::size_t prompt = 0;         // which of the request's prompts
  std::vector<std::int32_t> prompt_ids = {};
  std::vector<Token> tokens = {};
  std::vector<std::vector<TokenLogprob>> top = {};  // of each token, when they were asked for
  std::string text = {};
  std::vector<VersionSpan> versions = {};
  std::vector<float> prompt_logprobs = {};          // of prompt_ids[i + 1]
  std::shared_ptr<const PromptDetail> detail = {};
  std::vector<std::int16_t> routed_experts = {};    // [tokens, layers, experts per token]
  std::string last_version = {};  // of the weights that made the last token, or ended the request
  std::optional<FinishReason> finish = {};
  std::string stop_string = {};
  std::optional<std::int32_t> stop_token = {};
  TopFilter filter = {};

  // Takes one event. A restart voids everything that came before.
  void take(const Output& output);
  std::int64_t cached_tokens() const { return detail ? detail->cached_tokens : 0; }
};

// "default" for an empty label.
std::string_view version_name(std::string_view label);
// [{"version","epoch","start","end"}] under the key "weight_versions".
void write_versions(JsonWriter& out, const Choice& choice);

// Token counts over choices that are listed prompt by prompt: each prompt counts once.
struct Usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};
Usage usage_of(std::span<const Choice> choices);
void write_usage(JsonWriter& out, const Usage& usage);  // an object, no key

// A server-sent event. (WHATWG HTML, section 9.2.)
std::string sse_event(std::string_view data);
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

}  // namespace holdfast::serve
