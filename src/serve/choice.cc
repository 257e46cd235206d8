#include "serve/choice.h"

#include <algorithm>

namespace holdfast::serve {

std::string_view version_name(std::string_view label) {
  return label.empty() ? std::string_view("default") : label;
}

void TopFilter::apply(std::vector<TokenLogprob>& top) const {
  if (top.size() <= most) return;
  std::size_t kept = most;
  for (std::size_t i = most; i < top.size(); ++i) {
    if (std::binary_search(ids.begin(), ids.end(), top[i].id)) top[kept++] = top[i];
  }
  top.resize(kept);
  top.shrink_to_fit();
}

void Choice::take(const Output& output) {
  const Event& event = output.event;
  if (event.restarted) {
    tokens.clear();
    top.clear();
    text.clear();
    versions.clear();
    prompt_logprobs.clear();
    detail.reset();
    routed_experts.clear();
  }
  if (!event.prompt_logprobs.empty()) prompt_logprobs = event.prompt_logprobs;
  if (event.prompt) detail = event.prompt;
  if (event.token) {
    const std::string_view version = version_name(output.version);
    const std::size_t at = tokens.size();
    if (versions.empty() || versions.back().version != version ||
        versions.back().epoch != event.token->epoch) {
      versions.push_back({.version = std::string(version),
                          .epoch = event.token->epoch,
                          .start = at,
                          .end = at});
    }
    versions.back().end = at + 1;
    tokens.push_back(*event.token);
    top.push_back(event.top_logprobs);
    filter.apply(top.back());
    routed_experts.insert(routed_experts.end(), event.routed_experts.begin(),
                          event.routed_experts.end());
  }
  if (event.token || tokens.empty()) last_version = version_name(output.version);
  text += event.text;
  if (event.finish_reason) {
    finish = event.finish_reason;
    stop_string = event.stop_string;
    stop_token = event.stop_token;
  }
}

void write_versions(JsonWriter& out, const Choice& choice) {
  out.key("weight_versions").begin_array();
  for (const VersionSpan& span : choice.versions) {
    out.begin_object().field("version", span.version).field("epoch", span.epoch);
    out.field("start", span.start).field("end", span.end).end_object();
  }
  out.end_array();
}

Usage usage_of(std::span<const Choice> choices) {
  Usage usage;
  const Choice* before = nullptr;
  for (const Choice& choice : choices) {
    usage.completion_tokens += static_cast<std::int64_t>(choice.tokens.size());
    if (before == nullptr || before->prompt != choice.prompt) {
      usage.prompt_tokens += static_cast<std::int64_t>(choice.prompt_ids.size());
      // Of the first choice: the others find what that one has left.
      usage.cached_tokens += choice.cached_tokens();
    }
    before = &choice;
  }
  return usage;
}

void write_usage(JsonWriter& out, const Usage& usage) {
  out.begin_object().field("prompt_tokens", usage.prompt_tokens);
  out.field("completion_tokens", usage.completion_tokens);
  out.field("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  out.key("prompt_tokens_details").begin_object();
  out.field("cached_tokens", usage.cached_tokens).end_object().end_object();
}

std::string sse_event(std::string_view data) {
  std::string event;
  event.reserve(data.size() + 8);
  event += "data: ";
  event += data;
  event += "\n\n";
  return event;
}

}  // namespace holdfast::serve
