// Harmony: the messages of a chat as those of gpt-oss's format, and its channels as parts of a
// reply: final is content, analysis is reasoning, commentary is a call when it names a recipient,
// else (a preamble, meant for the user) content.
#include <algorithm>
#include <iterator>
#include <utility>

#include "api/chat_formats.h"
#include "api/tool_types.h"
#include "base/error.h"
#include "tokenizer/harmony_parser.h"

namespace holdfast::api {
namespace {

using tokenizer::HarmonyParser;
using tokenizer::Message;
using tokenizer::Role;

constexpr std::string_view kFunctions = "functions.";

bool is_instruction(const ChatMessage& message) {
  return message.role == "system" || message.role == "developer";
}

// ------------------------------------------------------------------------------ to the model

// The system message and the developer's; takes the instructions off the front of `messages`.
Status begin_conversation(std::span<const ChatMessage>& messages, const ChatOptions& options,
                          std::vector<Message>& out) {
  if (!options.date.empty() && !is_date(options.date)) {
    return make_error(ErrorCode::kInvalidArgument, "date is {}, expected YYYY-MM-DD",
                      options.date);
  }
  tokenizer::SystemPrompt prompt;
  HF_ASSIGN(prompt.effort, tokenizer::reasoning_effort_of(options.effort));
  prompt.current_date = options.date;
  prompt.has_functions = !options.tools.empty();
  out.push_back(tokenizer::system_message(prompt));
  std::string instructions;
  for (; !messages.empty() && is_instruction(messages.front()); messages = messages.subspan(1)) {
    const std::string& content = messages.front().content;
    if (!instructions.empty() && !content.empty()) instructions += "\n\n";
    instructions += content;
  }
  std::string tools;
  if (!options.tools.empty()) {
    HF_ASSIGN(tools, tools_section(options.tools));
  }
  if (!instructions.empty() || !tools.empty()) {
    out.push_back(tokenizer::developer_message(instructions, tools));
  }
  return {};
}

// Text before calls is a preamble and not yet the answer.
void append_assistant(const ChatMessage& message, std::vector<Message>& out) {
  const auto say = [&](std::string_view channel, const std::string& content) {
    out.push_back({.role = Role::kAssistant, .channel = std::string(channel), .content = content});
  };
  const bool calls = !message.tool_calls.empty();
  if (!message.reasoning.empty()) say("analysis", message.reasoning);
  if (!message.content.empty()) {
    say(calls ? "commentary" : "final", message.content);
  } else if (!calls && message.reasoning.empty()) {
    say("final", "");
  }
  for (const ChatToolCall& call : message.tool_calls) {
    out.push_back({.role = Role::kAssistant,
                   .recipient = std::string(kFunctions) + call.name,
                   .channel = "commentary",
                   .content_type = "json",
                   .content = call.arguments});
  }
}

// The name of the tool that the last call of this id is of.
const std::string* called_tool(std::span<const ChatMessage> before, const std::string& id) {
  for (auto message = before.rbegin(); message != before.rend(); ++message) {
    for (const ChatToolCall& call : message->tool_calls) {
      if (call.id == id) return &call.name;
    }
  }
  return nullptr;
}

Status append_message(std::span<const ChatMessage> messages, std::size_t index,
                      std::vector<Message>& out) {
  const ChatMessage& message = messages[index];
  if (is_instruction(message)) {
    out.push_back(tokenizer::developer_message(message.content));
  } else if (message.role == "assistant") {
    append_assistant(message, out);
  } else if (message.role == "user") {
    out.push_back({.role = Role::kUser, .content = message.content});
  } else {
    const std::string* name = called_tool(messages.first(index), message.tool_call_id);
    if (name == nullptr) {
      return make_error(ErrorCode::kInvalidArgument,
                        "messages[{}].tool_call_id is \"{}\": no assistant's message before it "
                        "makes such a call", index, message.tool_call_id);
    }
    out.push_back({.role = Role::kTool,
                   .name = std::string(kFunctions) + *name,
                   .recipient = "assistant",
                   .channel = "commentary",
                   .content = message.content});
  }
  return {};
}

// ------------------------------------------------------------------------------ from the model

class HarmonyReply : public ChatFormat::Reply {
 public:
  HarmonyReply(const tokenizer::Harmony& harmony, bool continued)
      : tokenizer_(harmony.tokenizer()),
        parser_(harmony, continued ? HarmonyParser::Begin::kInMessage
                                   : HarmonyParser::Begin::kAfterPrompt) {}

  Result<ChatDelta> push(std::int32_t id) override {
    if (parser_.stopped() || !tokenizer_.token_bytes(id).ok()) return ChatDelta{};
    HF_ASSIGN(const tokenizer::HarmonyDelta delta, parser_.push(id));
    return read(delta);
  }
  ChatDelta finish() override { return read(parser_.finish()); }

 private:
  ChatDelta read(const tokenizer::HarmonyDelta& delta) {
    ChatDelta result;
    const Message& message = parser_.current();
    if (delta.began) begin(message, result);
    if (delta.text.empty()) return result;
    if (in_call_) {
      result.calls.push_back({.index = calls_ - 1, .arguments = delta.text});
      return result;
    }
    const bool reasons = message.channel == "analysis";
    std::string& text = reasons ? result.reasoning : result.content;
    bool& has_text = reasons ? has_reasoning_ : has_content_;
    if (fresh_ && has_text) text += '\n';
    text += delta.text;
    has_text = true;
    fresh_ = false;
    return result;
  }

  void begin(const Message& message, ChatDelta& result) {
    std::string_view to = message.recipient;
    in_call_ = !to.empty() && to != "assistant" && to != "user" && to != "all";
    fresh_ = true;
    if (!in_call_) return;
    if (to.starts_with(kFunctions) && to.size() > kFunctions.size()) {
      to.remove_prefix(kFunctions.size());
    }
    result.calls.push_back({.index = calls_++, .name = std::string(to), .arguments = {}});
  }

  tokenizer::Tokenizer tokenizer_;
  HarmonyParser parser_;
  std::size_t calls_ = 0;
  bool in_call_ = false;
  bool fresh_ = true;  // no text of the message under way yet
  bool has_content_ = false;
  bool has_reasoning_ = false;
};

class HarmonyFormat : public ChatFormat {
 public:
  explicit HarmonyFormat(tokenizer::Harmony harmony) : harmony_(std::move(harmony)) {}

  std::string name() const override { return "harmony"; }

  Result<std::vector<std::int32_t>> render(std::span<const ChatMessage> messages,
                                           const ChatOptions& options) const override {
    HF_TRY(check_messages(messages, options));
    std::vector<Message> all;
    std::span<const ChatMessage> rest = messages;
    HF_TRY(begin_conversation(rest, options, all));
    std::size_t last = all.size();  // where the last message begins
    for (std::size_t i = messages.size() - rest.size(); i < messages.size(); ++i) {
      last = all.size();
      HF_TRY(append_message(messages, i, all));
    }
    if (options.continue_final) return render_open(all, last);
    HF_ASSIGN(std::vector<std::int32_t> ids,
              harmony_.render(tokenizer::without_past_analysis(all)));
    if (options.add_generation_prompt) HF_TRY(harmony_.append_reply_header(ids));
    return ids;
  }

  std::vector<std::int32_t> stop_token_ids() const override {
    const auto stop = harmony_.stop_tokens();
    return {stop.begin(), stop.end()};
  }
  using ChatFormat::reply;
  std::unique_ptr<Reply> reply(bool continued) const override {
    return std::make_unique<HarmonyReply>(harmony_, continued);
  }

 private:
  // The open message does not end its turn yet, so the turn's thoughts stay.
  Result<std::vector<std::int32_t>> render_open(const std::vector<Message>& all,
                                                std::size_t last) const {
    std::vector<Message> kept = tokenizer::without_past_analysis(std::span(all).first(last));
    std::copy(all.begin() + static_cast<std::ptrdiff_t>(last), all.end(),
              std::back_inserter(kept));
    HF_ASSIGN(std::vector<std::int32_t> ids, harmony_.render(kept));
    ids.pop_back();  // what ends the last message
    return ids;
  }

  tokenizer::Harmony harmony_;
};

}  // namespace

std::unique_ptr<ChatFormat> harmony_format(tokenizer::Harmony harmony) {
  return std::make_unique<HarmonyFormat>(std::move(harmony));
}

}  // namespace holdfast::api
