#include "serve/http_exchange.h"

#include <iterator>

#include "base/error.h"
#include "serve/http_format.h"

namespace holdfast::serve {
namespace {

class ExchangeResponder final : public Responder {
 public:
  explicit ExchangeResponder(std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)) {}
  ~ExchangeResponder() override { exchange_->dropped(); }
  ExchangeResponder(const ExchangeResponder&) = delete;
  ExchangeResponder& operator=(const ExchangeResponder&) = delete;

  void reply(int status, std::string content_type, std::string body,
             std::vector<std::pair<std::string, std::string>> headers) override {
    exchange_->reply(status, content_type, std::move(body), headers);
  }
  void begin_stream(std::string content_type) override { exchange_->begin_stream(content_type); }
  bool write(std::string bytes) override { return exchange_->write(bytes); }
  void end() override { exchange_->end(); }
  void on_gone(std::function<void()> callback) override {
    exchange_->on_gone(std::move(callback));
  }

 private:
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace

ResponderPtr make_responder(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<ExchangeResponder>(std::move(exchange));
}

Exchange::Exchange(ExchangeOwner* owner, std::size_t max_unsent, ExchangeRequest request)
    : request_(std::move(request)),
      max_unsent_(max_unsent),
      owner_(owner),
      headless_(request_.method == "HEAD"),
      keep_alive_(request_.keep_alive) {}

// With the mutex held. One signal is enough until the connection has taken.
void Exchange::signal() {
  if (signalled_ || owner_ == nullptr) return;
  signalled_ = true;
  owner_->wake();
}

// With the mutex held.
void Exchange::head(int status, std::string_view content_type, std::optional<std::size_t> length,
                    const std::vector<std::pair<std::string, std::string>>& headers) {
  status_ = status;
  const bool may_have_body = status != 204 && status != 304;
  if (!length) {
    chunked_ = request_.http_11;
    if (!chunked_) keep_alive_ = false;  // its end is the connection's
  }
  fmt::format_to(std::back_inserter(queued_), "HTTP/1.1 {} {}\r\n", status, status_text(status));
  if (may_have_body && !content_type.empty()) append_field(queued_, "Content-Type", content_type);
  if (may_have_body && length) append_field(queued_, "Content-Length", std::to_string(*length));
  if (!length) append_field(queued_, "Cache-Control", "no-store");
  if (chunked_) append_field(queued_, "Transfer-Encoding", "chunked");
  append_field(queued_, "Date", http_date());
  append_field(queued_, "X-Request-Id", request_.id);
  for (const auto& [name, value] : headers) append_field(queued_, name, value);
  if (!keep_alive_) append_field(queued_, "Connection", "close");
  if (keep_alive_ && !request_.http_11) append_field(queued_, "Connection", "keep-alive");
  queued_ += "\r\n";
}

void Exchange::reply(int status, std::string_view content_type, std::string body,
                     const std::vector<std::pair<std::string, std::string>>& headers) {
  std::function<void()> unused;  // ends after the lock: it may hold the last reference to anything
  const std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return;
  state_ = State::kEnded;
  unused.swap(gone_);
  head(status, content_type, body.size(), headers);
  if (!headless_ && status != 204 && status != 304) queued_ += body;
  unsent_ = queued_.size();
  signal();
}

void Exchange::begin_stream(std::string_view content_type) {
  std::function<void()> unused;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kWaiting) return;
  state_ = headless_ ? State::kEnded : State::kStreaming;
  if (headless_) unused.swap(gone_);
  head(200, content_type, std::nullopt, {});
  unsent_ = queued_.size();
  signal();
}

bool Exchange::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming || overrun_) return false;
  if (bytes.empty()) return true;  // an empty chunk would end the answer
  const std::size_t before = queued_.size();
  if (chunked_) {
    append_chunk(queued_, bytes);
  } else {
    queued_ += bytes;
  }
  unsent_ += queued_.size() - before;
  overrun_ = unsent_ > max_unsent_;
  signal();
  return !overrun_;
}

void Exchange::end() {
  std::function<void()> unused;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kStreaming || overrun_) return;
  state_ = State::kEnded;
  unused.swap(gone_);
  if (chunked_) {
    queued_ += "0\r\n\r\n";
    unsent_ += 5;
  }
  signal();
}

void Exchange::on_gone(std::function<void()> callback) {
  std::function<void()> unused;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kEnded) return;
    if (state_ != State::kGone) {
      unused.swap(gone_);
      gone_ = std::move(callback);
      return;
    }
  }
  callback();
}

void Exchange::dropped() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kStreaming) {
      broken_ = true;
      signal();
    }
    if (state_ != State::kWaiting) return;
  }
  reply(500, "application/json", http_error_body(500, "the request was dropped unanswered"), {});
}

Exchange::Taken Exchange::take(std::string& out) {
  const std::lock_guard lock(mutex_);
  signalled_ = false;
  if (out.empty()) {
    out.swap(queued_);
  } else {
    out += queued_;
  }
  queued_.clear();
  return {.ended = state_ == State::kEnded, .overrun = overrun_, .broken = broken_};
}

void Exchange::sent(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  unsent_ -= std::min(bytes, unsent_);
  sent_ += bytes;
}

void Exchange::detach() {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    owner_ = nullptr;
    if (state_ == State::kEnded || state_ == State::kGone) return;
    state_ = State::kGone;
    gone.swap(gone_);
  }
  if (gone) gone();
}

void Exchange::set_keep_alive(bool keep_alive) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kWaiting || !keep_alive) keep_alive_ = keep_alive && request_.keep_alive;
}

bool Exchange::keeps_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_;
}
bool Exchange::ended() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kEnded;
}
int Exchange::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}
std::uint64_t Exchange::bytes_sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

}  // namespace holdfast::serve
