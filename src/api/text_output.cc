#include "api/text_output.h"

#include <utility>

namespace holdfast::api {

Result<TextSettings> take_text_settings(Request& request) {
  HF_TRY(check_stop_strings(request.stop));
  return TextSettings{.stop = std::exchange(request.stop, {}),
                      .include_stop = request.include_stop,
                      .want_text = request.want_text,
                      .skip_special = request.skip_special,
                      .min_tokens = request.min_tokens};
}

// ------------------------------------------------------------------------------ one request

RequestText::RequestText(const tokenizer::Tokenizer& tokenizer, TextSettings settings)
    : tokenizer_(tokenizer),
      settings_(std::move(settings)),
      decoder_(tokenizer_, {.skip_special = settings_.skip_special}),
      matcher_(settings_.stop) {}

void RequestText::fill(Event& event) {
  if (event.restarted) restart();
  // A token or a caller that ends the request comes before a string.
  const bool stopped = event.finish_reason == FinishReason::kStop;
  const bool aborted = event.finish_reason == FinishReason::kAbort;
  if (event.token) {
    ++tokens_;
    if (!stopped || settings_.include_stop) {
      const Result<std::string> text = decoder_.push(event.token->id);
      // The vocabulary may be padded with ids that no token has: they have no text.
      if (text.ok()) push(*text, event, !stopped && !aborted);
    }
  }
  if (!event.finish_reason) return;
  if (!ended_) push(decoder_.finish(), event, !stopped && !aborted);
  if (!ended_) event.text += held_;
  held_.clear();
  ended_ = true;
}

void RequestText::push(std::string_view text, Event& event, bool look) {
  for (const char byte : text) {
    held_ += byte;
    const std::optional<std::size_t> found = matcher_.push(byte);
    if (!found || !look || tokens_ < settings_.min_tokens) continue;
    event.stop_string = matcher_.stop(*found);
    event.finish_reason = FinishReason::kStop;
    if (!settings_.include_stop) held_.resize(held_.size() - event.stop_string.size());
    event.text += held_;
    ended_ = true;
    return;
  }
  const std::size_t free_bytes = held_.size() - matcher_.held_bytes();
  event.text.append(held_, 0, free_bytes);
  held_.erase(0, free_bytes);
}

void RequestText::restart() {
  decoder_ = tokenizer::StreamDecoder(tokenizer_, {.skip_special = settings_.skip_special});
  matcher_.reset();
  held_.clear();
  tokens_ = 0;
}

// ------------------------------------------------------------------------------ all of them

void TextOutput::add(RequestId request, TextSettings settings) {
  texts_.try_emplace(request.value, tokenizer_, std::move(settings));
}

bool TextOutput::fill_one(Event& event, std::vector<RequestId>& to_cancel) {
  const bool last = event.finish_reason.has_value();
  if (event.finish_reason == FinishReason::kStop && event.token) {
    event.stop_token = event.token->id;
  }
  if (texts_.empty()) return true;
  const auto at = texts_.find(event.request.value);
  if (at == texts_.end()) return true;
  RequestText& text = at->second;
  const bool kept = !text.ended();
  if (kept) text.fill(event);
  if (last) {
    std::erase(to_cancel, event.request);
    texts_.erase(at);
  } else if (kept && text.ended()) {
    to_cancel.push_back(event.request);
  }
  return kept;
}

std::vector<RequestId> TextOutput::fill(std::vector<Event>& events) {
  std::vector<RequestId> to_cancel;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (!fill_one(events[i], to_cancel)) continue;
    if (kept != i) events[kept] = std::move(events[i]);
    ++kept;
  }
  events.resize(kept);
  return to_cancel;
}

}  // namespace holdfast::api
