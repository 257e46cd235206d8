// AddedTokens: the tokens that are cut out of a text before it is pre-tokenised ("<|start|>").
// Owned by a tokenizer's data; built once, then read by any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::tokenizer {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool special = false;
  bool lstrip = false;      // takes the white space before it with it
  bool rstrip = false;      // takes the white space after it with it
  bool normalized = false;  // looked for in a second pass, in what the others leave
};

// Finds members of one set of texts: leftmost first, then longest.
class AddedTokenMatcher {
 public:
  struct Match {
    const AddedToken* token = nullptr;  // null: none
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  // The contents must be distinct and not empty.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  // The first match at or after byte `offset`, without the white space that the flags add.
  Match find(std::string_view text, std::size_t offset) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // the first bytes of the contents
};

class AddedTokens {
 public:
  AddedTokens() : AddedTokens(std::vector<AddedToken>{}) {}
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  struct Segment {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;  // -1: ordinary text
  };
  // Cuts `text` into segments, appended to `out`: two passes as in Hugging Face's AddedVocabulary.
  // With `parse_special` false the special tokens are ordinary text.
  void split(std::string_view text, bool parse_special, std::vector<Segment>& out) const;

  bool is_special(std::int32_t id) const;
  // The id of the added token with this content, or -1.
  std::int32_t find(std::string_view content) const;

 private:
  AddedTokenMatcher raw_;
  AddedTokenMatcher normalized_;
  std::vector<bool> special_;  // by id, as far as there are special ones
};

}  // namespace holdfast::tokenizer
