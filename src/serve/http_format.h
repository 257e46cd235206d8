// The text of answers: status lines, dates, header fields. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace holdfast::serve {

std::string_view status_text(int status);  // 404: "Not Found"
// "Sun, 06 Nov 1994 08:49:37 GMT" of now. (RFC 9110 section 5.6.7)
std::string http_date();
// `name: value\r\n` appended to `out`, control characters as blanks.
void append_field(std::string& out, std::string_view name, std::string_view value);
// A chunk of chunked coding: size in hex, bytes. (RFC 9112 section 7.1)
void append_chunk(std::string& out, std::string_view bytes);
// `text` as a JSON string with its quotes; what is not UTF-8 becomes U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace holdfast::serve
