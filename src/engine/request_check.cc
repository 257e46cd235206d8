#include "engine/request_check.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"

namespace holdfast::engine {

namespace {

Status check_ids(const char* field, std::span<const std::int32_t> ids, std::int64_t vocab_size) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "request field {}[{}] is {}, expected a token id from 0 to {}", field, i,
                      ids[i], vocab_size - 1);
  }
  return {};
}

Error out_of_range(const char* field, double value, const char* range) {
  return make_error(ErrorCode::kInvalidArgument, "sampling field {} is {}, expected {}", field,
                    value, range);
}

// Of `value` in [low, high], or (low, high]. Written so that a NaN fails.
struct RealRange {
  double low = 0, high = 0;
  const char* text = "";
  bool above_low = false;
};
Status check_real(const char* field, float value, const RealRange& range) {
  const auto real = static_cast<double>(value);
  const bool is_low_enough = real <= range.high;
  const bool is_high_enough = range.above_low ? real > range.low : real >= range.low;
  if (is_low_enough && is_high_enough) return {};
  return out_of_range(field, real, range.text);
}

Status check_top(const char* field, std::optional<std::int32_t> count, std::int64_t vocab_size) {
  if (!count || (*count >= -1 && *count <= vocab_size)) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "request field {} is {}, expected -1 (all) to {} (the vocabulary)", field,
                    *count, vocab_size);
}

Status check_biases(const Sampling& sampling, std::int64_t vocab_size) {
  if (std::ssize(sampling.logit_bias) > vocab_size) {
    return make_error(ErrorCode::kInvalidArgument,
                      "sampling field logit_bias holds {} biases, at most {} (the vocabulary) are "
                      "allowed",
                      sampling.logit_bias.size(), vocab_size);
  }
  for (std::size_t i = 0; i < sampling.logit_bias.size(); ++i) {
    const auto& [id, bias] = sampling.logit_bias[i];
    if (id < 0 || id >= vocab_size) {
      return make_error(ErrorCode::kInvalidArgument,
                        "sampling field logit_bias[{}] is for token {}, expected a token id from 0 "
                        "to {}",
                        i, id, vocab_size - 1);
    }
    if (bias >= -100.0f && bias <= 100.0f) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "sampling field logit_bias[{}] is {} for token {}, expected -100 to 100", i,
                      bias, id);
  }
  return {};
}

// Where an end is put off, something else has to be left to come.
Status check_min_tokens(const Request& request, const Vocabulary& vocabulary) {
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field min_tokens is {}, expected 0 to {} (max_tokens)",
                      request.min_tokens, request.max_tokens);
  }
  if (request.min_tokens == 0) return {};
  std::vector<bool> may_come(static_cast<std::size_t>(vocabulary.size),
                             request.sampling.allowed_token_ids.empty());
  const auto set = [&may_come](std::span<const std::int32_t> ids, bool value) {
    for (const std::int32_t id : ids) may_come[static_cast<std::size_t>(id)] = value;
  };
  set(request.sampling.allowed_token_ids, true);
  if (!request.ignore_eos) set(vocabulary.eos_token_ids, false);
  set(request.stop_token_ids, false);
  if (std::find(may_come.begin(), may_come.end(), true) != may_come.end()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "request field min_tokens is {}, and every token that may come would end the "
                    "request (allowed_token_ids, stop_token_ids); expected 0",
                    request.min_tokens);
}

}  // namespace

Status check_sampling(const Sampling& sampling, std::int64_t vocab_size) {
  HF_TRY(check_real("temperature", sampling.temperature, {.high = 100, .text = "0 to 100"}));
  HF_TRY(check_real("top_p", sampling.top_p,
                    {.high = 1, .text = "above 0, up to 1", .above_low = true}));
  if (sampling.top_k < 0) return out_of_range("top_k", sampling.top_k, "0 (off) or more");
  HF_TRY(check_real("min_p", sampling.min_p, {.high = 1, .text = "0 to 1"}));
  HF_TRY(check_real("repetition_penalty", sampling.repetition_penalty,
                    {.high = 10, .text = "above 0, up to 10", .above_low = true}));
  const RealRange around_zero{.low = -2, .high = 2, .text = "-2 to 2"};
  HF_TRY(check_real("frequency_penalty", sampling.frequency_penalty, around_zero));
  HF_TRY(check_real("presence_penalty", sampling.presence_penalty, around_zero));
  HF_TRY(check_biases(sampling, vocab_size));
  if (std::ssize(sampling.allowed_token_ids) > vocab_size) {
    return make_error(ErrorCode::kInvalidArgument,
                      "sampling field allowed_token_ids holds {} ids, at most {} (the vocabulary) "
                      "are allowed",
                      sampling.allowed_token_ids.size(), vocab_size);
  }
  return check_ids("allowed_token_ids", sampling.allowed_token_ids, vocab_size);
}

Status check_request(const Request& request, const Settings& settings,
                     const Vocabulary& vocabulary) {
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt_ids.size());
  if (prompt_tokens < 1 || prompt_tokens > settings.max_context) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field prompt_ids holds {} tokens, expected 1 to {} (max_context)",
                      prompt_tokens, settings.max_context);
  }
  if (request.max_tokens < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field max_tokens is {}, expected 0 (score only) or more",
                      request.max_tokens);
  }
  if (request.stop_token_ids.size() > kMaxStopTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field stop_token_ids holds {} ids, at most {} are allowed",
                      request.stop_token_ids.size(), kMaxStopTokens);
  }
  if (request.cache_salt.size() > kMaxCacheSaltBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "request field cache_salt is {} bytes long, the most is {}",
                      request.cache_salt.size(), kMaxCacheSaltBytes);
  }
  HF_TRY(check_ids("prompt_ids", request.prompt_ids, vocabulary.size));
  HF_TRY(check_ids("stop_token_ids", request.stop_token_ids, vocabulary.size));
  HF_TRY(check_top("top_logprobs", request.top_logprobs, vocabulary.size));
  HF_TRY(check_top("prompt_top_logprobs", request.prompt_top_logprobs, vocabulary.size));
  HF_TRY(check_sampling(request.sampling, vocabulary.size));
  return check_min_tokens(request, vocabulary);
}

}  // namespace holdfast::engine
