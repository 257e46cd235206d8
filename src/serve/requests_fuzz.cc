// Bodies of the generating routes, as far as they need no engine: the first byte says whose it is,
// the rest is the body. What is accepted must be within the limits; what is refused must say why.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "serve/chat_request.h"
#include "serve/completion_request.h"
#include "serve/generate_request.h"

namespace {

using namespace holdfast;
using namespace holdfast::serve;

void check(bool condition) {
  if (!condition) std::abort();
}

bool in_range(const std::vector<std::int32_t>& ids, const RequestLimits& limits) {
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= limits.vocab_size) return false;
  }
  return true;
}

void check_common(const CommonRequest& request, const RequestLimits& limits) {
  const Sampling& sampling = request.engine.sampling;
  check(request.n >= 1 && request.n <= limits.max_choices);
  check(sampling.temperature >= 0 && sampling.temperature <= 100);
  check(sampling.top_p > 0 && sampling.top_p <= 1);
  check(sampling.top_k >= 0);
  check(sampling.min_p >= 0 && sampling.min_p <= 1);
  check(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 10);
  check(in_range(sampling.allowed_token_ids, limits));
  check(in_range(request.engine.stop_token_ids, limits));
  check(request.engine.stop.size() <= kMaxStopStrings);
  for (const std::string& stop : request.engine.stop) {
    check(!stop.empty() && stop.size() <= kMaxStopStringBytes);
  }
  check(!request.max_tokens || *request.max_tokens >= 0);
  check(request.engine.min_tokens >= 0);
  check(request.engine.top_logprobs.value_or(0) >= -1);
  for (const Prompt& prompt : request.prompts) check(in_range(prompt.ids, limits));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RequestLimits limits = {.vocab_size = 1024,
                                .max_context = 64,
                                .max_prompt_tokens = 64,
                                .max_choices = 8,
                                .max_logprobs = 1024,
                                .routed_experts = true};
  JsonDocument document;
  if (const auto error = JsonDocument::parse(body, document)) {
    check(!error->message.empty());
    return 0;
  }
  RequestErrors errors;
  switch (data[0] % 4) {
    case 0: {
      const CompletionRequest request = parse_completion(document.root(), limits, errors);
      if (!errors.any()) check_common(request, limits);
      break;
    }
    case 1: {
      const ChatRequest request = parse_chat(document.root(), limits, errors);
      if (!errors.any()) check_common(request, limits);
      break;
    }
    case 2: {
      const TokensRequest request = parse_tokens(document.root(), limits, errors);
      if (!errors.any()) check_common(request, limits);
      break;
    }
    default: {
      const SglangRequest request = parse_sglang(document.root(), limits, errors);
      if (errors.any()) break;
      for (const SglangPrompt& prompt : request.prompts) check_common(prompt, limits);
      break;
    }
  }
  if (errors.any()) {
    check(!errors.first()->message.empty() && errors.first()->message.size() < 8192);
    check(!error_json(*errors.first()).empty());
  }
  return 0;
}
