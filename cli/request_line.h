// RequestLine: one request as the user wrote it, in a flag or an input line, with every field
// checked that can be checked without a model. Values; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "holdfast/engine.h"
#include "holdfast/result.h"
#include "cli/jsonl.h"

namespace holdfast {
class Tokenizer;
}

namespace holdfast::cli {

struct RequestLine {
  std::string place;                // "FILE:LINE" or "--prompt", for messages
  std::optional<std::string> id;    // as JSON text
  std::optional<std::string> text;  // exactly one of text and ids
  std::vector<std::int32_t> ids;
  Request request;  // all but prompt_ids
};

// Errors: kInvalidArgument naming the field, its value and the range.
Status check_sampling(const Sampling& sampling);

// The request that the flags alone describe.
Request request_from_flags(const RequestFlags& flags);

// A line of `generate`. Errors: kInvalidArgument, "FILE:LINE: ...".
Result<RequestLine> read_generate_line(const LineObject& object, const RequestFlags& flags);
// A line of `score`: only ids or text, nothing to generate.
Result<RequestLine> read_score_line(const LineObject& object, const RequestFlags& flags);

struct PromptLimits {
  std::int64_t vocab_size = 0;
  std::int64_t max_context = 0;
  bool plain_text = false;
};
// Fills request.prompt_ids from the text or the ids. Errors: kInvalidArgument: text that is not
// UTF-8, no token at all, an id outside the vocabulary, more tokens than the context holds.
Status resolve_prompt(RequestLine& line, const Tokenizer& tokenizer, const PromptLimits& limits);

}  // namespace holdfast::cli
