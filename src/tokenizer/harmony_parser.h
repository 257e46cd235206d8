// HarmonyParser: reads generated ids as harmony messages while they come. Owned by one request; one
// thread. Total: a model may write anything, so text out of place is kept as content and noted in
// malformed(), and nothing but an unknown id or a push after the stop is an error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"
#include "tokenizer/harmony.h"
#include "tokenizer/stream_decoder.h"

namespace holdfast::tokenizer {

// What one id changed. In this order: a message's header was complete, text was added to its
// content, it ended.
struct HarmonyDelta {
  bool began = false;
  std::string text;
  bool ended = false;
};

class HarmonyParser {
 public:
  enum class Begin : std::uint8_t {
    kAfterPrompt,  // the ids follow render_prompt: the header begins after "assistant"
    kWithMessage,  // the first id is <|start|>
    kInMessage,    // the ids go on with a message that a prompt left open
  };
  explicit HarmonyParser(const Harmony& harmony, Begin begin = Begin::kAfterPrompt);

  // Errors: kInvalidArgument for an id without a token; kFailedPrecondition once stopped().
  Result<HarmonyDelta> push(std::int32_t id);

  // The ids have ended (a length limit, for one): ends the message under way.
  HarmonyDelta finish();

  // The message under way, else the last one. Its content grows.
  const Message& current() const { return current_; }
  // The messages that have ended.
  const std::vector<Message>& messages() const { return messages_; }
  // <|return|> or <|call|> was read, or finish() called.
  bool stopped() const { return state_ == State::kStopped; }
  // What was first found out of place; empty: nothing was.
  const std::string& malformed() const { return malformed_; }

 private:
  enum class State : std::uint8_t { kBetween, kHeader, kContent, kStopped };
  enum class Part : std::uint8_t { kRole, kChannel, kType };  // of the header

  void push_special(std::int32_t id, std::string_view text, HarmonyDelta& delta);
  void push_text(std::string_view text, HarmonyDelta& delta);
  void begin_header(std::string_view role);
  void end_header(HarmonyDelta& delta);
  void header_as_content(HarmonyDelta& delta);
  void end_message(HarmonyDelta& delta);
  // Whether the header under way holds more than the role that the prompt gave it.
  bool has_generated_header() const;
  void note(std::string_view what);

  HarmonyTokens tokens_;
  Tokenizer tokenizer_;
  StreamDecoder decoder_;
  State state_ = State::kBetween;
  Part part_ = Part::kRole;
  std::array<std::string, 3> header_;  // by Part
  std::size_t given_role_bytes_ = 0;   // of header_[kRole]: what the prompt held already
  Message current_;
  std::vector<Message> messages_;
  std::string malformed_;
};

}  // namespace holdfast::tokenizer
