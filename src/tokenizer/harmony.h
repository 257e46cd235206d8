// The harmony chat format of gpt-oss (https://github.com/openai/harmony, docs/format.md): messages
// to token ids. Harmony is a value, immutable; any thread.
//
//   message = <|start|> header <|message|> content <|end|>
//   header  = role[:name] [" to=" recipient] [<|channel|> channel] [" " <|constrain|> type]
//
// An assistant's message to a recipient ends with <|call|> in place of <|end|>. A model may end its
// last message with <|return|>; rendered as history it ends with <|end|> like any other.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::tokenizer {

inline constexpr std::size_t kMaxMessages = 4096;
// Of a role, name, recipient, channel or content type; and of all of a generated header.
inline constexpr std::size_t kMaxHeaderBytes = 512;

enum class Role : std::uint8_t { kSystem, kDeveloper, kUser, kAssistant, kTool };

// "system", "developer", "user", "assistant", "tool".
std::string_view role_name(Role role);
Result<Role> role_of(std::string_view name);

struct Message {
  Role role = Role::kUser;
  std::string name{};          // required for a tool ("functions.get_weather"), else may be empty
  std::string recipient{};     // "functions.get_weather", "assistant", or empty: to all
  std::string channel{};       // "analysis", "commentary", "final", or empty
  std::string content_type{};  // "json", or empty
  std::string content{};

  friend bool operator==(const Message&, const Message&) = default;
};

enum class ReasoningEffort : std::uint8_t { kLow, kMedium, kHigh };
Result<ReasoningEffort> reasoning_effort_of(std::string_view name);

struct SystemPrompt {
  std::string identity = "You are ChatGPT, a large language model trained by OpenAI.";
  std::string knowledge_cutoff = "2024-06";
  std::string current_date;  // "2025-06-28"; no line if empty
  ReasoningEffort effort = ReasoningEffort::kMedium;
  std::vector<std::string> channels = {"analysis", "commentary", "final"};
  bool has_functions = false;  // the developer message describes functions that can be called
};

Message system_message(const SystemPrompt& prompt);
// The developer's instructions ("# Instructions"), then `tools` as they are ("# Tools ..."); each
// may be empty.
Message developer_message(std::string_view instructions, std::string_view tools = {});

// The messages that a model sees of a conversation: analysis is left out once a final message
// follows it, so that only the thoughts of an unfinished turn (tool calls under way) remain.
std::vector<Message> without_past_analysis(std::span<const Message> messages);

// The ids of the format's special tokens.
struct HarmonyTokens {
  std::int32_t start = -1;
  std::int32_t message = -1;
  std::int32_t channel = -1;
  std::int32_t constrain = -1;
  std::int32_t end = -1;
  std::int32_t end_return = -1;  // <|return|>: end of the turn
  std::int32_t call = -1;        // end of a message that calls a tool
};

class Harmony {
 public:
  // Looks the special tokens up by their text. Errors: kMismatch, naming those that the tokenizer
  // lacks or does not mark special.
  static Result<Harmony> create(Tokenizer tokenizer);

  // The ids of all `messages`, as they are. Text never becomes a special token. Errors:
  // kInvalidArgument (naming message and field) for a tool without a name, white space or more than
  // kMaxHeaderBytes in a header field, text that is not UTF-8; kResourceExhausted for more than
  // kMaxMessages.
  Result<std::vector<std::int32_t>> render(std::span<const Message> messages) const;

  // What a model continues: without_past_analysis, then append_reply_header. Errors: as render.
  Result<std::vector<std::int32_t>> render_prompt(std::span<const Message> messages) const;
  // <|start|>assistant.
  Status append_reply_header(std::vector<std::int32_t>& ids) const;

  // Where generation stops: <|return|>, <|call|>.
  std::array<std::int32_t, 2> stop_tokens() const { return {tokens_.end_return, tokens_.call}; }
  const HarmonyTokens& tokens() const { return tokens_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  Harmony(Tokenizer tokenizer, HarmonyTokens tokens)
      : tokenizer_(std::move(tokenizer)), tokens_(tokens) {}

  Status append_text(std::string_view text, EncodeScratch& scratch,
                     std::vector<std::int32_t>& out) const;
  Status append_header(const Message& message, EncodeScratch& scratch,
                       std::vector<std::int32_t>& out) const;

  Tokenizer tokenizer_;
  HarmonyTokens tokens_;
};

}  // namespace holdfast::tokenizer
