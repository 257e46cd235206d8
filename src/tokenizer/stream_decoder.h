// StreamDecoder: the text of generated tokens as far as it is complete UTF-8. Owned by one request;
// one thread.
#pragma once

#include <cstdint>
#include <string>

#include "holdfast/result.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::tokenizer {

class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, DecodeOptions options = {});

  // The text that `id` completes; empty while a code point is still in pieces. All texts together
  // with finish() are what Tokenizer::decode makes of all ids. Errors: kInvalidArgument for an id
  // without a token, which leaves the stream as it was.
  Result<std::string> push(std::int32_t id);

  // The rest: U+FFFD if a code point is left in pieces, else nothing. The decoder is then as new.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string pending_;  // bytes that begin a code point, at most 3 between calls
};

}  // namespace holdfast::tokenizer
