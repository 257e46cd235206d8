// vLLM's /inference/v1/generate (token ids in, token ids out) and SGLang's /generate: bodies become
// requests, or one error. Pure functions; I/O threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/completion_request.h"

namespace holdfast::serve {

struct TokensRequest : CommonRequest {
  bool logprobs = false;
  bool text = false;  // output_mode: text beside the ids
};
TokensRequest parse_tokens(JsonValue body, const RequestLimits& limits, RequestErrors& errors);

// One of the prompts of SGLang's request; each may have its own fields.
struct SglangPrompt : CommonRequest {
  bool return_logprob = false;
  std::int64_t logprob_start = -1;      // of the prompt; -1: output only
  std::int64_t top_logprobs = 0;
  std::vector<std::int32_t> logprob_ids = {};  // whose log probability comes at each position
};
struct SglangRequest {
  std::vector<SglangPrompt> prompts = {};
  bool is_list = false;  // several prompts, or one that came in a list
  bool stream = false;
  bool text_in_logprobs = false;
  bool routed_experts = false;
};
SglangRequest parse_sglang(JsonValue body, const RequestLimits& limits, RequestErrors& errors);
// All prompts as one plan. Adds to `errors`.
GenerationPlan plan_sglang(SglangRequest& request, const PlanInput& input, RequestErrors& errors);

}  // namespace holdfast::serve
