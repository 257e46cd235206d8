#include "serve/completion_request.h"

#include <fmt/format.h>

#include <utility>

namespace holdfast::serve {
namespace {

constexpr std::string_view kExpected =
    "a string, an array of strings, an array of token ids, or an array of such arrays";

// One prompt that is an array of ids; false: it has an error.
bool read_ids(FieldReader& in, const std::string& name, const JsonValue& value, Prompt& prompt,
              const RequestLimits& limits) {
  const IntRange range{0, limits.vocab_size - 1};
  if (const auto bad = value.ids_into(prompt.ids, range)) {
    const std::string path = fmt::format("{}[{}]", name, *bad);
    in.fail(path, fmt::format("{} is {}; expected a token id, {} to {}", path,
                              value.elements()[*bad].brief(), range.low, range.high));
    return false;
  }
  return true;
}

}  // namespace

void read_prompts(FieldReader& in, std::string_view name, std::vector<Prompt>& prompts,
                  const RequestLimits& limits) {
  const auto found = in.value(name);
  if (!found) return;
  const std::string path(name);
  if (const auto text = found->string()) {
    prompts.push_back({.text = std::string(*text), .is_text = true});
    return;
  }
  const std::size_t count = found->size();
  if (found->kind() != JsonKind::kArray || count == 0) {
    in.fail(name, fmt::format("{} is {}; expected {}", in.path_of(name), found->brief(),
                              kExpected));
    return;
  }
  // The first element says which of the forms it is; no copy of a long list of ids is made.
  Prompt ids;
  const JsonKind kind = found->first()->kind();
  if (kind == JsonKind::kNumber) {
    if (read_ids(in, path, *found, ids, limits)) prompts.push_back(std::move(ids));
    return;
  }
  if (static_cast<std::int64_t>(count) > limits.max_choices) {
    in.fail(name, fmt::format("{} holds {} prompts; at most {} (max_choices)", in.path_of(name),
                              count, limits.max_choices));
    return;
  }
  const std::vector<JsonValue> elements = found->elements();
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const std::string element = fmt::format("{}[{}]", name, i);
    Prompt prompt;
    if (elements[i].kind() != kind || (kind != JsonKind::kString && kind != JsonKind::kArray)) {
      in.fail(element, fmt::format("{} is {}; expected {}", element, elements[i].brief(),
                                   kExpected));
      return;
    }
    if (const auto text = elements[i].string()) {
      prompt = {.text = std::string(*text), .is_text = true};
    } else if (!read_ids(in, element, elements[i], prompt, limits)) {
      return;
    }
    prompts.push_back(std::move(prompt));
  }
}

CompletionRequest parse_completion(JsonValue body, const RequestLimits& limits,
                                   RequestErrors& errors) {
  CompletionRequest request;
  request.default_max_tokens = limits.default_max_tokens;
  FieldReader in(body, "", errors);
  read_envelope(in, request);
  read_prompts(in, "prompt", request.prompts, limits);
  if (!in.has("prompt")) in.fail("prompt", "prompt is missing");
  read_sampling(in, request, limits);
  read_prompt_logprobs(in, request.engine, limits);
  read_openai_extras(in, request, limits);
  in.boolean("echo", request.echo);
  Request& engine = request.engine;
  request.asked_prompt_logprobs = engine.prompt_logprobs;
  std::int64_t logprobs = 0;
  if (in.integer("logprobs", logprobs, logprobs_range(limits))) {
    request.logprobs = logprobs;
    engine.top_logprobs = static_cast<std::int32_t>(logprobs);
    if (request.echo && !engine.prompt_logprobs) {
      engine.prompt_logprobs = true;
      engine.prompt_top_logprobs = engine.top_logprobs;
    }
  }
  if (request.stream && request.asked_prompt_logprobs) {
    in.fail("prompt_logprobs", "prompt_logprobs do not come in a stream; leave stream out, or use "
                               "echo with logprobs");
  }
  engine.want_text = true;
  refuse_unsupported(in);
  in.finish();
  return request;
}

}  // namespace holdfast::serve
