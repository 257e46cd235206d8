// Exchange: one request's answer on its way from whoever makes it (any thread) to the connection
// (its I/O thread). What is here is the queue between the two. Shared by the Responder that the
// handler holds and the connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "serve/http.h"

namespace holdfast::serve {

// The connection, as an exchange sees it.
class ExchangeOwner {
 public:
  virtual ~ExchangeOwner() = default;
  // Something can be taken from the exchange. Any thread; must not call back.
  virtual void wake() = 0;
};

// What an exchange is told of its request.
struct ExchangeRequest {
  std::string method, path, route, id;
  bool http_11 = true;
  bool keep_alive = true;
  std::chrono::steady_clock::time_point began = {};
};

class Exchange {
 public:
  Exchange(ExchangeOwner* owner, std::size_t max_unsent, ExchangeRequest request);

  // --- any thread: as the Responder's functions
  void reply(int status, std::string_view content_type, std::string body,
             const std::vector<std::pair<std::string, std::string>>& headers);
  void begin_stream(std::string_view content_type);
  bool write(std::string_view bytes);
  void end();
  void on_gone(std::function<void()> callback);
  void dropped();  // the last Responder has gone

  // --- the connection's thread
  struct Taken {
    bool ended = false;    // with this all of the answer has been taken
    bool overrun = false;  // the client has not read what it should: cut it
    bool broken = false;   // whoever wrote it has gone: cut it behind this
  };
  // Appends what is queued to `out`.
  Taken take(std::string& out);
  void sent(std::size_t bytes);
  bool ended() const;  // all of the answer has been queued
  int status() const;
  // The connection has nothing to do with it any more; on_gone's callback is called if the answer
  // had not ended.
  void detach();
  // Of an answer that is still to begin: whether the connection stays open behind it.
  void set_keep_alive(bool keep_alive);
  bool keeps_alive() const;
  const ExchangeRequest& request() const { return request_; }
  std::uint64_t bytes_sent() const;

 private:
  enum class State : std::uint8_t { kWaiting, kStreaming, kEnded, kGone };
  void head(int status, std::string_view content_type, std::optional<std::size_t> length,
            const std::vector<std::pair<std::string, std::string>>& headers);
  void signal();

  const ExchangeRequest request_;
  const std::size_t max_unsent_;
  mutable std::mutex mutex_;
  ExchangeOwner* owner_;  // null: gone
  State state_ = State::kWaiting;
  bool signalled_ = false;
  bool overrun_ = false, broken_ = false;
  bool headless_ = false;  // the answer to HEAD: no body
  bool chunked_ = false;
  bool keep_alive_;
  int status_ = 0;
  std::string queued_;
  std::size_t unsent_ = 0;
  std::uint64_t sent_ = 0;
  std::function<void()> gone_;
};

// The handler's end. Answers 500, or cuts, when it goes without an answer.
ResponderPtr make_responder(std::shared_ptr<Exchange> exchange);

}  // namespace holdfast::serve
