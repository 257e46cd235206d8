// TokenizerData: what a tokenizer.json says, ready for use. Owned by Tokenizer (shared, immutable
// once loaded); any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/merge_table.h"
#include "tokenizer/pattern.h"
#include "tokenizer/token_table.h"

namespace holdfast::tokenizer {

struct TokenizerData {
  TokenTable tokens;  // the model's vocabulary, and added tokens that are not in it as unreachable
  MergeTable merges;
  AddedTokens added;
  std::vector<Pattern> splits;  // each isolates its matches within the pieces of the one before
  bool ignore_merges = false;  // a word that is a token stays whole
  // A space goes before each piece that has passed the first `prefix_stage` splits and does not
  // begin with one.
  bool add_prefix_space = false;
  std::size_t prefix_stage = 0;
  std::string absent;  // the path at which there is none; empty for a tokenizer that was read
};

// Reads tokenizer.json text (the format of https://github.com/huggingface/tokenizers; accepted: a
// BPE model, pre-tokenizers Split and ByteLevel, decoder ByteLevel). Errors: kCorrupt for text that
// breaks the format or contradicts itself, kUnsupported for a component that is not known here
// (named, with those that are), kResourceExhausted for more than limits.h allows.
Result<TokenizerData> parse_tokenizer_json(std::string_view json);

}  // namespace holdfast::tokenizer
