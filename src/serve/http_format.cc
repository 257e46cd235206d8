#include "serve/http_format.h"

#include <ctime>
#include <utility>

#include "base/error.h"
#include "serve/http.h"

namespace holdfast::serve {
namespace {

// The length of the UTF-8 sequence at the front of `text`, 0 where there is none. (RFC 3629)
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  std::size_t length = 0;
  unsigned char least = 0x80, most = 0xbf;  // of the second byte
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) length = 2;
  if (first >= 0xe0 && first <= 0xef) length = 3;
  if (first >= 0xf0 && first <= 0xf4) length = 4;
  if (first == 0xe0) least = 0xa0;
  if (first == 0xed) most = 0x9f;
  if (first == 0xf0) least = 0x90;
  if (first == 0xf4) most = 0x8f;
  if (length == 0 || text.size() < length) return 0;
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

std::string_view error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string_view status_text(int status) {
  static constexpr std::pair<int, std::string_view> kTexts[] = {
      {200, "OK"}, {202, "Accepted"}, {204, "No Content"}, {304, "Not Modified"},
      {400, "Bad Request"}, {401, "Unauthorized"}, {403, "Forbidden"}, {404, "Not Found"},
      {405, "Method Not Allowed"}, {408, "Request Timeout"}, {409, "Conflict"},
      {411, "Length Required"}, {413, "Content Too Large"}, {415, "Unsupported Media Type"},
      {417, "Expectation Failed"}, {422, "Unprocessable Content"}, {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"}, {499, "Client Closed Request"},
      {500, "Internal Server Error"}, {501, "Not Implemented"}, {503, "Service Unavailable"},
      {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"},
      {507, "Insufficient Storage"}};
  for (const auto& [code, text] : kTexts) {
    if (code == status) return text;
  }
  return status < 400 ? "OK" : "Error";
}

std::string http_date() {
  static constexpr std::string_view kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::string_view kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                 "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  thread_local std::time_t last = 0;
  thread_local std::string text;
  const std::time_t now = std::time(nullptr);
  if (now == last) return text;
  std::tm utc{};
  gmtime_r(&now, &utc);
  text = fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday,
                     kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min,
                     utc.tm_sec);
  last = now;
  return text;
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  const auto append = [&](std::string_view text) {
    for (const char c : text) {
      const bool control = (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
      out += control ? ' ' : c;
    }
  };
  append(name);
  out += ": ";
  append(value);
  out += "\r\n";
}

void append_chunk(std::string& out, std::string_view bytes) {
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes.size());
  out += bytes;
  out += "\r\n";
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      out += "\xef\xbf\xbd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + '"';
}

std::string http_error_body(int status, std::string_view message, std::string_view param) {
  return fmt::format(R"({{"error":{{"message":{},"type":"{}","param":{},"code":{}}}}})",
                     json_quoted(message), error_type(status),
                     param.empty() ? "null" : json_quoted(param), status);
}

void reply_error(Responder& responder, int status, std::string_view message,
                 std::string_view param) {
  responder.reply(status, "application/json", http_error_body(status, message, param));
}

bool is_loopback(const std::string& address) {
  if (address == "localhost" || address == "::1") return true;
  return address.starts_with("127.") &&
         address.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace holdfast::serve
