// The formats whose replies are text alone: chatml, mistral and plain.
#include <array>
#include <utility>

#include "api/chat_formats.h"
#include "base/error.h"

namespace holdfast::api {
namespace {

class TextReply : public ChatFormat::Reply {
 public:
  TextReply(tokenizer::Tokenizer tokenizer, std::int32_t end)
      : tokenizer_(std::move(tokenizer)), decoder_(tokenizer_, {.skip_special = true}), end_(end) {}

  Result<ChatDelta> push(std::int32_t id) override {
    ended_ = ended_ || id == end_;
    if (ended_ || !tokenizer_.token_bytes(id).ok()) return ChatDelta{};
    HF_ASSIGN(std::string text, decoder_.push(id));
    return ChatDelta{.content = std::move(text)};
  }
  ChatDelta finish() override { return {.content = decoder_.finish()}; }

 private:
  tokenizer::Tokenizer tokenizer_;
  tokenizer::StreamDecoder decoder_;
  std::int32_t end_;  // -1: nothing ends the turn
  bool ended_ = false;
};

Status check_without_tools(std::string_view format, std::span<const ChatMessage> messages,
                           const ChatOptions& options) {
  bool tools = !options.tools.empty();
  for (const ChatMessage& message : messages) {
    tools = tools || message.role == "tool" || !message.tool_calls.empty();
  }
  if (!tools) return {};
  return make_error(ErrorCode::kUnsupported,
                    "the {} format has no tools; leave tools, tool_calls and tool messages out",
                    format);
}

// <|im_start|>role\ncontent<|im_end|>\n
class ChatmlFormat : public ChatFormat {
 public:
  ChatmlFormat(tokenizer::Tokenizer tokenizer, std::int32_t start, std::int32_t end)
      : tokenizer_(std::move(tokenizer)), start_(start), end_(end) {}

  std::string name() const override { return "chatml"; }

  Result<std::vector<std::int32_t>> render(std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const override {
    HF_TRY(check_messages(messages, options));
    HF_TRY(check_without_tools(name(), messages, options));
    std::vector<std::int32_t> ids;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const bool developer = messages[i].role == "developer";  // a name that the format lacks
      const std::string role = developer ? "system" : messages[i].role;
      HF_TRY(append(start_, role + "\n" + messages[i].content, ids));
      if (options.continue_final && i + 1 == messages.size()) return ids;
      HF_TRY(append(end_, "\n", ids));
    }
    if (options.add_generation_prompt) HF_TRY(append(start_, "assistant\n", ids));
    return ids;
  }

  std::vector<std::int32_t> stop_token_ids() const override { return {end_}; }
  using ChatFormat::reply;
  std::unique_ptr<Reply> reply(bool /*continued*/) const override {
    return std::make_unique<TextReply>(tokenizer_, end_);
  }

 private:
  Status append(std::int32_t special, const std::string& text,
                std::vector<std::int32_t>& ids) const {
    HF_ASSIGN(const auto more, tokenizer_.encode(text, {.parse_special = false}));
    ids.push_back(special);
    ids.insert(ids.end(), more.begin(), more.end());
    return {};
  }

  tokenizer::Tokenizer tokenizer_;
  std::int32_t start_;
  std::int32_t end_;
};

// <s>[INST] question [/INST] answer</s>[INST] question [/INST]: the user's turns in brackets; what
// the system says stands before the next question. The brackets are special tokens where the
// tokenizer has them (Mistral's since v3; no blank before [/INST] then), else text.
class MistralFormat : public ChatFormat {
 public:
  struct Ids {
    std::int32_t begin, end;
    std::int32_t open, close;  // -1: text
  };
  MistralFormat(tokenizer::Tokenizer tokenizer, Ids ids)
      : tokenizer_(std::move(tokenizer)), ids_(ids) {}

  std::string name() const override { return "mistral"; }

  Result<std::vector<std::int32_t>> render(std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const override {
    HF_TRY(check_messages(messages, options));
    HF_TRY(check_without_tools(name(), messages, options));
    HF_TRY(check_turns(messages));
    std::vector<std::int32_t> ids{ids_.begin};
    std::string before;  // what the system said
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (message.role == "assistant") {
        HF_TRY(append(" " + message.content, ids));
        if (options.continue_final && i + 1 == messages.size()) return ids;
        ids.push_back(ids_.end);
      } else if (message.role == "user") {
        HF_TRY(append_question(before + message.content, ids));
        before.clear();
      } else {
        before += message.content + "\n\n";
      }
    }
    return ids;
  }

  std::vector<std::int32_t> stop_token_ids() const override { return {ids_.end}; }
  using ChatFormat::reply;
  std::unique_ptr<Reply> reply(bool /*continued*/) const override {
    return std::make_unique<TextReply>(tokenizer_, ids_.end);
  }

 private:
  // Questions and answers by turns, the system before questions.
  static Status check_turns(std::span<const ChatMessage> messages) {
    bool asked = false;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const std::string& role = messages[i].role;
      const bool answers = role == "assistant";
      if (answers != asked) {
        return make_error(ErrorCode::kInvalidArgument,
                          "messages[{}].role is {}, and the mistral format expects {} there", i,
                          role, asked ? "assistant" : "user or system");
      }
      if (role == "user" || answers) asked = !answers;
    }
    const std::string& last = messages.back().role;
    if (last == "user" || last == "assistant") return {};
    return make_error(ErrorCode::kInvalidArgument,
                      "the last message's role is {}, and the mistral format has it before a "
                      "user's only", last);
  }
  Status append(const std::string& text, std::vector<std::int32_t>& ids) const {
    HF_ASSIGN(const auto more, tokenizer_.encode(text, {.parse_special = false}));
    ids.insert(ids.end(), more.begin(), more.end());
    return {};
  }
  Status append_question(const std::string& text, std::vector<std::int32_t>& ids) const {
    if (ids_.open < 0) return append("[INST] " + text + " [/INST]", ids);
    ids.push_back(ids_.open);
    HF_TRY(append(" " + text, ids));
    ids.push_back(ids_.close);
    return {};
  }

  tokenizer::Tokenizer tokenizer_;
  Ids ids_;
};

class PlainFormat : public ChatFormat {
 public:
  explicit PlainFormat(tokenizer::Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::string name() const override { return "plain"; }

  Result<std::vector<std::int32_t>> render(std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const override {
    HF_TRY(check_messages(messages, options));
    HF_TRY(check_without_tools(name(), messages, options));
    std::string text;
    for (const ChatMessage& message : messages) text += message.content;
    if (text.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "messages hold no text, and the plain format adds none");
    }
    return tokenizer_.encode(text, {.parse_special = false});
  }

  std::vector<std::int32_t> stop_token_ids() const override { return {}; }
  using ChatFormat::reply;
  std::unique_ptr<Reply> reply(bool /*continued*/) const override {
    return std::make_unique<TextReply>(tokenizer_, -1);
  }

 private:
  tokenizer::Tokenizer tokenizer_;
};

}  // namespace

namespace {

// The ids of two special tokens. Errors: kUnsupported naming those that are missing.
Result<std::array<std::int32_t, 2>> special_ids(const tokenizer::Tokenizer& tokenizer,
                                                std::string_view format,
                                                const std::array<std::string_view, 2>& names) {
  std::array<std::int32_t, 2> ids{};
  std::vector<std::string_view> missing;
  for (std::size_t i = 0; i < names.size(); ++i) {
    ids[i] = tokenizer.id_of_token(names[i]).value_or(-1);
    if (!tokenizer.is_special(ids[i])) missing.push_back(names[i]);
  }
  if (missing.empty()) return ids;
  return make_error(ErrorCode::kUnsupported,
                    "the tokenizer ({} tokens) cannot write {}: it lacks special tokens {}",
                    tokenizer.vocab_size(), format, fmt::join(missing, ", "));
}

}  // namespace

Result<std::unique_ptr<ChatFormat>> chatml_format(const tokenizer::Tokenizer& tokenizer) {
  HF_ASSIGN(const auto ids, special_ids(tokenizer, "chatml", {"<|im_start|>", "<|im_end|>"}));
  return std::unique_ptr<ChatFormat>(
      std::make_unique<ChatmlFormat>(tokenizer, ids[0], ids[1]));
}

Result<std::unique_ptr<ChatFormat>> mistral_format(const tokenizer::Tokenizer& tokenizer) {
  HF_ASSIGN(const auto ids, special_ids(tokenizer, "mistral", {"<s>", "</s>"}));
  const auto brackets = special_ids(tokenizer, "mistral", {"[INST]", "[/INST]"});
  return std::unique_ptr<ChatFormat>(std::make_unique<MistralFormat>(
      tokenizer, MistralFormat::Ids{.begin = ids[0],
                                    .end = ids[1],
                                    .open = brackets.ok() ? (*brackets)[0] : -1,
                                    .close = brackets.ok() ? (*brackets)[1] : -1}));
}

std::unique_ptr<ChatFormat> plain_format(const tokenizer::Tokenizer& tokenizer) {
  return std::make_unique<PlainFormat>(tokenizer);
}

}  // namespace holdfast::api
