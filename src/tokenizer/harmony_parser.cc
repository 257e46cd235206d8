#include "tokenizer/harmony_parser.h"

#include <algorithm>

#include "base/error.h"

namespace holdfast::tokenizer {
namespace {

// Takes the next word off the front of `text`; empty when none is left.
std::string_view next_word(std::string_view& text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
  const std::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

// Reads the words of a header part that are not its first: " to=recipient", a content type.
void read_rest(std::string_view text, Message& message) {
  constexpr std::string_view kTo = "to=";
  for (std::string_view word = next_word(text); !word.empty(); word = next_word(text)) {
    if (word.starts_with(kTo)) {
      message.recipient = word.substr(kTo.size());
    } else {
      message.content_type = word;
    }
  }
}

void read_role(std::string_view word, Message& message) {
  const std::size_t colon = word.find(':');
  const auto role = role_of(word.substr(0, colon));
  if (role.ok()) {
    message.role = *role;
    if (colon != std::string_view::npos) message.name = word.substr(colon + 1);
  } else {
    message.role = Role::kTool;  // a tool's header names the tool in place of a role
    message.name = word;
  }
}

}  // namespace

HarmonyParser::HarmonyParser(const Harmony& harmony, Begin begin)
    : tokens_(harmony.tokens()), tokenizer_(harmony.tokenizer()), decoder_(harmony.tokenizer()) {
  if (begin == Begin::kAfterPrompt) begin_header(role_name(Role::kAssistant));
  if (begin == Begin::kInMessage) {
    current_.role = Role::kAssistant;
    state_ = State::kContent;
  }
}

Result<HarmonyDelta> HarmonyParser::push(std::int32_t id) {
  if (state_ == State::kStopped) {
    return make_error(ErrorCode::kFailedPrecondition, "token {} after the end of the turn", id);
  }
  HF_ASSIGN(const std::string_view bytes, tokenizer_.token_bytes(id));
  HarmonyDelta delta;
  if (tokenizer_.is_special(id)) {
    push_text(decoder_.finish(), delta);
    push_special(id, bytes, delta);
  } else {
    HF_ASSIGN(const std::string text, decoder_.push(id));
    push_text(text, delta);
  }
  return delta;
}

HarmonyDelta HarmonyParser::finish() {
  HarmonyDelta delta;
  if (state_ == State::kStopped) return delta;
  push_text(decoder_.finish(), delta);
  if (state_ == State::kHeader && has_generated_header()) header_as_content(delta);
  if (state_ == State::kContent) end_message(delta);
  state_ = State::kStopped;
  return delta;
}

void HarmonyParser::push_special(std::int32_t id, std::string_view text, HarmonyDelta& delta) {
  const bool stops = id == tokens_.end_return || id == tokens_.call;
  if (id == tokens_.start && state_ != State::kHeader) {
    if (state_ == State::kContent) {
      note("<|start|> inside a message");
      end_message(delta);
    }
    begin_header("");
  } else if (stops || id == tokens_.end) {
    if (state_ == State::kHeader) {
      note(fmt::format("{} inside a header", text));
      header_as_content(delta);
    }
    if (state_ == State::kContent) end_message(delta);
    if (stops) state_ = State::kStopped;
  } else if (state_ == State::kHeader && id == tokens_.message) {
    end_header(delta);
  } else if (state_ == State::kHeader && id == tokens_.channel && part_ == Part::kRole) {
    part_ = Part::kChannel;
  } else if (state_ == State::kHeader && id == tokens_.constrain && part_ != Part::kType) {
    part_ = Part::kType;
  } else {
    note(fmt::format("{} out of place", text));
    push_text(text, delta);
  }
}

void HarmonyParser::push_text(std::string_view text, HarmonyDelta& delta) {
  if (text.empty()) return;
  if (state_ == State::kBetween) {
    note("text between messages");
    begin_header(role_name(Role::kAssistant));
    end_header(delta);
  }
  if (state_ == State::kContent) {
    current_.content += text;
    delta.text += text;
    return;
  }
  header_[static_cast<std::size_t>(part_)] += text;
  if (header_[0].size() + header_[1].size() + header_[2].size() > kMaxHeaderBytes) {
    note(fmt::format("a header of more than {} bytes", kMaxHeaderBytes));
    header_as_content(delta);
  }
}

void HarmonyParser::begin_header(std::string_view role) {
  state_ = State::kHeader;
  part_ = Part::kRole;
  header_ = {std::string(role), "", ""};
  given_role_bytes_ = role.size();
}

bool HarmonyParser::has_generated_header() const {
  return header_[0].size() > given_role_bytes_ || part_ != Part::kRole;
}

void HarmonyParser::end_header(HarmonyDelta& delta) {
  current_ = Message{.role = Role::kAssistant};
  std::string_view role = header_[0];
  if (const std::string_view word = next_word(role); !word.empty()) read_role(word, current_);
  read_rest(role, current_);
  std::string_view channel = header_[1];
  current_.channel = next_word(channel);
  read_rest(channel, current_);
  std::string_view type = header_[2];
  if (const std::string_view word = next_word(type); !word.empty()) current_.content_type = word;
  state_ = State::kContent;
  delta.began = true;
}

// What looked like a header never became one: it is the content of a message without a channel.
void HarmonyParser::header_as_content(HarmonyDelta& delta) {
  std::string text = header_[0].substr(given_role_bytes_);
  if (part_ == Part::kChannel || !header_[1].empty()) text += "<|channel|>" + header_[1];
  if (part_ == Part::kType) text += "<|constrain|>" + header_[2];
  begin_header(role_name(Role::kAssistant));
  end_header(delta);
  push_text(text, delta);
}

void HarmonyParser::end_message(HarmonyDelta& delta) {
  messages_.push_back(current_);
  state_ = State::kBetween;
  delta.ended = true;
}

void HarmonyParser::note(std::string_view what) {
  if (malformed_.empty()) malformed_ = what;
}

}  // namespace holdfast::tokenizer
