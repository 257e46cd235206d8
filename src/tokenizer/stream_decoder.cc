#include "tokenizer/stream_decoder.h"

#include <utility>

#include "tokenizer/utf8.h"

namespace holdfast::tokenizer {

StreamDecoder::StreamDecoder(Tokenizer tokenizer, DecodeOptions options)
    : tokenizer_(std::move(tokenizer)), options_(options) {}

Result<std::string> StreamDecoder::push(std::int32_t id) {
  HF_ASSIGN(const std::string_view bytes, tokenizer_.token_bytes(id));
  std::string text;
  if (options_.skip_special && tokenizer_.is_special(id)) return text;
  pending_.append(bytes);
  pending_.erase(0, append_lossy_utf8(pending_, false, text));
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  append_lossy_utf8(pending_, true, text);
  pending_.clear();
  return text;
}

}  // namespace holdfast::tokenizer
