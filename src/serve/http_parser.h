// RequestParser: one HTTP/1.x request from bytes as they come. The only user of Boost.Beast (its
// basic_parser); no socket. Owned by a connection; its I/O thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace holdfast::serve {

// The request line and the header fields.
struct RequestHead {
  std::string method, target;
  bool http_11 = false;
  std::map<std::string, std::string> headers;  // names in lower case; repeated ones joined by ", "
  std::optional<std::uint64_t> content_length;
  bool chunked = false;
  bool keep_alive = false;
  bool expects_continue = false;
  bool has_body() const { return chunked || content_length.value_or(0) > 0; }
};

class RequestParser {
 public:
  enum class State : std::uint8_t { kHeader, kBody, kDone, kFailed };
  struct Failure {
    int status = 400;  // 400, 417 (Expect), 431 (header over the limit), 501 (Transfer-Encoding),
                       // 505 (version)
    std::string message;
  };

  // Field names, values and the request line together have at most `max_header_bytes`; so do
  // trailers, and one chunk's extensions.
  explicit RequestParser(std::size_t max_header_bytes);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Takes from the front of `bytes` and returns how many. Stops behind the header, and behind the
  // request. What is not taken must come first in the next call, with more bytes behind it.
  std::size_t feed(std::string_view bytes);
  State state() const;
  const Failure& failure() const;  // in kFailed
  const RequestHead& head() const;  // once the header has come
  RequestHead& head();
  // The bytes of the body since the last call.
  std::string take_body();
  std::size_t body_size() const;  // of what take_body would give
  const std::map<std::string, std::string>& trailers() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::serve
