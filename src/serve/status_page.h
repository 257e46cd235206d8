// The status page: one HTML text with its style and script inside, which asks for /status.json each
// second. It holds no data itself. Any thread.
#pragma once

#include <string_view>

namespace holdfast::serve {

std::string_view status_page_html();
// The page may run its own script and talk to its own server, and nothing else.
inline constexpr std::string_view kStatusPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace holdfast::serve
