// /tokenize and /detokenize, in vLLM's form.
#include <fmt/format.h>

#include <limits>
#include <memory>
#include <utility>

#include "holdfast/tokenizer.h"
#include "serve/chat_request.h"
#include "serve/route_support.h"
#include "serve/token_json.h"

namespace holdfast::serve {
namespace {

constexpr std::size_t kMaxTextBytes = std::numeric_limits<std::size_t>::max();

void write_tokens(const RouteSupport& support, const std::vector<std::int32_t>& ids,
                  bool with_text, Responder& responder) {
  const TokenNames names(support.context().host.tokenizer(), false);
  JsonWriter out;
  out.begin_object().field("count", ids.size());
  out.field("max_model_len", support.limits().max_context).array("tokens", ids);
  out.key("token_strs");
  if (with_text) {
    out.begin_array();
    for (const std::int32_t id : ids) out.value(names.text(id));
    out.end_array();
  } else {
    out.null();
  }
  out.end_object();
  responder.reply(200, "application/json", out.take());
}

void tokenize(const RouteSupport& support, const HttpRequest& http, Responder& responder) {
  JsonDocument document;
  if (!support.parse(http, document, responder)) return;
  RequestErrors errors;
  FieldReader in(document.root(), "", errors);
  std::string model, text;
  bool with_text = false, unused = true;
  std::vector<std::int32_t> ids;
  in.string("model", model, kMaxNameBytes);
  in.boolean("return_token_strs", with_text);
  in.boolean("add_special_tokens", unused);
  in.ignore({"user"});
  if (in.has("messages")) {
    ChatRequest request;
    read_conversation(in, request.conversation);
    in.finish();
    render_conversation(request, support.context().chat, errors);
    if (!errors.any()) ids = std::move(request.prompts.front().ids);
  } else {
    in.string("prompt", text, kMaxTextBytes);
    if (!in.has("prompt")) in.fail("prompt", "prompt or messages is missing");
    in.finish();
    auto encoded = support.context().host.tokenizer().encode(text);
    if (encoded.ok()) {
      ids = std::move(*encoded);
    } else {
      in.fail("prompt", encoded.error().message());
    }
  }
  support.check_model(model, errors);
  if (support.answer_errors(errors, responder)) write_tokens(support, ids, with_text, responder);
}

void detokenize(const RouteSupport& support, const HttpRequest& http, Responder& responder) {
  JsonDocument document;
  if (!support.parse(http, document, responder)) return;
  RequestErrors errors;
  FieldReader in(document.root(), "", errors);
  std::string model, text;
  std::vector<std::int32_t> ids;
  in.string("model", model, kMaxNameBytes);
  in.ids("tokens", ids, std::numeric_limits<std::size_t>::max(),
         {0, support.limits().vocab_size - 1});
  if (!in.has("tokens")) in.fail("tokens", "tokens is missing");
  in.finish();
  support.check_model(model, errors);
  if (!errors.any()) {
    auto decoded = support.context().host.tokenizer().decode(ids);
    if (decoded.ok()) {
      text = std::move(*decoded);
    } else {
      in.fail("tokens", decoded.error().message());
    }
  }
  if (!support.answer_errors(errors, responder)) return;
  JsonWriter out;
  out.begin_object().field("prompt", text).end_object();
  responder.reply(200, "application/json", out.take());
}

}  // namespace

void add_tokenize_routes(Router& router, std::shared_ptr<const RouteSupport> support) {
  router.add("POST", "/tokenize",
             [support](const HttpRequest& http, const ResponderPtr& responder) {
               tokenize(*support, http, *responder);
             });
  router.add("POST", "/detokenize",
             [support](const HttpRequest& http, const ResponderPtr& responder) {
               detokenize(*support, http, *responder);
             });
}

}  // namespace holdfast::serve
