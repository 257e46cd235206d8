// /v1/models, /v1/completions, /v1/chat/completions, and /tokenize with /detokenize.
#include <memory>
#include <utility>

#include "serve/chat_reply.h"
#include "serve/completion_reply.h"
#include "serve/route_support.h"

namespace holdfast::serve {
namespace {

using Support = std::shared_ptr<const RouteSupport>;

std::string models_json(const ServeContext& context, std::int64_t created_s) {
  const std::string& name = context.model_name;
  JsonWriter out;
  out.begin_object().field("object", "list").key("data").begin_array();
  out.begin_object().field("id", name).field("object", "model").field("created", created_s);
  out.field("owned_by", "holdfast").field("root", context.host.model_directory());
  out.key("parent").null().field("max_model_len", context.host.max_context());
  out.key("permission").begin_array().begin_object();
  out.field("id", "modelperm-" + name).field("object", "model_permission");
  out.field("created", created_s).field("allow_create_engine", false);
  out.field("allow_sampling", true).field("allow_logprobs", true);
  out.field("allow_search_indices", false).field("allow_view", true);
  out.field("allow_fine_tuning", false).field("organization", "*").key("group").null();
  out.field("is_blocking", false).end_object().end_array();
  out.end_object().end_array().end_object();
  return out.take();
}

// Every prompt of a request goes by the request's name, and by the id in its reply.
std::vector<std::vector<std::string>> same_names(std::size_t prompts, const std::string& request,
                                                 const std::string& reply) {
  return std::vector<std::vector<std::string>>(prompts, {request, reply});
}

void complete(const Support& support, const HttpRequest& http, const ResponderPtr& responder) {
  JsonDocument document;
  if (!support->parse(http, document, *responder)) return;
  RequestErrors errors;
  CompletionRequest request = parse_completion(document.root(), support->limits(), errors);
  support->check_model(request.model, errors);
  GenerationPlan plan = make_plan(request, support->plan_input("prompt"), errors);
  if (!support->answer_errors(errors, *responder)) return;
  const std::string id = external_id(request, http);
  ReplyContext context = support->reply_context("cmpl-", id);
  plan.names = same_names(request.prompts.size(), id, context.id);
  support->start(std::move(plan), completion_reply(request, std::move(context)), responder);
}

void chat(const Support& support, const HttpRequest& http, const ResponderPtr& responder) {
  JsonDocument document;
  if (!support->parse(http, document, *responder)) return;
  RequestErrors errors;
  ChatRequest request = parse_chat(document.root(), support->limits(), errors);
  support->check_model(request.model, errors);
  const ChatFormat& format = support->context().chat;
  render_conversation(request, format, errors);
  GenerationPlan plan = make_plan(request, support->plan_input("messages"), errors);
  if (!support->answer_errors(errors, *responder)) return;
  const std::string id = external_id(request, http);
  ReplyContext context = support->reply_context("chatcmpl-", id);
  plan.names = same_names(1, id, context.id);
  support->start(std::move(plan), chat_reply(request, format, std::move(context)), responder);
}

}  // namespace

void add_openai_routes(Router& router, ServeContext& context) {
  const Support support = make_route_support(context);
  router.add("GET", "/v1/models",
             [body = models_json(context, unix_seconds())](
                 const HttpRequest&, const ResponderPtr& responder) {
               responder->reply(200, "application/json", body);
             });
  router.add("POST", "/v1/completions",
             [support](const HttpRequest& http, const ResponderPtr& responder) {
               complete(support, http, responder);
             });
  router.add("POST", "/v1/chat/completions",
             [support](const HttpRequest& http, const ResponderPtr& responder) {
               chat(support, http, responder);
             });
  add_tokenize_routes(router, support);
}

}  // namespace holdfast::serve
