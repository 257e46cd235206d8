// How tokens, their log probabilities and the experts they went to look in replies. Built for one
// request; its engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "holdfast/tokenizer.h"
#include "serve/choice.h"

namespace holdfast::serve {

// Names of tokens: their text, or "token_id:5" where that was asked for.
class TokenNames {
 public:
  TokenNames(const Tokenizer& tokenizer, bool as_ids) : tokenizer_(tokenizer), as_ids_(as_ids) {}
  std::string text(std::int32_t id) const;  // the text; bytes that are no character are U+FFFD
  std::string name(std::int32_t id) const { return as_ids_ ? id_name(id) : text(id); }
  static std::string id_name(std::int32_t id);

 private:
  const Tokenizer& tokenizer_;
  bool as_ids_;
};

// The token and then the likeliest of its position, each id once.
std::vector<TokenLogprob> with_token(std::int32_t id, float logprob,
                                     std::span<const TokenLogprob> top);

// Columns of /v1/completions: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.
class LogprobColumns {
 public:
  explicit LogprobColumns(const TokenNames& names) : names_(names) {}
  // The prompt's tokens (echo); the first has no log probability.
  void add_prompt(const Choice& choice);
  void add_tokens(const Choice& choice, std::size_t first);
  // What was added since the last write; offsets go on, in characters.
  void write(JsonWriter& out);

 private:
  struct Row {
    std::string name = {};
    std::size_t offset = 0;
    bool has_logprob = false;
    float logprob = 0;
    std::vector<TokenLogprob> top = {};
  };
  void add(std::int32_t id, Row row);

  const TokenNames& names_;
  std::vector<Row> rows_;
  std::size_t offset_ = 0;
};

// vLLM's prompt_logprobs: [null, {"id": {"logprob", "rank", "decoded_token"}}, ...], no key.
void write_prompt_logprobs(JsonWriter& out, const Choice& choice, const TokenNames& names);

// [prompt + output - 1, layers, experts per token] of one choice.
struct RoutingShape {
  std::int64_t layers = 0, experts_per_token = 0;  // 0: not known
};
// From the model's config.json; zeros when it does not say.
RoutingShape routing_shape(const std::string& model_directory);
// Base64 of a NumPy file (.npy, version 1.0) of int16, as vLLM sends it.
std::string routed_experts_npy(const Choice& choice, const RoutingShape& shape);
// Base64 of int32 alone, as SGLang sends it.
std::string routed_experts_int32(const Choice& choice);

}  // namespace holdfast::serve
