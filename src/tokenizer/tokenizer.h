// Tokenizer: byte-level BPE as a Hugging Face tokenizer.json defines it. A value (copies share the
// data); immutable once loaded; any thread. EncodeScratch: working memory of encode that is worth
// keeping. Owned by the caller; one thread at a time, any tokenizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::tokenizer {

struct TokenizerData;

struct EncodeOptions {
  // Whether the text of a special token ("<|start|>") becomes that token. False for text from
  // outside that must not be able to name one; added tokens that are not special are always found.
  bool parse_special = true;
};

struct DecodeOptions {
  bool skip_special = false;
};

class EncodeScratch {
 public:
  EncodeScratch();
  EncodeScratch(EncodeScratch&&) noexcept;
  EncodeScratch& operator=(EncodeScratch&&) noexcept;
  ~EncodeScratch();

 private:
  friend class Tokenizer;
  struct State;
  std::unique_ptr<State> state_;
};

class Tokenizer {
 public:
  // Reads `path` (a tokenizer.json). Errors: kNotFound, kIo, and those of parse, naming the file.
  static Result<Tokenizer> load(const std::string& path);

  // `json`: the text of a tokenizer.json. Errors: kCorrupt, kMismatch, kUnsupported (a component
  // that is not known here; the message lists those that are), kResourceExhausted (limits.h).
  static Result<Tokenizer> parse(std::string_view json);

  // Of a model without a tokenizer.json, which would stand at `path`: it has no tokens, and its
  // model takes and gives ids.
  static Tokenizer absent(const std::string& path);
  // Errors: kUnsupported for an absent one, saying what to do; encode and decode say the same.
  Status check_present() const;

  // The ids of `text`, without what a post-processor's template would add (no bos, no eos). Errors:
  // kInvalidArgument for text that is not UTF-8 (names the byte), kResourceExhausted for text
  // longer than kMaxTextBytes or for a pattern that takes more work than kSplitWork allows.
  Result<std::vector<std::int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;
  // The same result; faster when the scratch is used again, since it remembers words.
  Result<std::vector<std::int32_t>> encode(std::string_view text, EncodeOptions options,
                                           EncodeScratch& scratch) const;

  // The text of `ids`; bytes that are not UTF-8 become U+FFFD. Errors: kInvalidArgument for an id
  // without a token.
  Result<std::string> decode(std::span<const std::int32_t> ids, DecodeOptions options = {}) const;

  // The bytes of one token, which need not be UTF-8; for an added token its content. Valid while
  // any copy of this tokenizer lives. Errors: kInvalidArgument for an id without a token.
  Result<std::string_view> token_bytes(std::int32_t id) const;

  // The id of the added token with this content, else of the vocabulary's token with these bytes.
  std::optional<std::int32_t> id_of_token(std::string_view bytes) const;

  bool is_special(std::int32_t id) const;
  // How many tokens there are, added ones included.
  std::size_t vocab_size() const;
  // The highest id. It can be vocab_size() or more: ids may have gaps.
  std::int32_t max_token_id() const;

 private:
  explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}
  std::shared_ptr<const TokenizerData> data_;
};

}  // namespace holdfast::tokenizer
