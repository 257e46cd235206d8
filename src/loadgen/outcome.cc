#include "loadgen/outcome.h"

#include <simdjson.h>

#include <algorithm>

#include "base/error.h"

namespace holdfast::loadgen {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;

std::string text_of(const element& object, const char* key) {
  std::string_view text;
  return object[key].get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

std::int64_t integer_of(const element& object, const char* key, std::int64_t otherwise) {
  std::int64_t value = 0;
  return object[key].get(value) == simdjson::SUCCESS ? value : otherwise;
}

std::vector<VersionSpan> spans_of(const element& choice) {
  std::vector<VersionSpan> out;
  array list;
  if (choice["weight_versions"].get(list) != simdjson::SUCCESS) return out;
  for (const element one : list) {
    out.push_back({.version = text_of(one, "version"),
                   .epoch = static_cast<std::uint64_t>(integer_of(one, "epoch", 0)),
                   .start = integer_of(one, "start", -1),
                   .end = integer_of(one, "end", -1)});
  }
  return out;
}

// How many tokens a choice of one chunk brings.
std::size_t take_tokens(const element& choice, Outcome& outcome) {
  array ids;
  if (choice["token_ids"].get(ids) == simdjson::SUCCESS) {
    for (const element id : ids) {
      std::int64_t value = 0;
      if (id.get(value) == simdjson::SUCCESS) {
        outcome.ids.push_back(static_cast<std::int32_t>(value));
      }
    }
    return ids.size();
  }
  // Other servers send one token a chunk.
  std::string_view text;
  if (choice["text"].get(text) == simdjson::SUCCESS) return text.empty() ? 0 : 1;
  if (choice["delta"]["content"].get(text) == simdjson::SUCCESS) return text.empty() ? 0 : 1;
  return 0;
}

void take_usage(const element& usage, Outcome& outcome) {
  outcome.usage_prompt_tokens = integer_of(usage, "prompt_tokens", outcome.usage_prompt_tokens);
  outcome.usage_completion_tokens =
      integer_of(usage, "completion_tokens", outcome.usage_completion_tokens);
  element details;
  if (usage["prompt_tokens_details"].get(details) == simdjson::SUCCESS && details.is_object()) {
    outcome.cached_tokens = integer_of(details, "cached_tokens", 0);
  }
}

}  // namespace

void merge_spans(std::vector<VersionSpan>& known, const std::vector<VersionSpan>& chunk) {
  for (const VersionSpan& span : chunk) {
    if (!known.empty() && span.start == 0) {
      known.clear();
    } else if (!known.empty() && span.version == known.back().version &&
               span.epoch == known.back().epoch &&
               (span.start == known.back().end || span.start == known.back().start)) {
      known.back().end = std::max(known.back().end, span.end);
      continue;
    }
    known.push_back(span);
  }
}

struct OutcomeReader::Impl {
  simdjson::dom::parser parser;
};

OutcomeReader::OutcomeReader() : impl_(std::make_unique<Impl>()) {}
OutcomeReader::~OutcomeReader() = default;

Status OutcomeReader::read_event(std::string_view data, double now_s, Outcome& outcome) {
  if (data == "[DONE]") {
    outcome.done = true;
    return {};
  }
  element root;
  if (const auto error = impl_->parser.parse(data.data(), data.size()).get(root);
      error != simdjson::SUCCESS || !root.is_object()) {
    return make_error(ErrorCode::kCorrupt, "stream event \"{}\" is not a JSON object",
                      data.substr(0, 80));
  }
  element failure;
  if (root["error"].get(failure) == simdjson::SUCCESS && !failure.is_null()) {
    outcome.error = "in the stream: " + error_text(0, std::string(data));
    return {};
  }
  array choices;
  if (root["choices"].get(choices) == simdjson::SUCCESS) {
    for (const element choice : choices) {
      const std::size_t tokens = take_tokens(choice, outcome);
      outcome.token_times_s.insert(outcome.token_times_s.end(), tokens, now_s);
      merge_spans(outcome.spans, spans_of(choice));
      const std::string reason = text_of(choice, "finish_reason");
      if (!reason.empty()) outcome.finish_reason = reason;
    }
  }
  element usage;
  if (root["usage"].get(usage) == simdjson::SUCCESS && usage.is_object()) {
    take_usage(usage, outcome);
  }
  return {};
}

std::string OutcomeReader::error_text(int status, std::string_view body) {
  std::string message(body.substr(0, 300));
  element root;
  if (impl_->parser.parse(body.data(), body.size()).get(root) == simdjson::SUCCESS) {
    std::string_view text;
    if (root["error"]["message"].get(text) == simdjson::SUCCESS ||
        root["error"].get(text) == simdjson::SUCCESS ||
        root["message"].get(text) == simdjson::SUCCESS) {
      message = std::string(text.substr(0, 300));
    }
  }
  if (status == 0) return message;
  return fmt::format("HTTP {}{}{}", status, message.empty() ? "" : ": ", message);
}

}  // namespace holdfast::loadgen
