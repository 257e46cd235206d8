// The part of Connection that turns bytes into requests, and requests into calls of their routes.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/http_connection.h"

namespace holdfast::serve {
namespace {

// Bytes of a body that must come within body_timeout_ms, so that a client cannot hold a connection
// with a byte now and then.
constexpr std::size_t kMinimumProgress = 1024;

std::string field_or_empty(const RequestHead& head, const char* name) {
  const auto found = head.headers.find(name);
  return found == head.headers.end() ? std::string() : found->second;
}

}  // namespace

void Connection::advance(std::string_view bytes) {
  const auto reads_request = [&] {
    return phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kBody ||
           phase_ == Phase::kUpload;
  };
  while (!bytes.empty() && reads_request() && !discards_) {
    if (phase_ == Phase::kIdle) {
      // Some clients end a request with one line end too many (RFC 9112 section 2.2).
      while (bytes.starts_with("\r\n")) bytes.remove_prefix(2);
      if (bytes.empty()) break;
      phase_ = Phase::kHeader;
      request_ = {};
      parser_ = std::make_unique<RequestParser>(shared_.options.limits.max_header_bytes);
      expect_read(shared_.options.limits.header_timeout_ms);
    }
    const RequestParser::State before = parser_->state();
    const std::size_t taken = parser_->feed(bytes);
    bytes.remove_prefix(taken);
    const bool moved = taken > 0 || parser_->state() != before;
    on_parsed();
    if (!moved) break;
  }
  if (phase_ == Phase::kClosed || phase_ == Phase::kLinger || discards_) return;
  if (phase_ == Phase::kAnswer) return bytes.empty() ? void() : keep(bytes);
  kept_ = bytes;
}

void Connection::on_parsed() {
  if (parser_->state() == RequestParser::State::kFailed) {
    const RequestParser::Failure failure = parser_->failure();
    return refuse(failure.status, failure.message);
  }
  if (parser_->state() == RequestParser::State::kHeader) return;
  if (phase_ == Phase::kHeader) on_header();
  if (phase_ == Phase::kBody) on_body();
  if (phase_ == Phase::kUpload) on_upload_body();
}

void Connection::on_header() {
  RequestHead& head = parser_->head();
  request_ = {};
  route_ = nullptr;
  request_.method = head.method;
  request_.id = accepted_request_id(field_or_empty(head, "x-request-id"));
  if (request_.id.empty()) request_.id = make_request_id();
  read_deadline_ = Clock::time_point::max();
  const std::size_t question = head.target.find('?');
  Result<Target> target = parse_target(head.target);
  if (!target.ok()) {
    make_exchange(head.target.substr(0, question), "");
    return refuse(400, target.error().message());
  }
  route_request(std::move(target).value());
}

void Connection::route_request(Target target) {
  const Router::Match match = listener_.router.load()->find(request_.method, target.path);
  make_exchange(target.path, match.route == nullptr ? "" : match.route->path);
  request_.path = std::move(target.path);
  request_.query = std::move(target.query);
  if (!match.message.empty()) {
    return refuse(match.status, match.message, {{"Retry-After", "1"}});
  }
  if (match.status == 404) {
    return refuse(404, fmt::format("there is no {} on the {} listener", request_.path,
                                   listener_.config.name));
  }
  if (match.status == 405) {
    return refuse(405, fmt::format("{} takes {}, not {}", request_.path, match.allow,
                                   request_.method), {{"Allow", match.allow}});
  }
  if (!authorised(*match.route)) {
    return refuse(401, fmt::format("the {} listener asks for \"Authorization: Bearer <key>\" with "
                                   "its key", listener_.config.name),
                  {{"WWW-Authenticate", "Bearer"}});
  }
  take_request(match);
}

void Connection::take_request(const Router::Match& match) {
  request_.parameter = match.parameter;
  route_ = match.route;
  RequestHead& head = parser_->head();
  const bool uploads = takes_upload(*route_);
  request_.headers = head.headers;
  if (uploads) return begin_upload(*route_);
  const std::uint64_t limit = shared_.options.limits.max_body_bytes;
  if (head.content_length.value_or(0) > limit) {
    return refuse(413, fmt::format("the request's body has {} bytes, at most {} are taken",
                                   *head.content_length, limit));
  }
  phase_ = Phase::kBody;
  progress_ = 0;
  if (parser_->state() == RequestParser::State::kDone) return;
  send_continue();
  expect_read(shared_.options.limits.body_timeout_ms);
}

void Connection::make_exchange(std::string path, std::string route) {
  const bool headed = parser_ != nullptr && !parser_->head().method.empty();
  exchange_ = std::make_shared<Exchange>(
      this, shared_.options.limits.max_unsent_bytes,
      ExchangeRequest{.method = headed ? parser_->head().method : "",
                      .path = std::move(path),
                      .route = std::move(route),
                      .id = request_.id,
                      .http_11 = !headed || parser_->head().http_11,
                      .keep_alive = headed && parser_->head().keep_alive && !shared_.stopping,
                      .began = Clock::now()});
  pending_ = !shared_.stopping;
  if (pending_) shared_.pending.fetch_add(1);
}

bool Connection::authorised(const Router::Route& route) const {
  if (route.access == Access::kOpen || listener_.config.api_key.empty()) return true;
  return bearer_matches(field_or_empty(parser_->head(), "authorization"),
                        listener_.config.api_key);
}

bool Connection::takes_upload(const Router::Route& route) const {
  if (!route.upload) return false;
  if (!route.handler) return true;
  const std::string type = field_or_empty(parser_->head(), "content-type");
  return parser_->head().has_body() && !type.empty() && type.find("json") == std::string::npos;
}

void Connection::send_continue() {
  if (!parser_->head().expects_continue || parser_->body_size() > 0) return;
  parser_->head().expects_continue = false;
  out_ += "HTTP/1.1 100 Continue\r\n\r\n";
  wake();
}

void Connection::on_body() {
  const HttpLimits& limits = shared_.options.limits;
  const std::size_t size = parser_->body_size();
  if (size > limits.max_body_bytes) {
    return refuse(413, fmt::format("the request's body has more than {} bytes",
                                   limits.max_body_bytes));
  }
  const std::size_t grown = size - buffered_;
  buffered_ = size;
  if (shared_.buffered_bytes.fetch_add(grown) + grown > limits.max_buffered_bytes) {
    return refuse(503, "too many large requests are coming at once; try again later",
                  {{"Retry-After", "1"}});
  }
  if (parser_->state() == RequestParser::State::kDone) return dispatch();
  if (size < progress_ + kMinimumProgress) return;
  progress_ = size;
  expect_read(limits.body_timeout_ms);
}

void Connection::begin_upload(const Router::Route& route) {
  // Should it answer before the whole body has come, the connection ends with that answer.
  exchange_->set_keep_alive(false);
  std::unique_ptr<Upload> upload = route.upload(request_, make_responder(exchange_));
  if (upload == nullptr) {
    phase_ = Phase::kAnswer;
    discards_ = parser_->state() != RequestParser::State::kDone;
    return;
  }
  upload_ = std::make_shared<UploadRun>(*shared_.uploads, this, std::move(upload));
  phase_ = Phase::kUpload;
  if (parser_->state() == RequestParser::State::kDone) return;
  send_continue();
  expect_read(shared_.options.limits.body_timeout_ms);
}

void Connection::on_upload_body() {
  std::string bytes = parser_->take_body();
  if (!bytes.empty()) {
    expect_read(shared_.options.limits.body_timeout_ms);
    upload_->data(std::move(bytes));
  }
  if (parser_->state() != RequestParser::State::kDone) return;
  read_deadline_ = Clock::time_point::max();
  phase_ = Phase::kAnswer;
  exchange_->set_keep_alive(true);
  upload_->finish(parser_->trailers());
}

void Connection::dispatch() {
  request_.body = parser_->take_body();
  forget_buffered();
  read_deadline_ = Clock::time_point::max();
  phase_ = Phase::kAnswer;
  route_->handler(std::move(request_), make_responder(exchange_));
}

// Answers with an error. Unless the request has come whole, nothing more is read: what is left of
// it is not wanted, or cannot be told from the next one.
void Connection::refuse(int status, std::string_view message, const Headers& headers) {
  if (request_.id.empty()) request_.id = make_request_id();
  if (exchange_ == nullptr) make_exchange("", "");
  read_deadline_ = Clock::time_point::max();
  phase_ = Phase::kAnswer;
  discards_ = parser_ == nullptr || parser_->state() != RequestParser::State::kDone;
  if (discards_) exchange_->set_keep_alive(false);
  exchange_->reply(status, "application/json", http_error_body(status, message), headers);
  // Behind the answer: the upload drops its responder when it ends.
  if (upload_ != nullptr) upload_->detach();
}

void Connection::forget_buffered() {
  shared_.buffered_bytes.fetch_sub(buffered_);
  buffered_ = 0;
}

}  // namespace holdfast::serve
