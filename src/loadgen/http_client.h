// HttpClient: HTTP/1.1 calls to one server over kept connections, thousands at once on the thread
// that runs the io_context. No TLS. Owned by whoever owns the io_context; callbacks run on its
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/result.h"
#include "loadgen/http_response.h"

namespace boost::asio {
class io_context;
}

namespace holdfast::loadgen {

// "http://127.0.0.1:8000/prefix"
struct Endpoint {
  std::string host;
  std::string port = "80";
  std::string prefix;  // of every path; without a slash at its end
};
// Errors: kInvalidArgument, kUnsupported for https.
Result<Endpoint> parse_url(const std::string& url);

struct HttpCall {
  std::string method = "GET";
  std::string path;
  std::string body = {};  // JSON, when there is one
  std::vector<std::pair<std::string, std::string>> headers = {};
  bool may_repeat = true;  // sent anew when a kept connection turns out to have been closed
  // Parts of the answer's body as they come; the response's header is complete by then.
  std::function<void(const ResponseParser& response, std::string_view part)> on_body = {};
  // Once, last. Errors: kIo (no connection, cut off), kDeadlineExceeded, kCorrupt.
  std::function<void(const Status& status, const ResponseParser& response)> on_end;
};

class HttpClient {
 public:
  struct Options {
    double idle_timeout_s = 600;  // without a byte, or without a connection
  };
  HttpClient(boost::asio::io_context& io, Endpoint endpoint, Options options);
  // Closes every connection; calls that are open get no on_end.
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Finds the server's address; before any send. Errors: kIo naming host and port.
  Status resolve();
  void send(HttpCall call);
  // Closes the kept connections, so that io_context::run can return.
  void close_idle();
  std::size_t open_connections() const;  // with and without a call
  std::size_t most_connections() const;  // at any moment so far

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace holdfast::loadgen
