#include "serve/http_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace holdfast::serve {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr int kLingerMs = 2000;
constexpr std::size_t kMaxPipelinedBytes = std::size_t{64} << 10;

}  // namespace

Connection::Connection(HttpShared& shared, BoundListener& listener, Worker& worker)
    : shared_(shared),
      listener_(listener),
      worker_(worker),
      socket_(worker.context),
      timer_(worker.context) {}

Connection::~Connection() { close(); }

void Connection::start(bool refused) {
  error_code ignored;  // a socket that is broken already shows it at the first read
  socket_.non_blocking(true, ignored);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  if (refused) {
    refuse(503, "too many connections; try again later", {{"Retry-After", "1"}});
    return read();
  }
  expect_read(shared_.options.limits.header_timeout_ms);
  read();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
  forget_buffered();
  if (upload_ != nullptr) upload_->detach();
  if (exchange_ != nullptr) {
    const std::shared_ptr<Exchange> exchange = std::move(exchange_);
    exchange->detach();
    report(*exchange, false);
  }
  upload_.reset();
  listener_.connections.fetch_sub(1);
  // Not from the destructor, which runs when nobody can have a share any more.
  if (const auto self = weak_from_this().lock()) worker_.connections.erase(self);
}

void Connection::report(const Exchange& exchange, bool whole) {
  if (std::exchange(pending_, false)) shared_.pending.fetch_sub(1);
  if (!shared_.options.on_answer) return;
  const ExchangeRequest& request = exchange.request();
  const std::chrono::duration<double> seconds = Clock::now() - request.began;
  shared_.options.on_answer({.listener = listener_.config.name,
                             .method = request.method,
                             .path = request.path,
                             .route = request.route,
                             .request_id = request.id,
                             .status = exchange.status(),
                             .whole = whole,
                             .seconds = seconds.count(),
                             .bytes_sent = exchange.bytes_sent()});
}

void Connection::close_if_idle() {
  if (phase_ == Phase::kIdle) close();
}

void Connection::wake() {
  asio::post(worker_.context, [self = shared_from_this()] {
    self->flush();
    self->read();  // an upload may have room again
  });
}

// --- reading

bool Connection::wants_input() const {
  if (phase_ == Phase::kClosed || input_ended_) return false;
  return phase_ != Phase::kUpload || upload_->has_room();
}

// Waits for input without a buffer of its own: thousands of idle connections hold no memory.
void Connection::read() {
  if (reading_) return;
  if (!wants_input()) {
    // The client is not slow while it is us who do not read.
    if (phase_ == Phase::kUpload) read_deadline_ = Clock::time_point::max();
    return;
  }
  if (phase_ == Phase::kUpload && read_deadline_ == Clock::time_point::max()) {
    expect_read(shared_.options.limits.body_timeout_ms);
  }
  reading_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const error_code&) {
                       self->reading_ = false;
                       if (self->phase_ != Phase::kClosed) self->on_readable();
                     });
}

void Connection::on_readable() {
  if (!wants_input()) return read();
  error_code error;
  const std::size_t count = socket_.read_some(asio::buffer(worker_.buffer), error);
  if (error == asio::error::would_block || error == asio::error::try_again) return read();
  if (error) return on_end_of_input(error != asio::error::eof);
  on_bytes(std::string_view(worker_.buffer.data(), count));
  read();
}

void Connection::on_bytes(std::string_view bytes) {
  if (discards_ || phase_ == Phase::kLinger) return;
  if (phase_ == Phase::kAnswer) return keep(bytes);
  if (kept_.empty()) return advance(bytes);
  std::string together = std::exchange(kept_, {});
  together += bytes;
  advance(together);
}

// A further request while one is being answered. It waits its turn, if it is small; else this
// answer is the last, since only an open read side shows that the client is still there.
void Connection::keep(std::string_view bytes) {
  kept_ += bytes;
  if (kept_.size() <= kMaxPipelinedBytes) return;
  kept_ = {};
  discards_ = true;
  exchange_->set_keep_alive(false);
}

void Connection::on_end_of_input(bool reset) {
  input_ended_ = true;
  const bool answered = phase_ == Phase::kAnswer && exchange_->ended();
  if (reset || !answered) return close();
  exchange_->set_keep_alive(false);  // it still reads; what is on its way goes out
}

// --- writing

void Connection::flush() {
  if (phase_ == Phase::kClosed || writing_) return;
  while (true) {
    if (out_.empty() && exchange_ != nullptr && !answer_taken_) {
      const Exchange::Taken taken = exchange_->take(out_);
      if (taken.overrun) return close();
      answer_taken_ = taken.ended;
      answer_broken_ = taken.broken;
      if (answer_taken_) {
        reply_deadline_ =
            Clock::now() + std::chrono::milliseconds(shared_.options.limits.reply_timeout_ms);
      }
    }
    if (out_.empty()) break;
    if (!send()) return;
  }
  write_deadline_ = Clock::time_point::max();
  if (answer_broken_) return close();
  if (answer_taken_) finish();
}

bool Connection::send() {
  while (out_sent_ < out_.size()) {
    error_code error;
    const std::size_t count = socket_.write_some(
        asio::buffer(out_.data() + out_sent_, out_.size() - out_sent_), error);
    if (error == asio::error::would_block || error == asio::error::try_again) {
      // A peer that reads a little now and then is making progress: the deadline moves with it.
      write_deadline_ =
          Clock::now() + std::chrono::milliseconds(shared_.options.limits.write_timeout_ms);
      arm();
      writing_ = true;
      socket_.async_wait(asio::ip::tcp::socket::wait_write,
                         [self = shared_from_this()](const error_code&) {
                           self->writing_ = false;
                           self->flush();
                         });
      return false;
    }
    if (error) {
      close();
      return false;
    }
    out_sent_ += count;
    if (exchange_ != nullptr) exchange_->sent(count);
  }
  out_.clear();
  if (out_.capacity() > kMaxPipelinedBytes) out_.shrink_to_fit();
  out_sent_ = 0;
  return true;
}

// The answer has been sent whole.
void Connection::finish() {
  const std::shared_ptr<Exchange> exchange = std::move(exchange_);
  exchange->detach();
  exchange_.reset();
  answer_taken_ = false;
  reply_deadline_ = Clock::time_point::max();
  report(*exchange, true);
  const bool unread = parser_ != nullptr && parser_->state() != RequestParser::State::kDone;
  if (upload_ != nullptr) upload_->detach();
  upload_.reset();
  parser_.reset();
  forget_buffered();
  if (discards_ || unread) return linger();
  if (!exchange->keeps_alive() || shared_.stopping) return linger();
  if (input_ended_) return close();
  phase_ = Phase::kIdle;
  expect_read(shared_.options.limits.idle_timeout_ms);
  const std::string kept = std::exchange(kept_, {});
  if (!kept.empty()) advance(kept);
  read();
}

// A close while the client still sends would reset the connection, and the client might lose the
// answer with it (RFC 9112 section 9.6).
void Connection::linger() {
  if (input_ended_) return close();
  phase_ = Phase::kLinger;
  kept_ = {};
  error_code error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  if (error) return close();
  expect_read(kLingerMs);
  read();
}

// --- time

void Connection::expect_read(int milliseconds) {
  read_deadline_ = Clock::now() + std::chrono::milliseconds(milliseconds);
  arm();
}

// The timer is only moved when it would come too late; one that comes too early looks again.
void Connection::arm() {
  const Clock::time_point next = std::min({read_deadline_, write_deadline_, reply_deadline_});
  if (next >= armed_ || next == Clock::time_point::max()) return;
  armed_ = next;
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error == asio::error::operation_aborted || self->phase_ == Phase::kClosed) return;
    self->armed_ = Clock::time_point::max();
    self->on_timer();
  });
}

void Connection::on_timer() {
  const Clock::time_point now = Clock::now();
  if (now >= write_deadline_ || now >= reply_deadline_) return close();
  if (now >= read_deadline_) {
    read_deadline_ = Clock::time_point::max();
    on_read_deadline();
  }
  if (phase_ != Phase::kClosed) arm();
}

void Connection::on_read_deadline() {
  switch (phase_) {
    case Phase::kHeader:
      return refuse(408, "the request's header did not come in time");
    case Phase::kBody:
    case Phase::kUpload:
      return refuse(408, "the request's body did not come in time");
    case Phase::kIdle:
    case Phase::kLinger:
      return close();
    case Phase::kAnswer:
    case Phase::kClosed:
      return;
  }
}

}  // namespace holdfast::serve
