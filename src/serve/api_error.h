// ApiError: why a request is refused, in the words of HTTP. Values; any thread.
#pragma once

#include <string>

#include "holdfast/result.h"
#include "serve/http.h"

namespace holdfast::serve {

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};  // the field that is wrong ("messages[1].role"); empty: null in the body
};

// 400 for what the request has wrong (kInvalidArgument, kUnsupported), 404, 409 for what does not
// fit what is there (a retry would not help), 429 for a limit, 503 while poisoned, else 500.
int http_status(ErrorCode code);
ApiError api_error(const Error& error, std::string param = {});
// Of a request that the engine did not take: as api_error, but 503 while the server ends.
ApiError refused_request(const Error& error);

std::string error_json(const ApiError& error);
// The whole answer, with Retry-After where it is 429 or 503.
void reply_error(Responder& responder, const ApiError& error);

}  // namespace holdfast::serve
