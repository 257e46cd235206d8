// Request: what is asked of an engine, and the events that answer it. Values; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace holdfast {

// Greedy when temperature is 0. Order: allowed tokens, logit_bias, penalties, min_tokens, then
// temperature, top-k, top-p, min-p. The draw for output token i depends on (seed, i) alone.
struct Sampling {
  float temperature = 0.0f;  // [0, 100]
  float top_p = 1.0f;        // (0, 1]
  std::int32_t top_k = 0;    // 0: off
  float min_p = 0.0f;        // [0, 1]
  std::uint64_t seed = 0;
  // (0, 10]: the logit of a token of prompt or output is divided by it when positive, else
  // multiplied. (Keskar et al. 2019, CTRL, section 4.1)
  float repetition_penalty = 1.0f;
  // [-2, 2]: the logit of an output token falls by count * frequency + presence.
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  std::vector<std::pair<std::int32_t, float>> logit_bias = {};  // token id, [-100, 100]; add up
  std::vector<std::int32_t> allowed_token_ids = {};             // empty: all
};

// Which distribution log probabilities are of: the model's own, or what is left of it after
// everything in Sampling (so that dropped tokens have -infinity; greedy uses temperature 1). Of
// prompt tokens, which nothing was drawn for, it is always the model's own.
enum class LogprobsMode : std::uint8_t { kRaw, kProcessed };

struct Request {
  std::vector<std::int32_t> prompt_ids;  // at least one
  Sampling sampling = {};
  std::int64_t max_tokens = 128;         // 0: only score the prompt
  // Up to max_tokens. No token that would end the request comes before; stop strings wait as well.
  std::int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::int32_t> stop_token_ids = {};  // besides the model's
  // Ends the request as soon as its text holds one of these (not empty, UTF-8).
  std::vector<std::string> stop = {};
  bool include_stop = false;    // keep the matched string (or stop token) in the text
  bool want_text = false;       // events carry text
  bool skip_special = true;     // in the text
  LogprobsMode logprobs_mode = LogprobsMode::kRaw;
  // How many of the likeliest tokens come with each token; -1: all of the vocabulary; empty: none,
  // and no rank either.
  std::optional<std::int32_t> top_logprobs = {};
  bool prompt_logprobs = false;  // log p(prompt_ids[i] | before) for i >= 1
  std::optional<std::int32_t> prompt_top_logprobs = {};  // as top_logprobs; implies prompt_logprobs
  bool routed_experts = false;  // which experts each position went to
  std::int64_t priority = 0;    // the lowest goes first; equals in the order of submission
  std::string cache_salt = {};  // requests of different salts share no cached prefix
  // Called on the engine thread, inside step, with the float32 logits after prompt position
  // `position`, in order. The span ends with the call; the callback must not call the engine.
  std::function<void(std::int64_t position, std::span<const float> logits)> prompt_logits = {};
};

struct RequestId {
  std::uint64_t value = 0;
  friend bool operator==(RequestId, RequestId) = default;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kAbort };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "abort"

// One generated token, and the weights that made it.
struct Token {
  std::int32_t id = 0;
  float logprob = 0;        // natural log, of the distribution that logprobs_mode names
  std::uint64_t epoch = 0;  // the epoch of the step that produced it
  std::int32_t rank = 0;    // 1: the likeliest of its position; 0: not asked for (top_logprobs)
};

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
};

// What prefill found out, beyond log probabilities; with a request's first event, when asked for.
struct PromptDetail {
  std::int64_t cached_tokens = 0;  // prompt positions whose keys and values were already there
  std::vector<std::int32_t> ranks = {};  // of prompt_ids[i], i >= 1
  std::vector<std::vector<TokenLogprob>> top = {};
  // i16 [prompt tokens - 1, layers, experts per token]; the last position's comes with the first
  // token.
  std::vector<std::int16_t> routed_experts = {};
};

struct Event {
  RequestId request;
  std::optional<Token> token;                  // empty when a request ends without one
  std::vector<float> prompt_logprobs;          // filled once, with the request's first event
  std::optional<FinishReason> finish_reason;   // set on the last event
  std::shared_ptr<const PromptDetail> prompt = {};  // with the first event
  std::vector<TokenLogprob> top_logprobs = {};      // of the token's position, likeliest first
  // i16 [layers, experts per token], of the position whose logits gave this token.
  std::vector<std::int16_t> routed_experts = {};
  // Text that no later token can change, with want_text or stop strings; may be empty. What a stop
  // string might still begin in is held back.
  std::string text = {};
  std::string stop_string = {};             // the one that matched
  std::optional<std::int32_t> stop_token = {};  // the token that ended it
  // The tokens so far are void: a reload restarted the request. Carries no token itself.
  bool restarted = false;
};

}  // namespace holdfast
