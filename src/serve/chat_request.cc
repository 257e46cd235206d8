#include "serve/chat_request.h"

#include <fmt/format.h>

#include <utility>

namespace holdfast::serve {
namespace {

// A string, or parts of which each is text; they are joined by line ends.
void read_content(FieldReader& in, std::string& into) {
  const auto found = in.value("content");
  if (!found) return;
  if (const auto text = found->string()) {
    into = *text;
    return;
  }
  if (found->kind() != JsonKind::kArray) {
    in.fail("content", fmt::format("{} is {}; expected a string or an array of text parts",
                                   in.path_of("content"), found->brief()));
    return;
  }
  std::size_t index = 0;
  for (const JsonValue& element : found->elements()) {
    FieldReader part(element, fmt::format("{}[{}]", in.path_of("content"), index), in.errors());
    std::string type, text;
    part.one_of("type", type, {"text", "input_text", "output_text"});
    if (!part.has("type")) part.fail("type", part.path_of("type") + " is missing");
    part.string("text", text, 1u << 30);
    part.ignore({"annotations"});
    part.finish();
    if (index++ > 0) into += '\n';
    into += text;
  }
}

void read_tool_calls(FieldReader& in, std::vector<ChatToolCall>& calls) {
  const auto found = in.value("tool_calls");
  if (!found) return;
  if (found->kind() != JsonKind::kArray) {
    in.fail("tool_calls", fmt::format("{} is {}; expected an array", in.path_of("tool_calls"),
                                      found->brief()));
    return;
  }
  for (const JsonValue& element : found->elements()) {
    const std::string path = fmt::format("{}[{}]", in.path_of("tool_calls"), calls.size());
    FieldReader each(element, path, in.errors());
    ChatToolCall call;
    std::string type = "function";
    each.string("id", call.id, kMaxNameBytes);
    each.one_of("type", type, {"function"});
    each.ignore({"index"});
    const auto function = each.value("function");
    if (!function) {
      each.fail("function", each.path_of("function") + " is missing");
      return;
    }
    FieldReader inner(*function, each.path_of("function"), in.errors());
    inner.string("name", call.name, kMaxNameBytes);
    if (call.name.empty()) inner.fail("name", inner.path_of("name") + " is missing");
    // OpenAI has them as text; templates of others as an object.
    if (const auto arguments = inner.value("arguments")) {
      call.arguments = arguments->string() ? std::string(*arguments->string()) : arguments->text();
    }
    inner.finish();
    each.finish();
    calls.push_back(std::move(call));
  }
}

ChatMessage read_message(JsonValue value, std::size_t index, RequestErrors& errors) {
  ChatMessage message;
  FieldReader in(value, fmt::format("messages[{}]", index), errors);
  in.string("role", message.role, kMaxNameBytes);
  if (!in.has("role")) in.fail("role", in.path_of("role") + " is missing");
  read_content(in, message.content);
  if (!in.string("reasoning", message.reasoning, 1u << 30)) {
    in.string("reasoning_content", message.reasoning, 1u << 30);
  }
  in.ignore({"reasoning_content", "name", "annotations"});
  in.string("tool_call_id", message.tool_call_id, kMaxNameBytes);
  read_tool_calls(in, message.tool_calls);
  in.refuse("refusal", "this server does not have it; leave it out");
  in.refuse("audio", "this server does not have it; leave it out");
  in.refuse("function_call", "use tool_calls");
  in.finish();
  return message;
}

void read_tools(FieldReader& in, std::vector<ChatTool>& tools) {
  const auto found = in.value("tools");
  if (!found) return;
  if (found->kind() != JsonKind::kArray || found->size() > kMaxTools) {
    in.fail("tools", fmt::format("{} is {}; expected an array of at most {} tools",
                                 in.path_of("tools"), found->brief(), kMaxTools));
    return;
  }
  for (const JsonValue& element : found->elements()) {
    FieldReader each(element, fmt::format("{}[{}]", in.path_of("tools"), tools.size()),
                     in.errors());
    std::string type;
    each.one_of("type", type, {"function"});
    const auto function = each.value("function");
    if (!function) {
      each.fail("function", each.path_of("function") + " is missing");
      return;
    }
    each.finish();
    FieldReader inner(*function, each.path_of("function"), in.errors());
    ChatTool tool;
    inner.string("name", tool.name, kMaxNameBytes);
    if (tool.name.empty()) inner.fail("name", inner.path_of("name") + " is missing");
    inner.string("description", tool.description);
    if (const auto parameters = inner.value("parameters")) {
      if (parameters->kind() != JsonKind::kObject) {
        inner.fail("parameters", fmt::format("{} is {}; expected an object (a JSON schema)",
                                             inner.path_of("parameters"), parameters->brief()));
      }
      if (parameters->size() > 0) tool.parameters = parameters->text();
    }
    inner.refuse("strict", "output cannot be constrained here; leave it out");
    inner.finish();
    tools.push_back(std::move(tool));
  }
}

// "auto" and "none"; a call cannot be forced without constrained output.
void read_tool_choice(FieldReader& in, std::vector<ChatTool>& tools) {
  const auto choice = in.value("tool_choice");
  if (!choice) return;
  const auto text = choice->string();
  if (text && *text == "auto") return;
  if (text && *text == "none") {
    tools.clear();
    return;
  }
  in.fail("tool_choice", fmt::format("{} is {}; expected \"auto\" or \"none\": a call cannot be "
                                     "forced here, as output cannot be constrained",
                                     in.path_of("tool_choice"), choice->brief()));
}

void read_template_options(FieldReader& in, ChatOptions& options) {
  in.one_of("reasoning_effort", options.effort, {"low", "medium", "high"});
  if (const auto given = in.value("chat_template_kwargs")) {
    FieldReader inner(*given, in.path_of("chat_template_kwargs"), in.errors());
    inner.one_of("reasoning_effort", options.effort, {"low", "medium", "high"});
    inner.string("current_date", options.date, 32);
    inner.finish();
  }
  in.boolean("add_generation_prompt", options.add_generation_prompt);
  in.boolean("continue_final_message", options.continue_final);
  if (options.continue_final && !in.has("add_generation_prompt")) {
    options.add_generation_prompt = false;
  }
  if (options.continue_final && options.add_generation_prompt) {
    in.fail("continue_final_message", "continue_final_message and add_generation_prompt are both "
                                      "true; expected one of them");
  }
  in.refuse("chat_template", "the format is the server's own (--chat-format); leave it out");
  in.refuse("documents", "this server does not have it; leave it out");
}

}  // namespace

void read_conversation(FieldReader& in, Conversation& conversation) {
  const auto messages = in.value("messages");
  if (!messages) {
    in.fail("messages", "messages is missing");
  } else if (messages->kind() != JsonKind::kArray || messages->size() == 0 ||
             messages->size() > kMaxMessages) {
    in.fail("messages", fmt::format("messages is {}; expected an array of 1 to {} messages",
                                    messages->brief(), kMaxMessages));
  } else {
    for (const JsonValue& message : messages->elements()) {
      if (in.errors().any()) break;
      conversation.messages.push_back(
          read_message(message, conversation.messages.size(), in.errors()));
    }
  }
  read_tools(in, conversation.options.tools);
  read_tool_choice(in, conversation.options.tools);
  read_template_options(in, conversation.options);
}

ChatRequest parse_chat(JsonValue body, const RequestLimits& limits, RequestErrors& errors) {
  ChatRequest request;
  FieldReader in(body, "", errors);
  read_envelope(in, request);
  read_conversation(in, request.conversation);
  read_sampling(in, request, limits);
  read_prompt_logprobs(in, request.engine, limits);
  read_openai_extras(in, request, limits);
  std::int64_t tokens = 0;
  if (in.integer("max_completion_tokens", tokens, {0, 1 << 30})) request.max_tokens = tokens;
  in.boolean("include_reasoning", request.include_reasoning);
  in.boolean("logprobs", request.logprobs);
  std::int64_t top = 0;
  if (in.integer("top_logprobs", top, logprobs_range(limits)) && top != 0 && !request.logprobs) {
    in.fail("top_logprobs", fmt::format("top_logprobs is {} and logprobs is not true; expected "
                                        "both or none", top));
  }
  Request& engine = request.engine;
  if (request.logprobs) engine.top_logprobs = static_cast<std::int32_t>(top);
  if (request.stream && engine.prompt_logprobs) {
    in.fail("prompt_logprobs", "prompt_logprobs do not come in a stream; leave stream out");
  }
  // Text is the chat format's, but stop strings are looked for in the engine's.
  engine.want_text = false;
  in.ignore({"parallel_tool_calls", "verbosity"});
  for (const std::string_view name : {"echo", "functions", "function_call", "audio", "prediction",
                                      "web_search_options"}) {
    in.refuse(name, "this server does not have it; leave it out");
  }
  if (const auto modalities = in.value("modalities");
      modalities && modalities->text() != R"(["text"])") {
    in.fail("modalities", "modalities is not [\"text\"], which is all that this server has");
  }
  refuse_unsupported(in);
  in.finish();
  return request;
}

void render_conversation(ChatRequest& request, const ChatFormat& format, RequestErrors& errors) {
  if (errors.any()) return;
  const Conversation& conversation = request.conversation;
  auto ids = format.render(conversation.messages, conversation.options);
  if (!ids.ok()) {
    errors.add("messages", ids.error().message());
    return;
  }
  request.prompts.push_back({.ids = std::move(*ids)});
  std::vector<std::int32_t>& stops = request.engine.stop_token_ids;
  for (const std::int32_t id : format.stop_token_ids()) {
    if (!request.engine.ignore_eos && stops.size() < kMaxStopTokens) stops.push_back(id);
  }
}

}  // namespace holdfast::serve
