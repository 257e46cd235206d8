// /v1/completions, and what is read alike by other routes that take prompts: a body becomes a
// CompletionRequest, or one error. Pure functions; I/O threads.
#pragma once

#include "serve/request_fields.h"

namespace holdfast::serve {

struct CompletionRequest : CommonRequest {
  bool echo = false;
  std::optional<std::int64_t> logprobs = {};
  bool asked_prompt_logprobs = false;  // by that name, not through echo
};

CompletionRequest parse_completion(JsonValue body, const RequestLimits& limits,
                                   RequestErrors& errors);
// A string, strings, token ids, or lists of token ids.
void read_prompts(FieldReader& in, std::string_view name, std::vector<Prompt>& prompts,
                  const RequestLimits& limits);

}  // namespace holdfast::serve
