// What the requests of every dialect have in common, and the reading of the fields that OpenAI's
// and vLLM's share. Pure functions over a parsed body: they see no engine. I/O threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/request.h"
#include "serve/generation.h"
#include "serve/json_reader.h"

namespace holdfast {
class Tokenizer;
}

namespace holdfast::serve {

struct ServeContext;

// What a request may ask of this server.
struct RequestLimits {
  std::int64_t vocab_size = 0;
  std::int64_t max_context = 0;
  std::int64_t max_prompt_tokens = 0;  // at most max_context
  std::int64_t max_choices = 128;
  std::int64_t max_waiting = 0;        // requests in the engine's queue; 0: not known
  std::int64_t max_logprobs = 0;       // at most vocab_size
  std::int64_t default_max_tokens = 16;
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  bool routed_experts = false;         // whether they can be had
};
RequestLimits limits_of(const ServeContext& context);

inline constexpr std::size_t kMaxStopStrings = 16;       // as the engine has it
inline constexpr std::size_t kMaxStopStringBytes = 1024;
inline constexpr std::size_t kMaxStopTokens = 256;
inline constexpr std::size_t kMaxNameBytes = 1024;       // of ids and salts

struct Prompt {
  std::string text = {};               // when it is not given as ids
  std::vector<std::int32_t> ids = {};
  bool is_text = false;
};

struct CommonRequest {
  Request engine = {};                 // of every choice, but for prompt_ids, seed and max_tokens
  std::vector<Prompt> prompts = {};
  std::int64_t n = 1;                  // choices of each prompt
  std::optional<std::uint64_t> seed = {};
  std::optional<std::int64_t> max_tokens = {};
  std::int64_t default_max_tokens = -1;  // when there is none; -1: what the context leaves
  std::optional<std::int64_t> truncate_prompt_tokens = {};  // -1: to what the context takes
  bool keep_prompt_end = true;           // when truncated
  bool stream = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false, tokens_as_ids = false;
  std::string request_id = {}, model = {};
};

// What OpenAI and vLLM call the fields that SGLang calls otherwise.
struct SamplingNames {
  std::string_view max_tokens = "max_tokens";
  std::string_view min_tokens = "min_tokens";
  std::string_view seed = "seed";
  std::string_view include_stop = "include_stop_str_in_output";
};
// temperature, top_p, top_k, min_p, penalties, logit_bias, allowed_token_ids, seed, n, stop,
// stop_token_ids, ignore_eos, min_tokens, max_tokens, skip_special_tokens, logprobs_mode: in the
// body or in sampling_params.
void read_sampling(FieldReader& in, CommonRequest& request, const RequestLimits& limits,
                   const SamplingNames& names = {});
// vLLM's; not SGLang's.
void read_prompt_logprobs(FieldReader& in, Request& engine, const RequestLimits& limits);
// model, stream, stream_options, priority, cache_salt, request_id.
void read_envelope(FieldReader& in, CommonRequest& request);
// return_token_ids, return_tokens_as_token_ids, truncate_prompt_tokens, add_special_tokens,
// return_routed_experts, and what OpenAI's clients may send without an effect here.
void read_openai_extras(FieldReader& in, CommonRequest& request, const RequestLimits& limits);
// Fields of OpenAI's and vLLM's that cannot be had.
void refuse_unsupported(FieldReader& in);
// 0 to max_logprobs, or -1 for the vocabulary.
IntRange logprobs_range(const RequestLimits& limits);

// Prompts to ids, within the limits; then the engine requests, prompt by prompt, the choices of a
// prompt with seeds s, s + 1, ... `random` is the seed where the request has none. `param`: what
// the prompt's field is called. Adds to `errors` and gives an empty plan.
struct PlanInput {
  const Tokenizer& tokenizer;
  const RequestLimits& limits;
  std::uint64_t random = 0;
  std::string_view param = "prompt";
};
// Adds an error when prompts of so many choices each are more than may ever be taken.
struct ChoiceCount {
  std::int64_t prompts = 1, each = 1;
  std::string_view param = "n";  // what the error is of
};
void check_choices(const ChoiceCount& count, const RequestLimits& limits, RequestErrors& errors);
GenerationPlan make_plan(CommonRequest& request, const PlanInput& input, RequestErrors& errors);

std::uint64_t random_seed();
// A name that a client may give an id or salt: not empty, at most kMaxNameBytes.
bool read_name(FieldReader& in, std::string_view field, std::string& into);

}  // namespace holdfast::serve
