#include "serve/completion_reply.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace holdfast::serve {

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string_view logprobs_mode_name(LogprobsMode mode) {
  return mode == LogprobsMode::kRaw ? "raw" : "processed";
}

void write_head(JsonWriter& out, const ReplyContext& context, std::string_view object) {
  out.field("id", context.id).field("object", object);
  out.field("created", context.created_s).field("model", context.model);
}

void write_finish(JsonWriter& out, const Choice& choice, const ReplyContext& context,
                  std::string_view reason) {
  out.key("finish_reason");
  if (reason.empty()) {
    out.null();
  } else {
    out.value(reason);
  }
  out.key("stop_reason");
  const auto is_eos = [&context](std::int32_t id) {
    const auto& all = context.eos_token_ids;
    return std::find(all.begin(), all.end(), id) != all.end();
  };
  if (!choice.stop_string.empty()) {
    out.value(choice.stop_string);
  } else if (choice.stop_token && !is_eos(*choice.stop_token)) {
    out.value(*choice.stop_token);
  } else {
    out.null();
  }
}

void write_token_ids(JsonWriter& out, const Choice& choice, std::size_t first) {
  out.key("token_ids").begin_array();
  for (std::size_t i = first; i < choice.tokens.size(); ++i) out.value(choice.tokens[i].id);
  out.end_array();
}

std::string usage_chunk(const ReplyContext& context, std::string_view object, const Usage& usage) {
  JsonWriter out;
  out.begin_object();
  write_head(out, context, object);
  out.key("choices").begin_array().end_array().key("usage");
  write_usage(out, usage);
  out.end_object();
  return sse_event(out.take());
}

namespace {

constexpr std::string_view kObject = "text_completion";

class CompletionReply final : public ReplyFormat {
 public:
  CompletionReply(const CompletionRequest& request, ReplyContext context)
      : echo_(request.echo),
        logprobs_(request.logprobs.has_value()),
        prompt_logprobs_(request.asked_prompt_logprobs),
        token_ids_(request.return_token_ids),
        routed_experts_(request.engine.routed_experts),
        include_usage_(request.include_usage),
        continuous_usage_(request.continuous_usage),
        mode_(logprobs_mode_name(request.engine.logprobs_mode)),
        context_(std::move(context)),
        names_(context_.tokenizer, request.tokens_as_ids) {
    if (!echo_) return;
    for (const Prompt& prompt : request.prompts) {
      const bool whole = prompt.is_text && !request.truncate_prompt_tokens;
      const Result<std::string> text =
          whole ? Result<std::string>(prompt.text) : context_.tokenizer.decode(prompt.ids);
      prompt_texts_.push_back(text.ok() ? *text : std::string());
    }
  }

  std::string body(std::span<const Choice> choices) override {
    JsonWriter out;
    out.begin_object();
    write_head(out, context_, kObject);
    out.key("choices").begin_array();
    for (const Choice& choice : choices) {
      Told told(names_);
      write_choice(out, choice, {.text = choice.text}, told);
    }
    out.end_array();
    if (logprobs_ || prompt_logprobs_) out.field("logprobs_mode", mode_);
    out.key("usage");
    write_usage(out, usage_of(choices));
    out.end_object();
    return out.take();
  }

  std::string chunk(const Choice& choice, const Gain& gain) override {
    // Nothing of a token need have become text yet.
    const bool tokens_show = logprobs_ || token_ids_;
    const bool has_news = choice.finish || !gain.text.empty() ||
                          (tokens_show && choice.tokens.size() > gain.first_token);
    if (!has_news) return {};
    while (told_.size() <= choice.index) told_.emplace_back(names_);
    JsonWriter out;
    out.begin_object();
    write_head(out, context_, kObject);
    out.key("choices").begin_array();
    write_choice(out, choice, gain, told_[choice.index]);
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
    if (include_usage_) bytes = usage_chunk(context_, kObject, usage_of(choices));
    return bytes += kSseDone;
  }

 private:
  // How far one choice has been told.
  struct Told {
    explicit Told(const TokenNames& names) : columns(names) {}
    bool began = false;
    LogprobColumns columns;
  };

  void write_choice(JsonWriter& out, const Choice& choice, const Gain& gain, Told& told) {
    const bool first = !std::exchange(told.began, true);
    out.begin_object().field("index", choice.index);
    if (first && echo_) {
      out.field("text", prompt_texts_[choice.prompt] + std::string(gain.text));
    } else {
      out.field("text", gain.text);
    }
    out.key("logprobs");
    if (logprobs_) {
      if (first && echo_) told.columns.add_prompt(choice);
      told.columns.add_tokens(choice, gain.first_token);
      told.columns.write(out);
    } else {
      out.null();
    }
    write_finish(out, choice, context_,
                 choice.finish ? finish_reason_name(*choice.finish) : std::string_view());
    if (token_ids_) {
      if (first) out.array("prompt_token_ids", choice.prompt_ids);
      write_token_ids(out, choice, gain.first_token);
    }
    if (choice.finish) {
      if (prompt_logprobs_) {
        out.key("prompt_logprobs");
        write_prompt_logprobs(out, choice, names_);
      }
      if (routed_experts_) {
        out.field("routed_experts", routed_experts_npy(choice, context_.routing));
      }
      write_versions(out, choice);
    }
    out.end_object();
  }

  const bool echo_, logprobs_, prompt_logprobs_, token_ids_, routed_experts_;
  const bool include_usage_, continuous_usage_;
  const std::string_view mode_;
  const ReplyContext context_;
  const TokenNames names_;
  std::vector<std::string> prompt_texts_;
  std::vector<Told> told_;
};

}  // namespace

std::unique_ptr<ReplyFormat> completion_reply(const CompletionRequest& request,
                                              ReplyContext context) {
  return std::make_unique<CompletionReply>(request, std::move(context));
}

}  // namespace holdfast::serve
