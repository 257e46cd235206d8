// ResponseParser: one HTTP/1.1 response out of bytes that come cut anywhere (RFC 9112, sections 4
// to 7). No sockets. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "holdfast/result.h"

namespace holdfast::loadgen {

inline constexpr std::size_t kMaxResponseHeaderBytes = 64u << 10;

class ResponseParser {
 public:
  // Takes bytes and gives parts of the body to `body` as they come. Gives how many bytes belonged
  // to this response: fewer than all once it is complete. Errors: kCorrupt for what is not a
  // response; kResourceExhausted for a header over kMaxResponseHeaderBytes.
  Result<std::size_t> push(std::string_view bytes,
                           const std::function<void(std::string_view part)>& body);
  // The connection was closed by the server. Errors: kIo when the response is not complete.
  Status end_of_connection();

  bool begun() const { return begun_; }  // a byte has come
  bool header_complete() const { return state_ > State::kHeader; }
  bool complete() const { return state_ == State::kComplete; }
  int status() const { return status_; }
  // `name` in lower case; empty when absent.
  const std::string& header(const std::string& name) const;
  // Whether the connection may serve another request once this is complete.
  bool keeps_connection() const { return keeps_connection_; }

 private:
  enum class State : std::uint8_t {
    kHeader, kLength, kToEnd, kChunkSize, kChunk, kChunkEnd, kTrailer, kComplete
  };
  Status take_header(std::string_view text);
  Status choose_body();
  Status take_line(std::string_view line);
  Result<std::size_t> push_header(std::string_view bytes);
  Result<std::size_t> push_line(std::string_view bytes);

  State state_ = State::kHeader;
  bool begun_ = false;
  int status_ = 0;
  bool keeps_connection_ = false;
  std::uint64_t left_ = 0;  // bytes of the body, or of the chunk
  std::string pending_;     // of the header, or of a line
  std::map<std::string, std::string> headers_;
};

}  // namespace holdfast::loadgen
