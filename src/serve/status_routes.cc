#include <chrono>
#include <memory>

#include "serve/api_error.h"
#include "serve/context.h"
#include "serve/status_json.h"
#include "serve/status_page.h"

namespace holdfast::serve {
namespace {

using SteadyClock = std::chrono::steady_clock;

std::size_t connections_of(const ServeContext& context) {
  return context.connections ? context.connections() : 0;
}

// From when the routes were made to now.
class StatusReporter {
 public:
  explicit StatusReporter(ServeContext& context) : context_(context) {}

  std::string json() {
    const HostSnapshot snapshot = context_.host.snapshot();
    const double uptime_s =
        std::chrono::duration<double>(SteadyClock::now() - began_).count();
    const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
    return status_json(
        {.snapshot = snapshot,
         .model = context_.model_name,
         .uptime_s = uptime_s,
         .now_unix_ms =
             std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count(),
         .connections = connections_of(context_),
         .rates = window_.sample(uptime_s, snapshot.stats)});
  }

 private:
  ServeContext& context_;
  const SteadyClock::time_point began_ = SteadyClock::now();
  ThroughputWindow window_;
};

// The census reads every versioned byte, between two steps.
void answer_census(ServeContext& context, const HttpRequest& request, ResponderPtr responder) {
  const bool summary = request.query_value("summary") == "true";
  context.host.post([summary, responder = std::move(responder)](Engine& engine) {
    const Result<CensusReport> census = engine.census();
    if (!census.ok()) return reply_error(*responder, api_error(census.error()));
    responder->reply(200, "application/json",
                     summary ? census_summary_json(*census) : census->json);
  });
}

}  // namespace

void add_metrics_route(Router& router, ServeContext& context) {
  // Open, as vLLM's is: scrapers seldom have a token, and there are only numbers.
  router.add(
      "GET", "/metrics",
      [&context](HttpRequest, ResponderPtr responder) {
        responder->reply(200, "text/plain; version=0.0.4; charset=utf-8",
                         context.metrics.text(context.host.snapshot(), connections_of(context)));
      },
      Access::kOpen);
}

void add_status_routes(Router& router, ServeContext& context) {
  const auto reporter = std::make_shared<StatusReporter>(context);
  router.add("GET", "/status.json", [reporter](HttpRequest, ResponderPtr responder) {
    responder->reply(200, "application/json", reporter->json(), {{"Cache-Control", "no-store"}});
  });
  router.add("GET", "/census", [&context](HttpRequest request, ResponderPtr responder) {
    answer_census(context, request, std::move(responder));
  });
  // Open, since a browser cannot send a token for a page: it shows nothing until it is given one.
  router.add(
      "GET", "/",
      [](HttpRequest, ResponderPtr responder) {
        responder->reply(200, "text/html; charset=utf-8", std::string(status_page_html()),
                         {{"Content-Security-Policy", std::string(kStatusPagePolicy)},
                          {"X-Content-Type-Options", "nosniff"}});
      },
      Access::kOpen);
}

}  // namespace holdfast::serve
