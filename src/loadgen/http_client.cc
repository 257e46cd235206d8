#include "loadgen/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <unordered_set>

#include "base/error.h"

namespace holdfast::loadgen {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = 8u << 10;
// Connections that are being opened at one time: a listener's backlog is short, and a dropped SYN
// costs a second.
constexpr std::size_t kMaxConnecting = 64;
constexpr auto kSweep = std::chrono::milliseconds(250);

std::string request_text(const HttpCall& call, const Endpoint& endpoint) {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", call.method,
                                endpoint.prefix, call.path, endpoint.host, endpoint.port);
  for (const auto& [name, value] : call.headers) out += fmt::format("{}: {}\r\n", name, value);
  if (!call.body.empty()) out += "Content-Type: application/json\r\n";
  if (!call.body.empty() || call.method == "POST") {
    out += fmt::format("Content-Length: {}\r\n", call.body.size());
  }
  return out + "\r\n" + call.body;
}

}  // namespace

Result<Endpoint> parse_url(const std::string& url) {
  std::string_view rest = url;
  if (rest.starts_with("https://")) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: https is not spoken here; put a plain listener or a proxy before it",
                      url);
  }
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  Endpoint out;
  const std::size_t slash = rest.find('/');
  if (slash != std::string_view::npos) out.prefix = std::string(rest.substr(slash));
  while (out.prefix.ends_with('/')) out.prefix.pop_back();
  std::string_view authority = rest.substr(0, slash);
  const std::size_t bracket = authority.find(']');
  const std::size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    out.port = std::string(authority.substr(colon + 1));
    authority = authority.substr(0, colon);
  }
  if (authority.starts_with('[') && authority.ends_with(']')) {
    authority = authority.substr(1, authority.size() - 2);
  }
  out.host = std::string(authority);
  const bool digits = out.port.find_first_not_of("0123456789") == std::string::npos;
  if (out.host.empty() || out.port.empty() || !digits || out.port.size() > 5 ||
      rest.find_first_of(" \r\n@?#") != std::string_view::npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} is not an address like http://127.0.0.1:8000", url);
  }
  return out;
}

struct HttpClient::Impl : std::enable_shared_from_this<HttpClient::Impl> {
  class Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;

  Impl(asio::io_context& context, Endpoint to, Options with)
      : io(context), endpoint(std::move(to)), options(with), sweep_timer(context) {}

  void send(HttpCall call);
  void pump();
  void open(HttpCall call);
  void opened();
  void ended(const ConnectionPtr& connection, bool keep);
  void sweep();
  void close();

  asio::io_context& io;
  const Endpoint endpoint;
  const Options options;
  std::vector<tcp::endpoint> addresses;
  std::deque<HttpCall> waiting;  // calls that have no connection yet
  std::size_t connecting = 0, most = 0;
  std::vector<ConnectionPtr> idle;
  std::unordered_set<ConnectionPtr> busy;
  asio::steady_timer sweep_timer;
  bool sweeping = false;
};

// One socket, and the call that it carries.
class HttpClient::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(Impl& client) : client_(client), socket_(client.io) {}

  void open(HttpCall call) {
    begin(std::move(call));
    connecting_ = true;
    asio::async_connect(socket_, client_.addresses,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          if (self->closed_) return;
                          self->connecting_ = false;
                          self->client_.opened();
                          if (error) return self->fail("cannot connect", error);
                          error_code ignored;
                          self->socket_.set_option(tcp::no_delay(true), ignored);
                          self->write();
                        });
  }
  void reuse(HttpCall call) {
    begin(std::move(call));
    reused_ = true;
    write();
  }
  void close() {
    closed_ = true;
    error_code ignored;
    socket_.close(ignored);
  }
  bool connecting() const { return connecting_; }
  // Ends a call that has made no progress since `before`.
  void expire(SteadyClock::time_point before) {
    if (closed_ || last_progress_ >= before) return;
    end(make_error(ErrorCode::kDeadlineExceeded, "{}:{}: nothing came for {} s",
                   client_.endpoint.host, client_.endpoint.port, client_.options.idle_timeout_s),
        false);
  }

 private:
  void begin(HttpCall call) {
    call_ = std::move(call);
    parser_ = ResponseParser();
    request_ = request_text(call_, client_.endpoint);
    last_progress_ = SteadyClock::now();
  }
  void write() {
    asio::async_write(socket_, asio::buffer(request_),
                      [self = shared_from_this()](error_code error, std::size_t) {
                        if (self->closed_) return;
                        // A server may answer (413, 429) and close before it has read all: what
                        // it said is worth more than the failed write.
                        self->write_error_ = error;
                        self->read();
                      });
  }
  void read() {
    socket_.async_read_some(asio::buffer(buffer_),
                            [self = shared_from_this()](error_code error, std::size_t size) {
                              if (!self->closed_) self->take(error, size);
                            });
  }
  void take(error_code error, std::size_t size) {
    last_progress_ = SteadyClock::now();
    if (error == asio::error::eof) {
      const Status status = parser_.end_of_connection();
      return status.ok() ? end({}, false) : lost(status.error());
    }
    if (error) return fail("reading", write_error_ ? write_error_ : error);
    const auto on_part = [this](std::string_view part) {
      if (call_.on_body) call_.on_body(parser_, part);
    };
    const Result<std::size_t> used = parser_.push({buffer_.data(), size}, on_part);
    if (!used.ok()) return end(used.error(), false);
    if (parser_.complete()) return end({}, parser_.keeps_connection() && *used == size);
    read();
  }
  void fail(const char* what, error_code error) {
    lost(make_error(ErrorCode::kIo, "{}:{}: {}: {}", client_.endpoint.host, client_.endpoint.port,
                    what, error.message()));
  }
  // The connection is gone. Where it had been kept and nothing came, the server closed it while
  // the request was on its way, and has not looked at it.
  void lost(Error error) {
    if (!reused_ || parser_.begun() || !call_.may_repeat) return end(std::move(error), false);
    HttpCall call = std::move(call_);
    client_.ended(shared_from_this(), false);
    client_.open(std::move(call));
  }
  void end(const Status& status, bool keep) {
    const ConnectionPtr self = shared_from_this();
    const HttpCall call = std::move(call_);
    const ResponseParser parser = std::move(parser_);
    client_.ended(self, keep);
    call.on_end(status, parser);
  }

  Impl& client_;
  tcp::socket socket_;
  HttpCall call_;
  std::string request_;
  ResponseParser parser_;
  std::array<char, kReadBytes> buffer_;
  error_code write_error_ = {};
  SteadyClock::time_point last_progress_ = {};
  bool connecting_ = false, reused_ = false, closed_ = false;
};

void HttpClient::Impl::send(HttpCall call) {
  waiting.push_back(std::move(call));
  pump();
}

// Gives calls that wait to connections that are free, or to new ones.
void HttpClient::Impl::pump() {
  while (!waiting.empty() && (!idle.empty() || connecting < kMaxConnecting)) {
    HttpCall call = std::move(waiting.front());
    waiting.pop_front();
    if (idle.empty()) {
      open(std::move(call));
      continue;
    }
    const ConnectionPtr connection = std::move(idle.back());
    idle.pop_back();
    busy.insert(connection);
    connection->reuse(std::move(call));
    sweep();
  }
}

void HttpClient::Impl::open(HttpCall call) {
  ++connecting;
  const auto connection = std::make_shared<Connection>(*this);
  busy.insert(connection);
  most = std::max(most, busy.size() + idle.size());
  connection->open(std::move(call));
  sweep();
}

void HttpClient::Impl::opened() {
  --connecting;
  pump();
}

void HttpClient::Impl::ended(const ConnectionPtr& connection, bool keep) {
  busy.erase(connection);
  if (connection->connecting()) opened();  // it will not say so any more
  if (keep) {
    idle.push_back(connection);
  } else {
    connection->close();
  }
  pump();
  if (busy.empty()) sweep_timer.cancel();
}

// Looks for calls without progress, as long as there are calls.
void HttpClient::Impl::sweep() {
  if (sweeping) return;
  sweeping = true;
  sweep_timer.expires_after(kSweep);
  sweep_timer.async_wait([weak = weak_from_this()](error_code) {
    const std::shared_ptr<Impl> self = weak.lock();
    if (!self) return;
    self->sweeping = false;
    const auto patience = std::chrono::duration_cast<SteadyClock::duration>(
        std::chrono::duration<double>(self->options.idle_timeout_s));
    const std::vector<ConnectionPtr> all(self->busy.begin(), self->busy.end());
    for (const ConnectionPtr& one : all) one->expire(SteadyClock::now() - patience);
    if (!self->busy.empty()) self->sweep();
  });
}

void HttpClient::Impl::close() {
  for (const ConnectionPtr& one : idle) one->close();
  for (const ConnectionPtr& one : busy) one->close();
  idle.clear();
  busy.clear();
  waiting.clear();
  sweep_timer.cancel();
}

HttpClient::HttpClient(asio::io_context& io, Endpoint endpoint, Options options)
    : impl_(std::make_shared<Impl>(io, std::move(endpoint), options)) {}

HttpClient::~HttpClient() { impl_->close(); }

Status HttpClient::resolve() {
  error_code error;
  tcp::resolver resolver(impl_->io);
  const auto found = resolver.resolve(impl_->endpoint.host, impl_->endpoint.port, error);
  if (error) {
    return make_error(ErrorCode::kIo, "{}: {}", impl_->endpoint.host, error.message());
  }
  for (const auto& entry : found) impl_->addresses.push_back(entry.endpoint());
  return {};
}

void HttpClient::send(HttpCall call) { impl_->send(std::move(call)); }

void HttpClient::close_idle() {
  for (const auto& one : impl_->idle) one->close();
  impl_->idle.clear();
}

std::size_t HttpClient::open_connections() const {
  return impl_->busy.size() + impl_->idle.size();
}
std::size_t HttpClient::most_connections() const { return impl_->most; }

}  // namespace holdfast::loadgen
