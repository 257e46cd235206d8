#include "tokenizer/harmony.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace holdfast::tokenizer {
namespace {

constexpr std::array<std::pair<Role, std::string_view>, 5> kRoles = {{
    {Role::kSystem, "system"},
    {Role::kDeveloper, "developer"},
    {Role::kUser, "user"},
    {Role::kAssistant, "assistant"},
    {Role::kTool, "tool"},
}};

constexpr std::array<std::pair<ReasoningEffort, std::string_view>, 3> kEfforts = {{
    {ReasoningEffort::kLow, "low"},
    {ReasoningEffort::kMedium, "medium"},
    {ReasoningEffort::kHigh, "high"},
}};

template <typename Table>
auto find_by_name(const Table& table, std::string_view name) {
  return std::find_if(table.begin(), table.end(),
                      [&](const auto& entry) { return entry.second == name; });
}

// A field of a header must not read as the start of the next one.
Status check_field(std::string_view field, std::string_view value) {
  if (value.size() > kMaxHeaderBytes) {
    return make_error(ErrorCode::kInvalidArgument, "{} is {} bytes long; at most {} are allowed",
                      field, value.size(), kMaxHeaderBytes);
  }
  if (value.find_first_of(" \t\r\n") != std::string_view::npos) {
    return make_error(ErrorCode::kInvalidArgument, "{} \"{}\" holds white space", field, value);
  }
  return {};
}

Status check_header(const Message& message) {
  HF_TRY(check_field("name", message.name));
  HF_TRY(check_field("recipient", message.recipient));
  HF_TRY(check_field("channel", message.channel));
  HF_TRY(check_field("content_type", message.content_type));
  if (message.role == Role::kTool && message.name.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a tool's message needs the tool's name (as in \"functions.get_weather\")");
  }
  return {};
}

}  // namespace

std::string_view role_name(Role role) { return kRoles[static_cast<std::size_t>(role)].second; }

Result<Role> role_of(std::string_view name) {
  const auto found = find_by_name(kRoles, name);
  if (found != kRoles.end()) return found->first;
  return make_error(ErrorCode::kInvalidArgument,
                    "role \"{}\" is not known (system, developer, user, assistant, tool)", name);
}

Result<ReasoningEffort> reasoning_effort_of(std::string_view name) {
  const auto found = find_by_name(kEfforts, name);
  if (found != kEfforts.end()) return found->first;
  return make_error(ErrorCode::kInvalidArgument,
                    "reasoning effort \"{}\" is not known (low, medium, high)", name);
}

Message system_message(const SystemPrompt& prompt) {
  std::string text = fmt::format("{}\nKnowledge cutoff: {}", prompt.identity,
                                 prompt.knowledge_cutoff);
  if (!prompt.current_date.empty()) text += "\nCurrent date: " + prompt.current_date;
  const std::string_view effort = kEfforts[static_cast<std::size_t>(prompt.effort)].second;
  text += fmt::format("\n\nReasoning: {}", effort);
  if (!prompt.channels.empty()) {
    text += fmt::format(
        "\n\n# Valid channels: {}. Channel must be included for every message.",
        fmt::join(prompt.channels, ", "));
    if (prompt.has_functions) {
      text += "\nCalls to these tools must go to the commentary channel: 'functions'.";
    }
  }
  return {.role = Role::kSystem, .content = std::move(text)};
}

Message developer_message(std::string_view instructions, std::string_view tools) {
  std::string text;
  if (!instructions.empty() || tools.empty()) {
    text = fmt::format("# Instructions\n\n{}", instructions);
  }
  if (!text.empty() && !tools.empty()) text += "\n\n";
  return {.role = Role::kDeveloper, .content = text.append(tools)};
}

std::vector<Message> without_past_analysis(std::span<const Message> messages) {
  const auto is_final = [](const Message& message) {
    return message.role == Role::kAssistant && message.channel == "final";
  };
  const auto last_final = std::find_if(messages.rbegin(), messages.rend(), is_final).base();
  std::vector<Message> kept;
  for (auto message = messages.begin(); message != messages.end(); ++message) {
    const bool past = message < last_final;
    if (!past || message->role != Role::kAssistant || message->channel != "analysis") {
      kept.push_back(*message);
    }
  }
  return kept;
}

Result<Harmony> Harmony::create(Tokenizer tokenizer) {
  HarmonyTokens tokens;
  const std::array<std::pair<std::string_view, std::int32_t*>, 7> wanted = {{
      {"<|start|>", &tokens.start},
      {"<|message|>", &tokens.message},
      {"<|channel|>", &tokens.channel},
      {"<|constrain|>", &tokens.constrain},
      {"<|end|>", &tokens.end},
      {"<|return|>", &tokens.end_return},
      {"<|call|>", &tokens.call},
  }};
  std::vector<std::string_view> missing;
  for (const auto& [text, id] : wanted) {
    *id = tokenizer.id_of_token(text).value_or(-1);
    if (!tokenizer.is_special(*id)) missing.push_back(text);
  }
  if (!missing.empty()) {
    return make_error(ErrorCode::kMismatch,
                      "the tokenizer ({} tokens) cannot write harmony: it lacks special tokens {}",
                      tokenizer.vocab_size(), fmt::join(missing, ", "));
  }
  return Harmony(std::move(tokenizer), tokens);
}

Status Harmony::append_text(std::string_view text, EncodeScratch& scratch,
                            std::vector<std::int32_t>& out) const {
  HF_ASSIGN(const std::vector<std::int32_t> ids,
            tokenizer_.encode(text, {.parse_special = false}, scratch));
  out.insert(out.end(), ids.begin(), ids.end());
  return {};
}

// Each part of a header is encoded on its own, as in the reference renderer.
Status Harmony::append_header(const Message& message, EncodeScratch& scratch,
                              std::vector<std::int32_t>& out) const {
  out.push_back(tokens_.start);
  if (message.role == Role::kTool) {
    HF_TRY(append_text(message.name, scratch, out));
  } else {
    HF_TRY(append_text(role_name(message.role), scratch, out));
    if (!message.name.empty()) HF_TRY(append_text(":" + message.name, scratch, out));
  }
  if (!message.recipient.empty()) HF_TRY(append_text(" to=" + message.recipient, scratch, out));
  if (!message.channel.empty()) {
    out.push_back(tokens_.channel);
    HF_TRY(append_text(message.channel, scratch, out));
  }
  if (!message.content_type.empty()) {
    HF_TRY(append_text(" ", scratch, out));
    out.push_back(tokens_.constrain);
    HF_TRY(append_text(message.content_type, scratch, out));
  }
  out.push_back(tokens_.message);
  return {};
}

Result<std::vector<std::int32_t>> Harmony::render(std::span<const Message> messages) const {
  if (messages.size() > kMaxMessages) {
    return make_error(ErrorCode::kResourceExhausted, "{} messages; at most {} are allowed",
                      messages.size(), kMaxMessages);
  }
  EncodeScratch scratch;
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    Status status = check_header(message);
    if (status.ok()) status = append_header(message, scratch, ids);
    if (status.ok()) status = append_text(message.content, scratch, ids);
    if (!status.ok()) {
      return status.error().with_context(
          fmt::format("message {} ({})", i, role_name(message.role)));
    }
    const bool calls = message.role == Role::kAssistant && !message.recipient.empty();
    ids.push_back(calls ? tokens_.call : tokens_.end);
  }
  return ids;
}

Result<std::vector<std::int32_t>> Harmony::render_prompt(std::span<const Message> messages) const {
  HF_ASSIGN(std::vector<std::int32_t> ids, render(without_past_analysis(messages)));
  HF_TRY(append_reply_header(ids));
  return ids;
}

Status Harmony::append_reply_header(std::vector<std::int32_t>& ids) const {
  HF_ASSIGN(const std::vector<std::int32_t> role,
            tokenizer_.encode(role_name(Role::kAssistant), {.parse_special = false}));
  ids.push_back(tokens_.start);
  ids.insert(ids.end(), role.begin(), role.end());
  return {};
}

}  // namespace holdfast::tokenizer
