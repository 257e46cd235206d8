#include "serve/http_parser.h"

#include <algorithm>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <limits>
#include <utility>

#include "base/error.h"

namespace holdfast::serve {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using View = boost::beast::string_view;

std::string lower(View text) {
  std::string result(text.data(), text.size());
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

// Wherever a chunked body stands, this many bytes are still to come ("0", line end, line end);
// Beast asserts that it is not shown fewer of its end.
constexpr std::size_t kShortestEnd = 5;

// Collects what Beast finds.
class Collector final : public http::basic_parser<true> {
 public:
  RequestHead head;
  std::string body;
  std::map<std::string, std::string> trailers;
  bool repeated_host = false;

 private:
  void on_request_impl(http::verb, View method, View target, int version,
                       error_code&) override {
    head.method.assign(method.data(), method.size());
    head.target.assign(target.data(), target.size());
    head.http_11 = version == 11;
  }
  void on_response_impl(int, View, int, error_code&) override {}
  void on_field_impl(http::field, View name, View value, error_code&) override {
    auto& fields = is_header_done() ? trailers : head.headers;
    const std::string key = lower(name);
    const auto [at, fresh] = fields.try_emplace(key, value.data(), value.size());
    if (fresh) return;
    repeated_host = repeated_host || key == "host";
    at->second.append(", ").append(value.data(), value.size());
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(View bytes, error_code&) override {
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(std::uint64_t, View, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, View bytes, error_code&) override {
    body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_finish_impl(error_code&) override {}
};

}  // namespace

struct RequestParser::Impl {
  std::size_t limit = 0;
  std::size_t header_bytes = 0;  // Beast's limit is on what comes in one piece
  State state = State::kHeader;
  Failure failure;
  Collector collector;

  void fail(int status, std::string message) {
    state = State::kFailed;
    failure = {.status = status, .message = std::move(message)};
  }
  void fail_too_large();
  void fail(const error_code& error);
  void check_head();
};

void RequestParser::Impl::fail_too_large() {
  fail(431, fmt::format("the request's header, or a line of its chunks, has more than {} bytes",
                        limit));
}

void RequestParser::Impl::fail(const error_code& error) {
  if (error == http::error::header_limit) return fail_too_large();
  if (error == http::error::bad_version) {
    return fail(505, "the request is not of HTTP/1.0 or HTTP/1.1");
  }
  fail(400, fmt::format("the request is not HTTP: {}", error.message()));
}

// What Beast lets pass, or leaves to its user: framing that two readers could understand in two
// ways is refused (RFC 9112 sections 3.2, 6.1 and 6.3).
void RequestParser::Impl::check_head() {
  RequestHead& head = collector.head;
  const auto field = [&](const char* name) -> std::optional<std::string> {
    const auto found = head.headers.find(name);
    if (found == head.headers.end()) return std::nullopt;
    return lower(found->second);
  };
  if (collector.repeated_host) return fail(400, "the request has more than one Host");
  if (head.http_11 && !field("host")) return fail(400, "the request has no Host");
  if (const auto coding = field("transfer-encoding")) {
    if (!head.http_11) return fail(400, "Transfer-Encoding in a request of HTTP/1.0");
    if (*coding != "chunked") {
      return fail(501, fmt::format("Transfer-Encoding \"{}\" is not supported, only chunked",
                                   coding->substr(0, 64)));
    }
  }
  if (const auto expect = field("expect")) {
    if (*expect != "100-continue") {
      return fail(417, fmt::format("Expect \"{}\" cannot be met, only 100-continue",
                                   expect->substr(0, 64)));
    }
    head.expects_continue = head.http_11;
  }
  if (const auto length = collector.content_length()) head.content_length = *length;
  head.chunked = collector.chunked();
  head.keep_alive = collector.keep_alive();
  state = collector.is_done() ? State::kDone : State::kBody;
}

RequestParser::RequestParser(std::size_t max_header_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->limit = max_header_bytes;
  impl_->collector.header_limit(static_cast<std::uint32_t>(
      std::min<std::size_t>(max_header_bytes, std::numeric_limits<std::uint32_t>::max())));
  impl_->collector.body_limit(boost::none);  // the connection's to judge, by the route
}

RequestParser::~RequestParser() = default;

std::size_t RequestParser::feed(std::string_view bytes) {
  std::size_t taken = 0;
  // A part at a time: Beast stops after each chunk of a body, and behind the header.
  while (taken < bytes.size() &&
         (impl_->state == State::kHeader || impl_->state == State::kBody)) {
    error_code error;
    const std::string_view rest = bytes.substr(taken);
    const bool chunks = impl_->state == State::kBody && impl_->collector.head.chunked;
    if (chunks && rest.size() < kShortestEnd) break;
    const std::size_t count =
        impl_->collector.put(boost::asio::const_buffer(rest.data(), rest.size()), error);
    taken += count;
    if (impl_->state == State::kHeader) impl_->header_bytes += count;
    if (error == http::error::need_more) {
      const std::size_t before = impl_->state == State::kHeader ? impl_->header_bytes : 0;
      if (before + rest.size() - count > impl_->limit) impl_->fail_too_large();
      break;
    }
    if (error) {
      impl_->fail(error);
      break;
    }
    if (impl_->state == State::kHeader) {
      if (impl_->header_bytes > impl_->limit) {
        impl_->fail_too_large();
        break;
      }
      if (!impl_->collector.is_header_done()) continue;
      impl_->check_head();
      break;
    }
    if (impl_->collector.is_done()) impl_->state = State::kDone;
  }
  return taken;
}

RequestParser::State RequestParser::state() const { return impl_->state; }
const RequestParser::Failure& RequestParser::failure() const { return impl_->failure; }
const RequestHead& RequestParser::head() const { return impl_->collector.head; }
RequestHead& RequestParser::head() { return impl_->collector.head; }
std::string RequestParser::take_body() { return std::exchange(impl_->collector.body, {}); }
std::size_t RequestParser::body_size() const { return impl_->collector.body.size(); }
const std::map<std::string, std::string>& RequestParser::trailers() const {
  return impl_->collector.trailers;
}

}  // namespace holdfast::serve
