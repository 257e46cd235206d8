#include "holdfast/chat.h"

#include <utility>

#include "api/chat_formats.h"
#include "api/tokenizer_impl.h"
#include "api/tool_types.h"
#include "base/error.h"
#include "tokenizer/utf8.h"

namespace holdfast {

Result<std::unique_ptr<ChatFormat>> ChatFormat::open(const Tokenizer& tokenizer,
                                                     std::string_view name) {
  const tokenizer::Tokenizer& tokens = tokenizer.impl_->tokenizer;
  const bool any = name == "auto";
  if (any || name == "harmony") {
    Result<tokenizer::Harmony> harmony = tokenizer::Harmony::create(tokens);
    if (harmony.ok()) return api::harmony_format(std::move(*harmony));
    if (!any) return make_error(ErrorCode::kUnsupported, "{}", harmony.error().message());
  }
  if (any || name == "chatml") {
    Result<std::unique_ptr<ChatFormat>> chatml = api::chatml_format(tokens);
    if (chatml.ok() || !any) return chatml;
  }
  // Other models' tokenizers have <s> and </s>, too; only Mistral's newer ones have [INST].
  if (name == "mistral" || (any && tokens.id_of_token("[INST]"))) {
    Result<std::unique_ptr<ChatFormat>> mistral = api::mistral_format(tokens);
    if (mistral.ok() || !any) return mistral;
  }
  if (any || name == "plain") return api::plain_format(tokens);
  return make_error(ErrorCode::kInvalidArgument,
                    "chat format \"{}\" is not known (harmony, chatml, mistral, plain, auto)",
                    name);
}

namespace api {
namespace {

Status check_text(std::size_t message, std::string_view name, std::string_view text) {
  const std::size_t bad = tokenizer::find_invalid_utf8(text);
  if (bad == std::string_view::npos) return {};
  return make_error(ErrorCode::kInvalidArgument, "messages[{}].{} is not UTF-8 at byte {}",
                    message, name, bad);
}

Status check_calls(const ChatMessage& message, std::size_t index) {
  if (!message.tool_calls.empty() && message.role != "assistant") {
    return make_error(ErrorCode::kInvalidArgument,
                      "messages[{}].tool_calls: only an assistant calls tools, the role is {}",
                      index, message.role);
  }
  for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ChatToolCall& call = message.tool_calls[i];
    if (!is_tool_name(call.name)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "messages[{}].tool_calls[{}].name is \"{}\", expected 1 to {} letters, "
                        "digits, '_', '-' or '.'",
                        index, i, call.name.substr(0, kMaxToolNameBytes), kMaxToolNameBytes);
    }
    HF_TRY(check_text(index, fmt::format("tool_calls[{}].arguments", i), call.arguments));
  }
  return {};
}

}  // namespace

Status check_messages(std::span<const ChatMessage> messages, const ChatOptions& options) {
  if (messages.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "messages is empty, expected at least one");
  }
  if (messages.size() > tokenizer::kMaxMessages) {
    return make_error(ErrorCode::kResourceExhausted, "messages holds {}; at most {} are allowed",
                      messages.size(), tokenizer::kMaxMessages);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (!tokenizer::role_of(message.role).ok()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "messages[{}].role is \"{}\", expected system, developer, user, assistant "
                        "or tool", i, message.role);
    }
    HF_TRY(check_text(i, "content", message.content));
    HF_TRY(check_text(i, "reasoning", message.reasoning));
    HF_TRY(check_calls(message, i));
  }
  if (options.continue_final && messages.back().role != "assistant") {
    return make_error(ErrorCode::kInvalidArgument,
                      "messages[{}].role is {}: only a last message of the assistant's can be "
                      "continued", messages.size() - 1, messages.back().role);
  }
  return {};
}

bool is_date(std::string_view text) {
  if (text.size() != 10) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 4 || i == 7;
    if (dash ? text[i] != '-' : text[i] < '0' || text[i] > '9') return false;
  }
  return true;
}

}  // namespace api
}  // namespace holdfast
