// Tokenizer: byte-level BPE from a model directory's tokenizer.json. Immutable; any thread.
// An engine whose model has no tokenizer.json has one of no tokens: vocab_size is 0, encode, decode
// and chat formats fail with kUnsupported, and tokens have no text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

class Tokenizer {
 public:
  // Reads `directory`/tokenizer.json. Errors: kNotFound, kCorrupt, kUnsupported with the component.
  static Result<std::unique_ptr<Tokenizer>> open(const std::string& directory);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  std::int64_t vocab_size() const;  // the largest id + 1
  // `parse_special`: special tokens written in the text become their ids; otherwise they are text.
  // Errors: kInvalidArgument for text that is not UTF-8 (naming the byte) or too long.
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool parse_special = true) const;
  // Invalid UTF-8 becomes U+FFFD. Errors: kInvalidArgument naming an unknown id.
  Result<std::string> decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  // Decodes one token at a time and never splits a character.
  class Stream {
   public:
    ~Stream();
    Stream(Stream&&) noexcept;
    Result<std::string> push(std::int32_t id);  // text that is complete so far
    std::string finish();                       // what is left

   private:
    friend class Tokenizer;
    struct Impl;
    explicit Stream(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  Stream stream(bool skip_special = false) const;

 private:
  friend class Engine;
  friend class ChatFormat;
  friend class ChatSession;
  // As open, and one of no tokens where the file does not exist.
  static Result<std::unique_ptr<Tokenizer>> open_or_absent(const std::string& directory);
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A harmony conversation (gpt-oss's chat format): renders prompts and reads replies.
class ChatSession {
 public:
  // `instructions` become the developer message, when not empty; `date` as YYYY-MM-DD, `effort` one
  // of low, medium, high. The tokenizer must outlive the session. Errors: kUnsupported naming a
  // special token that the tokenizer lacks, or a tokenizer that has none.
  static Result<std::unique_ptr<ChatSession>> open(const Tokenizer& tokenizer,
                                                   std::string_view instructions,
                                                   std::string_view date, std::string_view effort);
  ~ChatSession();

  // The ids to prefill for the user's next message.
  Result<std::vector<std::int32_t>> user_turn(std::string_view text);
  // A piece of the reply: which channel ("analysis", "commentary", "final") and its text.
  struct Piece {
    std::string channel;
    std::string text;
  };
  Result<std::vector<Piece>> push(std::int32_t id);
  // Ends the reply and keeps it as history.
  Result<std::vector<Piece>> end_turn();
  std::vector<std::int32_t> stop_token_ids() const;

 private:
  struct Impl;
  explicit ChatSession(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast
