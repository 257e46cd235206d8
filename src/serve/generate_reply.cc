#include "serve/generate_reply.h"

#include <utility>

namespace holdfast::serve {
namespace {

class TokensReply final : public ReplyFormat {
 public:
  TokensReply(const TokensRequest& request, ReplyContext context)
      : logprobs_(request.logprobs), text_(request.text),
        prompt_logprobs_(request.engine.prompt_logprobs),
        routed_experts_(request.engine.routed_experts),
        include_usage_(request.include_usage), continuous_usage_(request.continuous_usage),
        mode_(logprobs_mode_name(request.engine.logprobs_mode)),
        context_(std::move(context)), names_(context_.tokenizer, true),
        texts_(context_.tokenizer, false) {}

  std::string body(std::span<const Choice> choices) override {
    JsonWriter out;
    begin(out);
    for (const Choice& choice : choices) write_choice(out, choice, {.text = choice.text});
    out.end_array().key("prompt_logprobs");
    if (prompt_logprobs_) {
      write_prompt_logprobs(out, choices.front(), texts_);
    } else {
      out.null();
    }
    if (logprobs_ || prompt_logprobs_) out.field("logprobs_mode", mode_);
    out.field("output_mode", text_ ? "text" : "tokens").key("kv_transfer_params").null();
    out.key("usage");
    write_usage(out, usage_of(choices));
    out.end_object();
    return out.take();
  }

  std::string chunk(const Choice& choice, const Gain& gain) override {
    if (!choice.finish && choice.tokens.size() == gain.first_token && gain.text.empty()) return {};
    JsonWriter out;
    begin(out);
    write_choice(out, choice, gain);
    out.end_array();
    if (continuous_usage_) {
      out.key("usage");
      write_usage(out, usage_of(std::span(&choice, 1)));
    }
    out.end_object();
    return sse_event(out.take());
  }

  std::string last(std::span<const Choice> choices) override {
    std::string bytes;
    if (include_usage_) {
      JsonWriter out;
      begin(out);
      out.end_array().key("usage");
      write_usage(out, usage_of(choices));
      out.end_object();
      bytes = sse_event(out.take());
    }
    return bytes += kSseDone;
  }

 private:
  void begin(JsonWriter& out) {
    out.begin_object().field("request_id", context_.id).field("model", context_.model);
    out.key("choices").begin_array();
  }

  // vLLM has named a token "token_id:5" and by its number, in different versions: both are there.
  void write_named(JsonWriter& out, const TokenLogprob& token, std::int64_t rank) {
    out.field("token", names_.name(token.id)).field("token_id", token.id);
    out.key("logprob").logprob(token.logprob).field("rank", rank).key("bytes").null();
  }

  void write_choice(JsonWriter& out, const Choice& choice, const Gain& gain) {
    out.begin_object().field("index", choice.index);
    write_token_ids(out, choice, gain.first_token);
    if (text_) out.field("text", gain.text);
    out.key("logprobs");
    if (logprobs_) {
      out.begin_object().key("content").begin_array();
      for (std::size_t i = gain.first_token; i < choice.tokens.size(); ++i) {
        const Token& token = choice.tokens[i];
        out.begin_object();
        write_named(out, {.id = token.id, .logprob = token.logprob}, token.rank);
        out.key("top_logprobs").begin_array();
        for (std::size_t rank = 0; rank < choice.top[i].size(); ++rank) {
          out.begin_object();
          write_named(out, choice.top[i][rank], static_cast<std::int64_t>(rank) + 1);
          out.end_object();
        }
        out.end_array().end_object();
      }
      out.end_array().end_object();
    } else {
      out.null();
    }
    write_finish(out, choice, context_,
                 choice.finish ? finish_reason_name(*choice.finish) : std::string_view());
    if (choice.finish) {
      if (routed_experts_) {
        out.field("routed_experts", routed_experts_npy(choice, context_.routing));
      }
      write_versions(out, choice);
    }
    out.end_object();
  }

  const bool logprobs_, text_, prompt_logprobs_, routed_experts_;
  const bool include_usage_, continuous_usage_;
  const std::string_view mode_;
  const ReplyContext context_;
  const TokenNames names_, texts_;
};

// ------------------------------------------------------------------------------ SGLang

// A stream's events each hold everything so far, as SGLang's do.
class SglangReply final : public ReplyFormat {
 public:
  SglangReply(const SglangRequest& request, std::vector<std::string> names, ReplyContext context)
      : is_list_(request.is_list), text_in_logprobs_(request.text_in_logprobs),
        routed_experts_(request.routed_experts), prompt_names_(std::move(names)),
        context_(std::move(context)), token_names_(context_.tokenizer, false) {
    for (const SglangPrompt& prompt : request.prompts) {
      prompts_.push_back({.logprobs = prompt.return_logprob,
                          .start = prompt.logprob_start,
                          .most = static_cast<std::size_t>(prompt.top_logprobs),
                          .ids = prompt.logprob_ids,
                          .mode = logprobs_mode_name(prompt.engine.logprobs_mode)});
    }
  }

  std::string body(std::span<const Choice> choices) override {
    JsonWriter out;
    const bool list = is_list_ || choices.size() > 1;
    if (list) out.begin_array();
    for (const Choice& choice : choices) write_choice(out, choice, false);
    if (list) out.end_array();
    return out.take();
  }

  std::string chunk(const Choice& choice, const Gain& gain) override {
    if (!choice.finish && choice.tokens.size() == gain.first_token && gain.text.empty()) return {};
    JsonWriter out;
    write_choice(out, choice, true);
    return sse_event(out.take());
  }

  std::string last(std::span<const Choice>) override { return std::string(kSseDone); }

 private:
  struct PromptOptions {
    bool logprobs = false;
    std::int64_t start = -1;
    std::size_t most = 0;
    std::vector<std::int32_t> ids = {};
    std::string_view mode = {};
  };

  void write_choice(JsonWriter& out, const Choice& choice, bool streamed) {
    out.begin_object().field("text", choice.text).key("output_ids").begin_array();
    for (const Token& token : choice.tokens) out.value(token.id);
    out.end_array();
    if (streamed) out.field("index", choice.index);
    const std::string& id = prompt_names_[choice.prompt];
    out.key("meta_info").begin_object().field("id", id);
    write_reason(out, choice);
    out.field("prompt_tokens", choice.prompt_ids.size());
    out.field("completion_tokens", choice.tokens.size());
    out.field("cached_tokens", choice.cached_tokens());
    out.field("weight_version", version_name(choice.last_version));
    write_versions(out, choice);
    if (prompts_[choice.prompt].logprobs) write_logprobs(out, choice, prompts_[choice.prompt]);
    if (routed_experts_ && choice.finish) {
      out.field("routed_experts", routed_experts_int32(choice));
    }
    out.end_object().end_object();
  }

  void write_reason(JsonWriter& out, const Choice& choice) {
    out.key("finish_reason");
    if (!choice.finish) {
      out.null();
      return;
    }
    out.begin_object().field("type", finish_reason_name(*choice.finish));
    switch (*choice.finish) {
      case FinishReason::kStop:
        if (!choice.stop_string.empty()) {
          out.field("matched", choice.stop_string);
        } else if (choice.stop_token) {
          out.field("matched", *choice.stop_token);
        } else if (!choice.tokens.empty()) {
          out.field("matched", choice.tokens.back().id);
        }
        break;
      case FinishReason::kLength:
        out.field("length", choice.tokens.size());
        break;
      case FinishReason::kAbort:
        out.field("message", "aborted: the tokens so far are here");
        break;
    }
    out.end_object();
  }

  // [log probability or null, id, text or null]
  void write_triple(JsonWriter& out, const TokenLogprob& token, bool known) {
    out.begin_array();
    known ? out.logprob(token.logprob) : out.null();
    out.value(token.id);
    text_in_logprobs_ ? out.value(token_names_.text(token.id)) : out.null();
    out.end_array();
  }

  void write_top(JsonWriter& out, std::span<const TokenLogprob> top, std::size_t most) {
    out.begin_array();
    for (const TokenLogprob& each : top.first(std::min(most, top.size()))) {
      write_triple(out, each, true);
    }
    out.end_array();
  }

  void write_ids(JsonWriter& out, std::span<const TokenLogprob> top,
                 const std::vector<std::int32_t>& ids) {
    out.begin_array();
    for (const std::int32_t id : ids) {
      for (const TokenLogprob& each : top) {
        if (each.id == id) write_triple(out, each, true);
      }
    }
    out.end_array();
  }

  void write_logprobs(JsonWriter& out, const Choice& choice, const PromptOptions& options) {
    out.field("logprobs_mode", options.mode);
    out.key("output_token_logprobs").begin_array();
    for (const Token& token : choice.tokens) {
      write_triple(out, {.id = token.id, .logprob = token.logprob}, true);
    }
    out.end_array();
    if (options.most > 0) {
      out.key("output_top_logprobs").begin_array();
      for (const auto& top : choice.top) write_top(out, top, options.most);
      out.end_array();
    }
    if (!options.ids.empty()) {
      out.key("output_token_ids_logprobs").begin_array();
      for (const auto& top : choice.top) write_ids(out, top, options.ids);
      out.end_array();
    }
    write_input_logprobs(out, choice, options);
  }

  // From `start` on; the first has none, whatever comes before it.
  void write_input_logprobs(JsonWriter& out, const Choice& choice, const PromptOptions& options) {
    const std::size_t start = options.start < 0 ? choice.prompt_ids.size()
                                                : static_cast<std::size_t>(options.start);
    const auto each = [&](std::string_view key, const auto& write) {
      out.key(key).begin_array();
      for (std::size_t i = start; i < choice.prompt_ids.size(); ++i) {
        write(i, i > start && i - 1 < choice.prompt_logprobs.size());
      }
      out.end_array();
    };
    const auto top = [&choice](std::size_t i) -> std::span<const TokenLogprob> {
      if (!choice.detail || i - 1 >= choice.detail->top.size()) return {};
      return choice.detail->top[i - 1];
    };
    each("input_token_logprobs", [&](std::size_t i, bool known) {
      write_triple(out, {.id = choice.prompt_ids[i],
                         .logprob = known ? choice.prompt_logprobs[i - 1] : 0.0f}, known);
    });
    if (options.most > 0) {
      each("input_top_logprobs", [&](std::size_t i, bool known) {
        known ? write_top(out, top(i), options.most) : void(out.null());
      });
    }
    if (!options.ids.empty()) {
      each("input_token_ids_logprobs", [&](std::size_t i, bool known) {
        known ? write_ids(out, top(i), options.ids) : void(out.null());
      });
    }
  }

  const bool is_list_, text_in_logprobs_, routed_experts_;
  const std::vector<std::string> prompt_names_;
  const ReplyContext context_;
  const TokenNames token_names_;
  std::vector<PromptOptions> prompts_;
};

}  // namespace

std::unique_ptr<ReplyFormat> tokens_reply(const TokensRequest& request, ReplyContext context) {
  return std::make_unique<TokensReply>(request, std::move(context));
}

std::unique_ptr<ReplyFormat> sglang_reply(const SglangRequest& request,
                                          std::vector<std::string> names, ReplyContext context) {
  return std::make_unique<SglangReply>(request, std::move(names), std::move(context));
}

}  // namespace holdfast::serve
