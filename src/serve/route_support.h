// What the generating routes share: from a parsed request to a Generation. I/O threads; must
// outlive the server, as ServeContext does.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/completion_reply.h"
#include "serve/context.h"
#include "serve/request_fields.h"

namespace holdfast::serve {

class RouteSupport {
 public:
  explicit RouteSupport(ServeContext& context);
  const RequestLimits& limits() const { return limits_; }
  ServeContext& context() const { return context_; }

  // Parses, or answers with the error. `document` must outlive what is read from it.
  bool parse(const HttpRequest& request, JsonDocument& document, Responder& responder) const;
  // 404 where `model` is neither empty nor the served one.
  void check_model(const std::string& model, RequestErrors& errors) const;
  // False: it has answered with the error.
  bool answer_errors(const RequestErrors& errors, Responder& responder) const;
  PlanInput plan_input(std::string_view param) const;
  // `prefix`: "cmpl-" and the like.
  ReplyContext reply_context(std::string_view prefix, const std::string& request_id) const;
  void start(GenerationPlan plan, std::unique_ptr<ReplyFormat> format,
             ResponderPtr responder) const;

 private:
  ServeContext& context_;
  RequestLimits limits_;
  RoutingShape routing_;
};
// One for all routes of a context: it reads the model's config once.
std::shared_ptr<const RouteSupport> make_route_support(ServeContext& context);
// The client's request_id, else the HTTP request's.
std::string external_id(const CommonRequest& request, const HttpRequest& http);
void add_tokenize_routes(Router& router, std::shared_ptr<const RouteSupport> support);

}  // namespace holdfast::serve
