// ChatFormat: conversations in a model's own format: messages to token ids, and the ids of a reply
// to content, reasoning and tool calls. Immutable; any thread. A Reply belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

class Tokenizer;

struct ChatToolCall {
  std::string id = {};         // of the caller's choosing; not part of any format
  std::string name = {};       // "get_weather"
  std::string arguments = {};  // JSON text, as the model wrote it
};

struct ChatMessage {
  std::string role = {};          // "system", "developer", "user", "assistant", "tool"
  std::string content = {};
  std::string reasoning = {};     // of an assistant; dropped by formats that drop it
  std::string tool_call_id = {};  // of a tool's answer: which call it answers
  std::vector<ChatToolCall> tool_calls = {};  // of an assistant
};

struct ChatTool {
  std::string name = {};
  std::string description = {};
  std::string parameters = {};  // a JSON schema, as text; empty: no arguments
};

struct ChatOptions {
  std::vector<ChatTool> tools = {};
  std::string effort = "medium";      // low, medium, high
  std::string date = {};              // YYYY-MM-DD; empty: no line
  bool add_generation_prompt = true;  // end with the header of the assistant's turn
  bool continue_final = false;        // leave the last message open instead
};

// What a token of a reply adds.
struct ChatDelta {
  std::string content = {};
  std::string reasoning = {};
  // A call begins (name set, arguments empty) or goes on (name empty, more arguments).
  struct Call {
    std::size_t index = 0;
    std::string name = {};
    std::string arguments = {};
  };
  std::vector<Call> calls = {};
};

class ChatFormat {
 public:
  // `name`: "harmony" (gpt-oss), "chatml" (Qwen), "mistral" (Mixtral: [INST]), "plain" (contents,
  // one after another), or "auto": the first of them whose special tokens the tokenizer has (for
  // mistral [INST]), else plain. The tokenizer must outlive the format. Errors: kUnsupported naming
  // a special token that is missing, kInvalidArgument for another name.
  static Result<std::unique_ptr<ChatFormat>> open(const Tokenizer& tokenizer,
                                                  std::string_view name);
  virtual ~ChatFormat() = default;
  virtual std::string name() const = 0;
  // Instructions of the first messages (system, developer) stand where the format has them; text
  // never becomes a special token. Errors: kInvalidArgument naming message and field (an unknown
  // role, a tool's answer without its call, no messages, text that is not UTF-8, continue_final
  // after another's message than the assistant's); kUnsupported (tools where the format has none);
  // kResourceExhausted over a limit on messages or tools.
  virtual Result<std::vector<std::int32_t>> render(std::span<const ChatMessage> messages,
                                                   const ChatOptions& options) const = 0;
  virtual std::vector<std::int32_t> stop_token_ids() const = 0;

  // Total: whatever a model writes becomes content at the worst. Messages that go to the same place
  // are told apart by a line end between them.
  class Reply {
   public:
    virtual ~Reply() = default;
    // An id that no token has adds nothing, nor does one behind the end of the turn.
    virtual Result<ChatDelta> push(std::int32_t id) = 0;
    virtual ChatDelta finish() = 0;  // what was held back
  };
  // Reads what follows a rendered prompt; `continued`: one that continue_final left open, which
  // goes on in the content.
  virtual std::unique_ptr<Reply> reply(bool continued) const = 0;
  std::unique_ptr<Reply> reply() const { return reply(false); }
};

}  // namespace holdfast
