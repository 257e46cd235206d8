// Whether the process lives, whether it can serve, and which build it is.
#include <optional>

#include "base/error.h"
#include "holdfast/version.h"
#include "serve/context.h"
#include "serve/http_format.h"

namespace holdfast::serve {
namespace {

void add_liveness(Router& router) {
  router.add("GET", "/health", [](HttpRequest, ResponderPtr responder) {
    responder->reply(200, "text/plain", "");
  }, Access::kOpen);
  router.add("GET", "/version", [](HttpRequest, ResponderPtr responder) {
    responder->reply(200, "application/json",
                     fmt::format("{{\"version\":{}}}", json_quoted(version())));
  }, Access::kOpen);
}

// Why no request would be answered now; empty when it would. A pause is the trainer's own doing and
// its requests wait, so it is none.
std::string why_not_ready(const HostSnapshot& snapshot) {
  if (snapshot.failed) return "failed: " + snapshot.failure;
  if (snapshot.poisoned) return "poisoned: " + snapshot.failure;
  if (snapshot.draining) return "draining: the server is ending";
  if (snapshot.sleeping) return "asleep: POST /wake_up on the control listener";
  return {};
}

}  // namespace

void add_health_routes(Router& router, ServeContext& context) {
  add_liveness(router);
  router.add("GET", "/ready", [&context](HttpRequest, ResponderPtr responder) {
    const std::string why = why_not_ready(context.host.snapshot());
    if (why.empty()) {
      responder->reply(200, "application/json", R"({"status":"ready"})");
    } else {
      reply_error(*responder, 503, why);
    }
  }, Access::kOpen);
}

void add_loading_routes(Router& router) {
  add_liveness(router);
  router.refuse_others(503, "loading: the model is not there yet");
}

}  // namespace holdfast::serve
