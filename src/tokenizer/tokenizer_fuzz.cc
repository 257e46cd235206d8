// Parses a tokenizer.json, encodes a text with it, and checks what must hold of any result. The
// input is the text, a zero byte, and the tokenizer.json; without a zero byte it is all json.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::tokenizer {
namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

void try_one(std::string_view text, std::string_view json) {
  const auto tokenizer = Tokenizer::parse(json);
  if (!tokenizer.ok()) return;
  EncodeScratch scratch;
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer->encode(text, {.parse_special = parse_special}, scratch);
    const auto fresh = tokenizer->encode(text, {.parse_special = parse_special});
    check(ids.ok() == fresh.ok());
    if (!ids.ok()) continue;
    check(*ids == *fresh);
    StreamDecoder stream(*tokenizer);
    std::string streamed;
    for (const std::int32_t id : *ids) streamed += stream.push(id).value();
    streamed += stream.finish();
    check(streamed == tokenizer->decode(*ids).value());
  }
}

}  // namespace
}  // namespace holdfast::tokenizer

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  if (zero == std::string_view::npos) {
    holdfast::tokenizer::try_one("The  cat's\n\n1234 \xF0\x9F\x98\x80<|end|>", input);
  } else {
    holdfast::tokenizer::try_one(input.substr(0, zero), input.substr(zero + 1));
  }
  return 0;
}
