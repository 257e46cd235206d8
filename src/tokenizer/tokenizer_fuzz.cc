// Parses a tokenizer.json, encodes a text with it, and checks what must hold of any result. Input
// that begins with '{' is the tokenizer.json. Any other is a text, a zero byte, a split pattern, a
// zero byte, and added tokens one a line, around a small vocabulary.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tokenizer/stream_decoder.h"
#include "tokenizer/tokenizer.h"

namespace holdfast::tokenizer {
namespace {

void check(bool condition) {
  if (!condition) std::abort();
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Everything up to the next `end`, taken off the front of `rest`.
std::string_view take(std::string_view& rest, char end) {
  const std::size_t length = std::min(rest.find(end), rest.size());
  const std::string_view part = rest.substr(0, length);
  rest.remove_prefix(std::min(length + 1, rest.size()));
  return part;
}

std::string json_around(std::string_view pattern, std::string_view added) {
  std::string vocab;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    char entry[32];
    std::snprintf(entry, sizeof entry, "\"\\u%04x\": %d, ",
                  static_cast<unsigned>(printable ? byte : next++), byte);
    vocab += entry;
  }
  std::string tokens;
  for (int id = 300; !added.empty(); ++id) {
    tokens += (tokens.empty() ? "" : ", ") + std::string("{\"id\": ") + std::to_string(id) +
              ", \"content\": " + quoted(take(added, '\n')) +
              (id % 2 == 0 ? ", \"special\": true" : ", \"lstrip\": true, \"rstrip\": true") +
              (id % 3 == 0 ? ", \"normalized\": true}" : ", \"normalized\": false}");
  }
  return R"({"added_tokens": [)" + tokens + R"(], "pre_tokenizer": {"type": "Sequence",
    "pretokenizers": [{"type": "Split", "behavior": "Isolated", "pattern": {"Regex": )" +
         quoted(pattern) + R"(}}, {"type": "ByteLevel", "use_regex": false,
    "add_prefix_space": false}]}, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE",
    "ignore_merges": true, "vocab": {)" + vocab + R"("aa": 256, "ab": 257, "aab": 258,
    "aaaa": 259}, "merges": ["a a", "a b", "aa b", "aa aa"]}})";
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
  using namespace holdfast::tokenizer;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with('{')) {
    try_one("The  cat's\n\n1234 \xF0\x9F\x98\x80<|end|>", input);
  } else {
    const std::string_view text = take(input, '\0');
    const std::string_view pattern = take(input, '\0');
    try_one(text, json_around(pattern, input));
  }
  return 0;
}
