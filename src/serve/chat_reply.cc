#include "serve/chat_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace holdfast::serve {

// ------------------------------------------------------------------------------ stop strings

std::string StopTail::push(std::string text) {
  held_ += text;
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopTail::finish(std::string text, const std::string& stop, bool keep_stop) {
  std::string rest = std::exchange(held_, {}) + text;
  if (stop.empty()) return rest;
  const std::size_t at = rest.find(stop);
  if (at != std::string::npos) rest.resize(at + (keep_stop ? stop.size() : 0));
  return rest;
}

// ------------------------------------------------------------------------------ reader

ChatReader::ChatReader(const ChatRequest& request, const ChatFormat& format)
    : reply_(format.reply(request.conversation.options.continue_final)),
      content_(request.engine.stop),
      reasoning_(request.engine.stop),
      keep_stop_(request.engine.include_stop),
      include_reasoning_(request.include_reasoning) {}

void ChatReader::add(ChatDelta from, ChatDelta& into, const std::string* stop) {
  if (stop == nullptr) {
    into.content += content_.push(std::move(from.content));
    into.reasoning += reasoning_.push(std::move(from.reasoning));
  } else {
    into.content += content_.finish(std::move(from.content), *stop, keep_stop_);
    into.reasoning += reasoning_.finish(std::move(from.reasoning), *stop, keep_stop_);
  }
  for (ChatDelta::Call& call : from.calls) {
    has_calls_ = true;
    if (!into.calls.empty() && call.name.empty() && into.calls.back().index == call.index) {
      into.calls.back().arguments += call.arguments;
    } else {
      into.calls.push_back(std::move(call));
    }
  }
}

ChatDelta ChatReader::read(const Choice& choice, std::size_t first) {
  ChatDelta all, last;
  for (std::size_t i = first; i < choice.tokens.size(); ++i) {
    Result<ChatDelta> delta = reply_->push(choice.tokens[i].id);
    if (!delta.ok()) continue;  // an id without a token adds nothing
    if (choice.finish && i + 1 == choice.tokens.size()) {
      last = std::move(*delta);
    } else {
      add(std::move(*delta), all, nullptr);
    }
  }
  if (choice.finish) {
    // The last token's text and what the format has held back belong together.
    ChatDelta rest = reply_->finish();
    last.content += rest.content;
    last.reasoning += rest.reasoning;
    for (ChatDelta::Call& call : rest.calls) last.calls.push_back(std::move(call));
    add(std::move(last), all, &choice.stop_string);
  }
  if (!include_reasoning_) all.reasoning.clear();
  return all;
}

// ------------------------------------------------------------------------------ reply

namespace {

constexpr std::string_view kChunk = "chat.completion.chunk";

class ChatReply final : public ReplyFormat {
 public:
  ChatReply(const ChatRequest& request, const ChatFormat& format, ReplyContext context)
      : request_(request), format_(format), context_(std::move(context)),
        names_(context_.tokenizer, request.tokens_as_ids) {}

  std::string body(std::span<const Choice> choices) override {
    JsonWriter out;
    out.begin_object();
    write_head(out, context_, "chat.completion");
    out.key("choices").begin_array();
    for (const Choice& choice : choices) {
      ChatReader reader(request_, format_);
      const ChatDelta message = reader.read(choice, 0);
      out.begin_object().field("index", choice.index);
      write_message(out, choice, message);
      write_rest(out, choice, 0, reader);
      out.end_object();
    }
    out.end_array();
    if (request_.engine.prompt_logprobs) {
      out.key("prompt_logprobs");
      write_prompt_logprobs(out, choices.front(), names_);
    }
    if (request_.return_token_ids) out.array("prompt_token_ids", choices.front().prompt_ids);
    if (request_.logprobs || request_.engine.prompt_logprobs) write_mode(out);
    out.key("usage");
    write_usage(out, usage_of(choices));
    out.end_object();
    return out.take();
  }

  std::string chunk(const Choice& choice, const Gain& gain) override {
    while (readers_.size() <= choice.index) readers_.emplace_back(request_, format_);
    ChatReader& reader = readers_[choice.index];
    const ChatDelta delta = reader.read(choice, gain.first_token);
    std::string bytes;
    if (gain.first) {
      JsonWriter out;
      begin_chunk(out, choice);
      out.key("delta").begin_object().field("role", "assistant").field("content", "");
      out.end_object().key("logprobs").null().key("finish_reason").null();
      const bool ids = request_.return_token_ids;
      end_chunk(out, choice, ids ? &choice.prompt_ids : nullptr);
      bytes = sse_event(out.take());
    }
    const bool tokens_show = request_.logprobs || request_.return_token_ids;
    const bool has_news = !delta.content.empty() || !delta.reasoning.empty() ||
                          !delta.calls.empty() || choice.finish ||
                          (tokens_show && choice.tokens.size() > gain.first_token);
    if (!has_news) return bytes;
    JsonWriter out;
    begin_chunk(out, choice);
    out.key("delta").begin_object();
    if (!delta.reasoning.empty()) out.field("reasoning", delta.reasoning);
    if (!delta.content.empty()) out.field("content", delta.content);
    if (!delta.calls.empty()) write_calls(out, choice, delta, true);
    out.end_object();
    write_rest(out, choice, gain.first_token, reader);
    end_chunk(out, choice, nullptr);
    return bytes += sse_event(out.take());
  }

  std::string last(std::span<const Choice> choices) override {
    std::string bytes;
    if (request_.include_usage) bytes = usage_chunk(context_, kChunk, usage_of(choices));
    return bytes += kSseDone;
  }

 private:
  void begin_chunk(JsonWriter& out, const Choice& choice) {
    out.begin_object();
    write_head(out, context_, kChunk);
    out.key("choices").begin_array().begin_object().field("index", choice.index);
  }

  void end_chunk(JsonWriter& out, const Choice& choice, const std::vector<std::int32_t>* ids) {
    out.end_object().end_array();
    if (ids != nullptr) out.array("prompt_token_ids", *ids);
    if (request_.continuous_usage) {
      out.key("usage");
      write_usage(out, usage_of(std::span(&choice, 1)));
    }
    out.end_object();
  }

  void write_message(JsonWriter& out, const Choice& choice, const ChatDelta& message) {
    out.key("message").begin_object().field("role", "assistant").key("content");
    if (message.content.empty() && !message.calls.empty()) {
      out.null();
    } else {
      out.value(message.content);
    }
    out.key("refusal").null().key("reasoning");
    if (message.reasoning.empty()) {
      out.null();
    } else {
      out.value(message.reasoning);
    }
    if (!message.calls.empty()) write_calls(out, choice, message, false);
    out.end_object();
  }

  // In a message the pieces of a call are one; in a delta each stands for itself.
  void write_calls(JsonWriter& out, const Choice& choice, const ChatDelta& delta, bool streamed) {
    std::vector<ChatDelta::Call> calls = delta.calls;
    if (!streamed) {
      std::stable_sort(calls.begin(), calls.end(),
                       [](const auto& a, const auto& b) { return a.index < b.index; });
      for (std::size_t i = calls.size(); i-- > 1;) {
        if (calls[i].index != calls[i - 1].index) continue;
        calls[i - 1].arguments += calls[i].arguments;
        calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    out.key("tool_calls").begin_array();
    for (const ChatDelta::Call& call : calls) {
      out.begin_object();
      if (streamed) out.field("index", call.index);
      if (!call.name.empty()) {
        out.field("id", fmt::format("call_{}_{}_{}", context_.id, choice.index, call.index));
        out.field("type", "function");
      }
      out.key("function").begin_object();
      if (!call.name.empty()) out.field("name", call.name);
      out.field("arguments", call.arguments).end_object().end_object();
    }
    out.end_array();
  }

  void write_logprob(JsonWriter& out, std::int32_t id, float logprob) {
    out.field("token", names_.name(id)).key("logprob").logprob(logprob);
    out.key("bytes").begin_array();
    for (const char c : names_.text(id)) out.value(static_cast<unsigned char>(c));
    out.end_array();
  }

  void write_logprobs(JsonWriter& out, const Choice& choice, std::size_t first) {
    out.key("logprobs");
    if (!request_.logprobs) {
      out.null();
      return;
    }
    out.begin_object().key("content").begin_array();
    for (std::size_t i = first; i < choice.tokens.size(); ++i) {
      out.begin_object();
      write_logprob(out, choice.tokens[i].id, choice.tokens[i].logprob);
      out.key("top_logprobs").begin_array();
      for (const TokenLogprob& each : choice.top[i]) {
        out.begin_object();
        write_logprob(out, each.id, each.logprob);
        out.end_object();
      }
      out.end_array().end_object();
    }
    out.end_array().end_object();
  }

  // What a choice has beside its message or delta.
  void write_rest(JsonWriter& out, const Choice& choice, std::size_t first,
                  const ChatReader& reader) {
    write_logprobs(out, choice, first);
    std::string_view reason;
    if (choice.finish) reason = finish_reason_name(*choice.finish);
    if (choice.finish == FinishReason::kStop && reader.has_calls()) reason = "tool_calls";
    write_finish(out, choice, context_, reason);
    if (request_.return_token_ids) write_token_ids(out, choice, first);
    if (!choice.finish) return;
    if (request_.engine.routed_experts) {
      out.field("routed_experts", routed_experts_npy(choice, context_.routing));
    }
    write_versions(out, choice);
  }

  void write_mode(JsonWriter& out) {
    out.field("logprobs_mode", logprobs_mode_name(request_.engine.logprobs_mode));
  }

  const ChatRequest request_;
  const ChatFormat& format_;
  const ReplyContext context_;
  const TokenNames names_;
  std::vector<ChatReader> readers_;
};

}  // namespace

std::unique_ptr<ReplyFormat> chat_reply(const ChatRequest& request, const ChatFormat& format,
                                        ReplyContext context) {
  return std::make_unique<ChatReply>(request, format, std::move(context));
}

}  // namespace holdfast::serve
