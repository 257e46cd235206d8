// /inference/v1/generate (vLLM's) and /generate (SGLang's).
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "serve/generate_reply.h"
#include "serve/route_support.h"

namespace holdfast::serve {
namespace {

using Support = std::shared_ptr<const RouteSupport>;

void generate_tokens(const Support& support, const HttpRequest& http,
                     const ResponderPtr& responder) {
  JsonDocument document;
  if (!support->parse(http, document, *responder)) return;
  RequestErrors errors;
  TokensRequest request = parse_tokens(document.root(), support->limits(), errors);
  support->check_model(request.model, errors);
  GenerationPlan plan = make_plan(request, support->plan_input("token_ids"), errors);
  if (!support->answer_errors(errors, *responder)) return;
  const std::string id = external_id(request, http);
  // The reply has the client's own id; vLLM knows the request by the longer name as well.
  plan.names = {{id, "generate-tokens-" + id}};
  support->start(std::move(plan), tokens_reply(request, support->reply_context("", id)),
                 responder);
}

void generate_sglang(const Support& support, const HttpRequest& http,
                     const ResponderPtr& responder) {
  JsonDocument document;
  if (!support->parse(http, document, *responder)) return;
  RequestErrors errors;
  SglangRequest request = parse_sglang(document.root(), support->limits(), errors);
  if (!support->answer_errors(errors, *responder)) return;
  const bool is_text = !request.prompts.empty() && request.prompts[0].prompts[0].is_text;
  GenerationPlan plan =
      plan_sglang(request, support->plan_input(is_text ? "text" : "input_ids"), errors);
  if (!support->answer_errors(errors, *responder)) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    std::string name = request.prompts[i].request_id;
    // One rid for a list of prompts, or none: they are told apart by their number.
    if (name.empty()) name = http.id;
    if (request.prompts.size() > 1 &&
        (request.prompts[i].request_id.empty() || (i > 0 && names.front().starts_with(name)))) {
      name = fmt::format("{}_{}", name, i);
    }
    plan.names.push_back({name});
    names.push_back(std::move(name));
  }
  support->start(std::move(plan),
                 sglang_reply(request, std::move(names), support->reply_context("", http.id)),
                 responder);
}

}  // namespace

void add_generate_routes(Router& router, ServeContext& context) {
  const Support support = make_route_support(context);
  router.add("POST", "/inference/v1/generate",
             [support](const HttpRequest& http, const ResponderPtr& responder) {
               generate_tokens(support, http, responder);
             });
  for (const char* method : {"POST", "PUT"}) {
    router.add(method, "/generate",
               [support](const HttpRequest& http, const ResponderPtr& responder) {
                 generate_sglang(support, http, responder);
               });
  }
}

}  // namespace holdfast::serve
