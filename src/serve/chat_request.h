// /v1/chat/completions: a body becomes a ChatRequest, or one error. Pure functions; I/O threads.
#pragma once

#include <string>
#include <vector>

#include "holdfast/chat.h"
#include "serve/request_fields.h"

namespace holdfast::serve {

inline constexpr std::size_t kMaxMessages = 4096;
inline constexpr std::size_t kMaxTools = 512;

struct Conversation {
  std::vector<ChatMessage> messages = {};
  ChatOptions options = {};
};

struct ChatRequest : CommonRequest {
  Conversation conversation = {};
  bool logprobs = false;
  bool include_reasoning = true;
};

ChatRequest parse_chat(JsonValue body, const RequestLimits& limits, RequestErrors& errors);
// messages, tools, tool_choice, reasoning_effort, chat_template_kwargs, add_generation_prompt,
// continue_final_message: what /tokenize takes as well.
void read_conversation(FieldReader& in, Conversation& conversation);
// Renders it as the request's one prompt. What the format refuses is an error of "messages".
void render_conversation(ChatRequest& request, const ChatFormat& format, RequestErrors& errors);

}  // namespace holdfast::serve
