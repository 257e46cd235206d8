#include "engine/request_check.h"

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

}  // namespace

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
  return check_sampling(request.sampling);
}

}  // namespace holdfast::engine
