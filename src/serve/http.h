// The HTTP server: listeners, connections, limits, and routes to handlers. Knows no engine and no
// JSON schema. Handlers run on the server's I/O threads and must not block; a Responder may be used
// from any thread. (HTTP/1.1, RFC 9112; server-sent events, WHATWG HTML section 9.2.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::serve {

struct HttpLimits {
  std::size_t max_header_bytes = 16u << 10;
  std::size_t max_body_bytes = 32u << 20;       // of a body that is kept whole
  std::size_t max_buffered_bytes = std::size_t{1} << 30;  // of all such bodies that are coming
  std::size_t max_connections = 8192;           // of one listener; more are answered 503 and closed
  std::size_t max_unsent_bytes = 1u << 20;      // of one stream; a client that reads no more is cut
  int header_timeout_ms = 10'000;               // from the first byte to the end of the header
  int body_timeout_ms = 60'000;                 // without a byte of the body (of one that is kept
                                                // whole: without the next 1024 bytes)
  int idle_timeout_ms = 75'000;                 // between two requests
  int write_timeout_ms = 60'000;                // without progress in sending
  int reply_timeout_ms = 600'000;               // from a whole answer until its client has read it
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // decoded, without query and trailing slashes ("/" stays)
  std::multimap<std::string, std::string> query;  // decoded
  std::map<std::string, std::string> headers;     // names in lower case
  std::string body;
  std::string id;         // X-Request-Id, or one that was made
  std::string parameter;  // what stood for {name} in the route's path
  std::string query_value(const std::string& name, std::string otherwise = "") const;
};

// The answer to one request: either reply once, or begin_stream, write..., end. What is called
// after the client is gone, or a second time, does nothing. One that is dropped without an answer
// says 500; one that is dropped in a stream cuts the connection, so that the client can tell.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void reply(int status, std::string content_type, std::string body,
                     std::vector<std::pair<std::string, std::string>> headers = {}) = 0;
  // Sends the header of a chunked answer ("text/event-stream").
  virtual void begin_stream(std::string content_type) = 0;
  // Queues bytes. False: the client is gone, or has not read max_unsent_bytes (then it is cut).
  virtual bool write(std::string bytes) = 0;
  virtual void end() = 0;
  // Called once, on an I/O thread, if the client goes away before the answer has ended (a client
  // that closes only its sending side has gone, too). Called at once when it is gone already.
  virtual void on_gone(std::function<void()> callback) = 0;
};
using ResponderPtr = std::shared_ptr<Responder>;
using Handler = std::function<void(HttpRequest request, ResponderPtr responder)>;

// A body that is taken as it comes. Called, one call at a time, on threads of the server's upload
// pool, which it may block; meanwhile no more than kMaxUploadAhead bytes are read from the client.
class Upload {
 public:
  virtual ~Upload() = default;
  // False: stop reading; the upload has answered.
  virtual bool data(std::span<const std::byte> bytes) = 0;
  // The whole body has come. `trailers`: names in lower case.
  virtual void finish(const std::map<std::string, std::string>& trailers) = 0;
  // The client went away in the middle, was too slow, or sent what is not HTTP. Not called after
  // finish() or after data() was false.
  virtual void gone() = 0;
};
inline constexpr std::size_t kMaxUploadAhead = std::size_t{1} << 20;
// Runs on an I/O thread when the header has come; the request's body is empty. Null: it has
// answered (an error), and the body is not read.
using UploadHandler =
    std::function<std::unique_ptr<Upload>(HttpRequest request, ResponderPtr responder)>;

enum class Access : std::uint8_t {
  kOpen,     // no token needed
  kApiKey,   // HttpListener::api_key, where there is one
};

class Router {
 public:
  // `path`: "/v1/models", or with one last variable part: "/reload/{id}". A path with another
  // method is 405 (with Allow), an unknown one 404, both in OpenAI's error form. HEAD is answered
  // by the GET of its path, without the body. Asserts that the pair is new.
  void add(std::string method, std::string path, Handler handler, Access access = Access::kApiKey);
  // A path may have both: the upload then takes bodies of another content type than JSON that are
  // not empty.
  void add_upload(std::string method, std::string path, UploadHandler handler);

  struct Route {
    std::string method, path;  // the path as given to add
    Handler handler;
    UploadHandler upload;
    Access access = Access::kApiKey;
  };
  struct Match {
    const Route* route = nullptr;  // null: `status` says why
    int status = 404;              // or 405
    std::string parameter;
    std::string allow;    // with 405: "GET, HEAD"
    std::string message;  // with what refuse_others says
  };
  // `path`: decoded, without trailing slashes. An exact path goes before one with a variable.
  Match find(std::string_view method, std::string_view path) const;
  std::vector<std::string> paths() const;  // "GET /v1/models", sorted
  // What is not found is answered with this instead of 404.
  void refuse_others(int status, std::string message);

 private:
  Route& route(std::string method, std::string path);
  std::vector<std::unique_ptr<Route>> routes_;
  int otherwise_ = 404;
  std::string otherwise_message_;
};

// What became of one request, for logs and metrics.
struct HttpAnswer {
  const std::string& listener;
  const std::string& method;
  const std::string& path;   // as the client wrote it, without the query
  const std::string& route;  // "/reload/{id}"; empty where there is none
  const std::string& request_id;
  int status = 0;            // 0: the client went away before there was one
  bool whole = false;        // all of the answer has been handed to the client's system
  double seconds = 0;        // since the header had come
  std::uint64_t bytes_sent = 0;
};

struct HttpListener {
  std::string name;  // for logs: "public", "control"
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  // 0: any that is free
  std::string api_key;     // empty: none is asked for
  const Router* router = nullptr;  // must outlive the server
};

// OpenAI's form: {"error": {"message", "type", "param", "code"}}, with the type that belongs to
// `status`. An empty `param` is null.
std::string http_error_body(int status, std::string_view message, std::string_view param = {});
void reply_error(Responder& responder, int status, std::string_view message,
                 std::string_view param = {});

// Whether an address that a listener is given is of this machine alone ("127.0.0.1", "::1",
// "localhost").
bool is_loopback(const std::string& address);

class HttpServer {
 public:
  struct Options {
    HttpLimits limits = {};
    int io_threads = 1;
    int upload_threads = 2;
    // Called once for each request, on an I/O thread: for logs and metrics.
    std::function<void(const HttpAnswer&)> on_answer;
  };
  // Binds and starts. Errors: kIo naming address, port and why; kInvalidArgument.
  static Result<std::unique_ptr<HttpServer>> start(std::vector<HttpListener> listeners,
                                                   Options options);
  // Closes every connection and joins the threads (uploads first come back from their call).
  virtual ~HttpServer() = default;
  virtual std::uint16_t port(std::string_view listener) const = 0;
  virtual std::size_t connections() const = 0;
  // From the next request on. Any thread; `router` must outlive the server.
  virtual void use(std::string_view listener, const Router& router) = 0;
  // From now on each answer closes its connection. More are accepted still.
  virtual void begin_drain() = 0;
  // Requests that had come before begin_drain() and whose answers are still to be sent.
  virtual std::size_t pending() const = 0;
  // Accepts nothing more; connections that are answering go on, and close with their answers.
  virtual void stop_accepting() = 0;
};

}  // namespace holdfast::serve
