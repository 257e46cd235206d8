// Whatever a client may send before a route sees it: the request as a parser gets it, in pieces
// whose sizes the input chooses; then its target, its way through a router, and its key.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "serve/http.h"
#include "serve/http_format.h"
#include "serve/http_parser.h"
#include "serve/http_target.h"

namespace {

using namespace holdfast::serve;

constexpr std::size_t kMaxHeader = 512;

void check(bool condition) {
  if (!condition) std::abort();
}

const Router& router() {
  static const Router* const made = [] {
    auto* router = new Router;
    const Handler nothing = [](const HttpRequest&, const ResponderPtr&) {};
    router->add("GET", "/", nothing);
    router->add("GET", "/v1/models", nothing);
    router->add("POST", "/reload/{id}", nothing);
    router->add("POST", "/reload/plan", nothing);
    return router;
  }();
  return *made;
}

void check_head(const RequestHead& head) {
  const auto target = parse_target(head.target);
  if (!target.ok()) {
    check(!http_error_body(400, target.error().message()).empty());
    return;
  }
  check(target->path.starts_with('/'));
  check(target->path == "/" || !target->path.ends_with('/'));
  check(target->query.size() <= kMaxQueryPairs);
  const Router::Match match = router().find(head.method, target->path);
  check((match.route != nullptr) == (match.status == 200));
  check((match.status == 405) == !match.allow.empty());
  for (const auto& [name, value] : head.headers) {
    check(accepted_request_id(value).size() <= 128);
    std::string field;
    append_field(field, name, value);
    check(field.find('\n') == field.size() - 1);
    static_cast<void>(bearer_matches(value, "secret"));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::size_t step = 1 + data[0];
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  RequestParser parser(kMaxHeader);
  std::string kept;
  std::size_t body = 0;
  bool has_head = false;
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, step);
    text.remove_prefix(piece.size());
    kept += piece;
    while (!kept.empty()) {
      const auto before = parser.state();
      const std::size_t taken = parser.feed(kept);
      check(taken <= kept.size());
      kept.erase(0, taken);
      if (parser.state() == RequestParser::State::kFailed) {
        check(parser.failure().status >= 400 && !parser.failure().message.empty());
        return 0;
      }
      if (!has_head && parser.state() != RequestParser::State::kHeader) {
        has_head = true;
        check_head(parser.head());
      }
      body += parser.take_body().size();
      if (parser.state() == RequestParser::State::kDone) return 0;
      if (taken == 0 && parser.state() == before) break;
    }
    check(kept.size() <= kMaxHeader + step);  // nothing is kept without bound
  }
  check(body <= size);
  return 0;
}
