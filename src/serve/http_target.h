// Reading of a request's target ("/v1/models?limit=2") and of the few header values that the server
// itself acts on. Pure functions over bytes from outside; any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "holdfast/result.h"

namespace holdfast::serve {

inline constexpr std::size_t kMaxQueryPairs = 256;

struct Target {
  std::string path;  // decoded, without trailing slashes ("/" stays)
  std::multimap<std::string, std::string> query;
};

// Origin form, or absolute form (RFC 9112 section 3.2), percent-decoded (RFC 3986 section 2.1; "+"
// is a blank in the query). A fragment is refused. Errors: kInvalidArgument naming the byte.
Result<Target> parse_target(std::string_view target);

// Decodes %XX, and "+" where `plus_is_blank`. Errors: kInvalidArgument for a % without two hex
// digits, and for a decoded control character.
Result<std::string> percent_decode(std::string_view text, bool plus_is_blank);

// "Bearer <token>" (RFC 6750 section 2.1) against the token that is asked for, in a time that
// depends on the lengths alone.
bool bearer_matches(std::string_view authorization, std::string_view expected);

// The client's X-Request-Id if it can stand in a header and a log line: up to 128 of
// A-Z a-z 0-9 . _ - : / ; else empty.
std::string accepted_request_id(std::string_view text);
// 32 hex digits that no other request of this process has.
std::string make_request_id();

}  // namespace holdfast::serve
