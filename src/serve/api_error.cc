#include "serve/api_error.h"

#include <utility>
#include <vector>

namespace holdfast::serve {
namespace {

// A queue of rollouts drains in seconds, and a reload comes or another server answers as soon.
constexpr const char* kRetryAfterSeconds = "1";

}  // namespace

int http_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      return 400;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kMismatch:
    case ErrorCode::kCorrupt:
    case ErrorCode::kFailedPrecondition:
      return 409;
    case ErrorCode::kResourceExhausted:
      return 429;
    case ErrorCode::kPoisoned:
      return 503;
    case ErrorCode::kIo:
    case ErrorCode::kDevice:
    case ErrorCode::kCancelled:
    case ErrorCode::kDeadlineExceeded:
      break;
  }
  return 500;
}

ApiError api_error(const Error& error, std::string param) {
  return {.status = http_status(error.code()),
          .message = error.message(),
          .param = std::move(param)};
}

ApiError refused_request(const Error& error) {
  ApiError answer = api_error(error);
  // The only state in which the engine takes none is that of ending: another server would.
  if (error.code() == ErrorCode::kFailedPrecondition) answer.status = 503;
  return answer;
}

std::string error_json(const ApiError& error) {
  return http_error_body(error.status, error.message, error.param);
}

void reply_error(Responder& responder, const ApiError& error) {
  std::vector<std::pair<std::string, std::string>> headers;
  if (error.status == 429 || error.status == 503) {
    headers.emplace_back("Retry-After", kRetryAfterSeconds);
  }
  responder.reply(error.status, "application/json", error_json(error), std::move(headers));
}

}  // namespace holdfast::serve
