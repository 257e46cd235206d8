// The formats whose replies are text alone: chatml and plain.
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

Result<std::unique_ptr<ChatFormat>> chatml_format(const tokenizer::Tokenizer& tokenizer) {
  constexpr std::array<std::string_view, 2> kNames = {"<|im_start|>", "<|im_end|>"};
  std::array<std::int32_t, 2> ids{};
  std::vector<std::string_view> missing;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    ids[i] = tokenizer.id_of_token(kNames[i]).value_or(-1);
    if (!tokenizer.is_special(ids[i])) missing.push_back(kNames[i]);
  }
  if (!missing.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      "the tokenizer ({} tokens) cannot write chatml: it lacks special tokens {}",
                      tokenizer.vocab_size(), fmt::join(missing, ", "));
  }
  return std::unique_ptr<ChatFormat>(
      std::make_unique<ChatmlFormat>(tokenizer, ids[0], ids[1]));
}

std::unique_ptr<ChatFormat> plain_format(const tokenizer::Tokenizer& tokenizer) {
  return std::make_unique<PlainFormat>(tokenizer);
}

}  // namespace holdfast::api
