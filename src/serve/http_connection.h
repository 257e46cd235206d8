// Connection: one client's socket, from accept to close: reads requests one after another, hands
// them to their routes, and sends the answers. Everything of a connection runs on the one thread of
// its Worker, except wake(). Owned by its Worker until close().
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "serve/http_exchange.h"
#include "serve/http_parser.h"
#include "serve/http_target.h"
#include "serve/http_upload.h"

namespace holdfast::serve {

// What all connections share; outlives them.
struct HttpShared {
  HttpServer::Options options;
  UploadPool* uploads = nullptr;
  std::atomic<std::size_t> buffered_bytes{0};  // of bodies that are coming
  std::atomic<bool> stopping{false};           // answers close their connections
  std::atomic<std::size_t> pending{0};         // requests that had come before
};

// A listener that is bound.
struct BoundListener {
  HttpListener config;
  std::atomic<const Router*> router{nullptr};  // config's, until another is used
  std::uint16_t port = 0;
  std::atomic<std::size_t> connections{0};
};

class Connection;

// One I/O thread: its event loop, its connections, and the bytes that one of them is reading now.
struct Worker {
  Worker() : context(1), buffer(kReadBytes) {}
  static constexpr std::size_t kReadBytes = std::size_t{256} << 10;
  boost::asio::io_context context;
  std::vector<char> buffer;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  bool ended = false;  // whoever comes now is closed at once
};

class Connection final : public ExchangeOwner, public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpShared& shared, BoundListener& listener, Worker& worker);
  ~Connection() override;
  boost::asio::ip::tcp::socket& socket() { return socket_; }

  // The socket is connected. `refused`: only to say 503 and close.
  void start(bool refused);
  // Closes at once.
  void close();
  // Instead of start(): the connection never was one.
  void discard() { phase_ = Phase::kClosed; }
  // Closes unless a request is there.
  void close_if_idle();
  void wake() override;  // any thread

 private:
  enum class Phase : std::uint8_t {
    kIdle,    // between requests
    kHeader,  // a header has begun
    kBody,    // of a request that is kept whole
    kUpload,  // a body that an Upload takes
    kAnswer,  // the request has come; its answer has not been sent whole
    kLinger,  // answered for the last time; waiting until the client has seen it
    kClosed,
  };
  using Clock = std::chrono::steady_clock;

  // Reading (http_connection.cc).
  void read();
  void on_readable();
  void on_bytes(std::string_view bytes);
  void keep(std::string_view bytes);
  void on_end_of_input(bool reset);
  bool wants_input() const;
  // Writing.
  void flush();
  bool send();  // false: it would block, or the connection is closed
  void finish();
  void linger();
  void report(const Exchange& exchange, bool whole);
  // Time.
  void arm();
  void on_timer();
  void on_read_deadline();
  void expect_read(int milliseconds);

  // Requests (http_request.cc).
  void advance(std::string_view bytes);
  void on_parsed();
  void on_header();
  void route_request(Target target);
  void take_request(const Router::Match& match);
  void make_exchange(std::string path, std::string route);
  bool authorised(const Router::Route& route) const;
  bool takes_upload(const Router::Route& route) const;
  void send_continue();
  void on_body();
  void begin_upload(const Router::Route& route);
  void on_upload_body();
  void dispatch();
  using Headers = std::vector<std::pair<std::string, std::string>>;
  void refuse(int status, std::string_view message, const Headers& headers = {});
  void forget_buffered();

  HttpShared& shared_;
  BoundListener& listener_;
  Worker& worker_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  Phase phase_ = Phase::kIdle;
  bool reading_ = false, writing_ = false;  // a wait for the socket is under way
  bool input_ended_ = false;
  bool discards_ = false;  // what comes after this request is not read as one
  Clock::time_point read_deadline_ = Clock::time_point::max();
  Clock::time_point write_deadline_ = Clock::time_point::max();
  Clock::time_point reply_deadline_ = Clock::time_point::max();
  Clock::time_point armed_ = Clock::time_point::max();

  std::string kept_;  // bytes that have come and were not taken
  std::unique_ptr<RequestParser> parser_;
  HttpRequest request_;
  const Router::Route* route_ = nullptr;
  std::size_t buffered_ = 0;  // counted in shared_.buffered_bytes
  std::size_t progress_ = 0;  // body bytes at the last move of the deadline
  std::shared_ptr<Exchange> exchange_;
  bool pending_ = false;  // exchange_ is counted in shared_.pending
  std::shared_ptr<UploadRun> upload_;
  std::string out_;
  std::size_t out_sent_ = 0;
  bool answer_taken_ = false;   // out_ holds the end of the answer
  bool answer_broken_ = false;  // out_ holds all that there will be of it
};

}  // namespace holdfast::serve
