#include "holdfast/result.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kMismatch: return "mismatch";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kResourceExhausted: return "resource_exhausted";
    case ErrorCode::kFailedPrecondition: return "failed_precondition";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kDevice: return "device";
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kDeadlineExceeded: return "deadline_exceeded";
    case ErrorCode::kPoisoned: return "poisoned";
  }
  return "unknown";
}

std::string Error::to_string() const {
  return std::string(error_code_name(code_)) + ": " + message_;
}

namespace detail {
void result_access_failed(const Error& error) {
  std::fprintf(stderr, "holdfast: value() of a failed Result: %s\n", error.to_string().c_str());
  std::abort();
}
}  // namespace detail

}  // namespace holdfast
