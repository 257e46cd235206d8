#include "serve/route_support.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace holdfast::serve {

RequestLimits limits_of(const ServeContext& context) {
  const ServeOptions& options = context.options;
  RequestLimits limits;
  limits.vocab_size = context.host.vocab_size();
  limits.max_context = context.host.max_context();
  limits.max_prompt_tokens = limits.max_context;
  if (options.max_prompt_tokens != 0) {
    limits.max_prompt_tokens = std::min(limits.max_context,
                                        static_cast<std::int64_t>(options.max_prompt_tokens));
  }
  limits.max_choices = options.max_choices;
  limits.max_waiting = options.engine.max_waiting;
  const std::int64_t all = limits.vocab_size;
  limits.max_logprobs =
      options.max_logprobs < 0 ? all : std::min<std::int64_t>(all, options.max_logprobs);
  limits.default_max_tokens = options.default_max_tokens;
  limits.logprobs_mode = options.logprobs_mode.starts_with("processed") ? LogprobsMode::kProcessed
                                                                        : LogprobsMode::kRaw;
  return limits;
}

RouteSupport::RouteSupport(ServeContext& context)
    : context_(context), limits_(limits_of(context)),
      routing_(routing_shape(context.host.model_directory())) {
  limits_.routed_experts = routing_.layers > 0 && routing_.experts_per_token > 0;
}

std::shared_ptr<const RouteSupport> make_route_support(ServeContext& context) {
  return std::make_shared<const RouteSupport>(context);
}

bool RouteSupport::parse(const HttpRequest& request, JsonDocument& document,
                         Responder& responder) const {
  const auto error = JsonDocument::parse(request.body, document);
  if (error) reply_error(responder, *error);
  return !error;
}

void RouteSupport::check_model(const std::string& model, RequestErrors& errors) const {
  if (model.empty() || model == context_.model_name || errors.any()) return;
  errors.add({.status = 404,
              .message = fmt::format("model is \"{}\"; this server has \"{}\" only", model,
                                     context_.model_name),
              .param = "model"});
}

bool RouteSupport::answer_errors(const RequestErrors& errors, Responder& responder) const {
  if (errors.any()) reply_error(responder, *errors.first());
  return !errors.any();
}

PlanInput RouteSupport::plan_input(std::string_view param) const {
  return {.tokenizer = context_.host.tokenizer(),
          .limits = limits_,
          .random = random_seed(),
          .param = param};
}

ReplyContext RouteSupport::reply_context(std::string_view prefix,
                                         const std::string& request_id) const {
  return {.tokenizer = context_.host.tokenizer(),
          .id = std::string(prefix) + request_id,
          .model = context_.model_name,
          .created_s = unix_seconds(),
          .eos_token_ids = context_.host.eos_token_ids(),
          .routing = routing_};
}

void RouteSupport::start(GenerationPlan plan, std::unique_ptr<ReplyFormat> format,
                         ResponderPtr responder) const {
  GenerationPorts ports = ports_of(context_.host);
  ports.metrics = &context_.metrics;
  ports.registry = context_.registry;
  ports.max_streams = context_.options.max_streams;
  Generation::start(std::move(ports), std::move(plan), std::move(format), std::move(responder));
}

std::string external_id(const CommonRequest& request, const HttpRequest& http) {
  return request.request_id.empty() ? http.id : request.request_id;
}

}  // namespace holdfast::serve
