#include "serve/generate_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace holdfast::serve {
namespace {

constexpr std::string_view kNone = "this server does not have it; leave it out";
constexpr std::int64_t kSglangMaxTokens = 128;
constexpr std::int64_t kVllmMaxTokens = 16;

void read_token_sampling(FieldReader& in, TokensRequest& request, const RequestLimits& limits) {
  read_sampling(in, request, limits);
  read_prompt_logprobs(in, request.engine, limits);
  std::int64_t top = 0;
  if (in.integer("logprobs", top, logprobs_range(limits))) {
    request.logprobs = true;
    request.engine.top_logprobs = static_cast<std::int32_t>(top);
  }
  // What its own front end adds to sampling_params when it sends them on.
  in.ignore({"detokenize", "output_kind", "spaces_between_special_tokens", "skip_clone",
             "stream_interval", "skip_reading_prefix_cache"});
  in.refuse("extra_args", kNone);
  in.refuse("truncate_prompt_tokens", "send the ids that are meant");
  refuse_unsupported(in);
  in.finish();
}

}  // namespace

TokensRequest parse_tokens(JsonValue body, const RequestLimits& limits, RequestErrors& errors) {
  TokensRequest request;
  request.default_max_tokens = kVllmMaxTokens;
  FieldReader in(body, "", errors);
  read_envelope(in, request);
  Prompt prompt;
  const std::size_t most = std::numeric_limits<std::size_t>::max();
  if (in.ids("token_ids", prompt.ids, most, {0, limits.vocab_size - 1})) {
    request.prompts.push_back(std::move(prompt));
  }
  if (!in.has("token_ids")) in.fail("token_ids", "token_ids is missing");
  if (const auto sampling = in.value("sampling_params")) {
    FieldReader inner(*sampling, "sampling_params", errors);
    read_token_sampling(inner, request, limits);
  } else {
    request.engine.sampling.temperature = 1.0f;
    request.engine.logprobs_mode = limits.logprobs_mode;
  }
  std::string mode = "tokens";
  in.one_of("output_mode", mode, {"tokens", "text"});
  request.text = mode == "text";
  request.engine.want_text = request.text;
  in.boolean("return_routed_experts", request.engine.routed_experts);
  if (request.engine.routed_experts && !limits.routed_experts) {
    in.fail("return_routed_experts", "return_routed_experts is true, and the model's config.json "
                                     "does not say how many experts a token goes to");
  }
  if (request.stream && request.engine.prompt_logprobs) {
    in.fail("stream", "prompt_logprobs do not come in a stream; leave stream out");
  }
  in.ignore({"return_token_ids", "session_id"});
  for (const std::string_view name : {"features", "kv_transfer_params", "ec_transfer_params",
                                      "lora_request", "mm_processor_kwargs"}) {
    in.refuse(name, kNone);
  }
  in.finish();
  return request;
}

// ------------------------------------------------------------------------------ SGLang

namespace {

void read_sglang_sampling(FieldReader& in, SglangPrompt& prompt, const RequestLimits& limits) {
  read_sampling(in, prompt, limits,
                {.max_tokens = "max_new_tokens",
                 .min_tokens = "min_new_tokens",
                 .seed = "sampling_seed",
                 .include_stop = "no_stop_trim"});
  in.ignore({"spaces_between_special_tokens", "stream_interval"});
  for (const std::string_view name : {"json_schema", "regex", "ebnf", "structural_tag"}) {
    in.refuse(name, "output cannot be constrained here; leave it out");
  }
  for (const std::string_view name : {"stop_regex", "custom_params", "thinking_budget",
                                      "beam_width", "custom_logit_processor"}) {
    in.refuse(name, kNone);
  }
  in.finish();
}

// The value of one prompt: its element of a list over prompts, or what holds for all.
class PerPrompt {
 public:
  PerPrompt(FieldReader& in, std::size_t count) : in_(in), count_(count) {}

  // `nested`: the value of one prompt is a list itself.
  std::optional<JsonValue> value(std::string_view name, std::size_t index, bool nested = false) {
    const auto found = in_.value(name);
    path_ = in_.path_of(name);
    if (!found || found->kind() != JsonKind::kArray) return found;
    const auto first = found->first();
    if (nested && (!first || first->kind() != JsonKind::kArray)) return found;
    if (found->size() != count_) {
      in_.fail(name, fmt::format("{} has {} entries and there are {} prompts; expected one of each",
                                 path_, found->size(), count_));
      return std::nullopt;
    }
    const JsonValue element = found->elements()[index];
    path_ = fmt::format("{}[{}]", path_, index);
    return element.is_null() ? std::nullopt : std::optional(element);
  }
  void boolean(std::string_view name, std::size_t index, bool& into) {
    const auto found = value(name, index);
    if (!found) return;
    if (!found->boolean()) return wrong(*found, "true or false");
    into = *found->boolean();
  }
  void integer(std::string_view name, std::size_t index, std::int64_t& into, IntRange range) {
    const auto found = value(name, index);
    if (!found) return;
    const auto number = found->integer();
    if (!number || *number < range.low || *number > range.high) {
      return wrong(*found, fmt::format("an integer, {} to {}", range.low, range.high));
    }
    into = *number;
  }
  void name(std::string_view name, std::size_t index, std::string& into) {
    const auto found = value(name, index);
    if (!found) return;
    const auto text = found->string();
    if (!text || text->empty() || text->size() > kMaxNameBytes) {
      return wrong(*found, fmt::format("a string of 1 to {} bytes", kMaxNameBytes));
    }
    into = *text;
  }
  void wrong(const JsonValue& found, std::string_view expected) {
    in_.errors().add(path_, fmt::format("{} is {}; expected {}", path_, found.brief(), expected));
  }
  const std::string& path() const { return path_; }

 private:
  FieldReader& in_;
  std::size_t count_;
  std::string path_;
};

// logprob_start_len, top_logprobs_num, token_ids_logprob.
void read_sglang_logprobs(PerPrompt& each, std::size_t i, SglangPrompt& prompt,
                          const RequestLimits& limits) {
  each.boolean("return_logprob", i, prompt.return_logprob);
  each.integer("logprob_start_len", i, prompt.logprob_start, {-1, limits.max_context});
  each.integer("top_logprobs_num", i, prompt.top_logprobs, {0, limits.max_logprobs});
  if (const auto ids = each.value("token_ids_logprob", i, true)) {
    if (ids->kind() != JsonKind::kArray ||
        ids->ids_into(prompt.logprob_ids, {0, limits.vocab_size - 1})) {
      each.wrong(*ids, fmt::format("token ids, 0 to {}", limits.vocab_size - 1));
    }
    if (limits.max_logprobs < limits.vocab_size) {
      each.wrong(*ids, "nothing: a position's log probabilities of chosen ids need all of them, "
                       "and max_logprobs is smaller");
    }
    std::sort(prompt.logprob_ids.begin(), prompt.logprob_ids.end());
  }
  if (!prompt.return_logprob) return;
  Request& engine = prompt.engine;
  const bool all = !prompt.logprob_ids.empty();
  engine.top_logprobs = all ? -1 : static_cast<std::int32_t>(prompt.top_logprobs);
  if (prompt.logprob_start >= 0) {
    engine.prompt_logprobs = true;
    if (all || prompt.top_logprobs > 0) engine.prompt_top_logprobs = engine.top_logprobs;
  }
}

void read_sglang_prompt(FieldReader& in, std::size_t i, SglangRequest& request,
                        const RequestLimits& limits) {
  SglangPrompt& prompt = request.prompts[i];
  PerPrompt each(in, request.prompts.size());
  prompt.default_max_tokens = kSglangMaxTokens;
  prompt.engine.sampling.temperature = 1.0f;
  prompt.engine.logprobs_mode = limits.logprobs_mode;
  if (const auto sampling = each.value("sampling_params", i)) {
    FieldReader inner(*sampling, each.path(), in.errors());
    read_sglang_sampling(inner, prompt, limits);
  }
  each.name("rid", i, prompt.request_id);
  read_sglang_logprobs(each, i, prompt, limits);
  // Both part the prefix cache; the lengths keep ("a", "bc") and ("ab", "c") apart.
  std::string salt, key;
  each.name("cache_salt", i, salt);
  each.name("extra_key", i, key);
  prompt.engine.cache_salt = key.empty() ? salt : fmt::format("{}:{}{}", salt.size(), salt, key);
  // SGLang's highest goes first, the engine's lowest.
  std::int64_t priority = 0;
  each.integer("priority", i, priority, {-(std::int64_t{1} << 53), std::int64_t{1} << 53});
  prompt.engine.priority = -priority;
  prompt.engine.want_text = true;
  prompt.engine.routed_experts = request.routed_experts;
  prompt.stream = request.stream;
}

}  // namespace

SglangRequest parse_sglang(JsonValue body, const RequestLimits& limits, RequestErrors& errors) {
  SglangRequest request;
  FieldReader in(body, "", errors);
  std::vector<Prompt> prompts;
  const bool is_text = in.has("text"), is_ids = in.has("input_ids");
  if (is_text == is_ids) {
    in.fail("input_ids", is_text ? "text and input_ids are both there; expected one of them"
                                 : "text or input_ids is missing");
  }
  const std::string_view name = is_text ? "text" : "input_ids";
  in.ignore({"text", "input_ids"});
  read_prompts(in, name, prompts, limits);
  if (!prompts.empty() && prompts[0].is_text != is_text) {
    in.fail(name, is_text ? "text is an array of ids; expected a string or an array of strings"
                          : "input_ids is text; expected token ids or arrays of token ids");
  }
  if (const auto given = in.value(name); given && given->kind() == JsonKind::kArray) {
    request.is_list = is_text || given->first()->kind() == JsonKind::kArray;
  }
  in.boolean("stream", request.stream);
  in.boolean("return_text_in_logprobs", request.text_in_logprobs);
  in.boolean("return_routed_experts", request.routed_experts);
  if (request.routed_experts && !limits.routed_experts) {
    in.fail("return_routed_experts", "return_routed_experts is true, and the model's config.json "
                                     "does not say how many experts a token goes to");
  }
  request.prompts.resize(prompts.size());
  for (std::size_t i = 0; i < prompts.size() && !errors.any(); ++i) {
    request.prompts[i].prompts.push_back(std::move(prompts[i]));
    read_sglang_prompt(in, i, request, limits);
    if (request.prompts[i].n != request.prompts[0].n) {
      in.fail("sampling_params", "sampling_params differ in n; expected the same for all prompts");
    }
  }
  in.ignore({"log_metrics", "background", "return_prompt_token_ids", "http_worker_ipc",
             "routing_key", "conversation_id", "no_logs", "require_reasoning",
             "data_parallel_rank", "return_bytes", "model"});
  for (const std::string_view refused :
       {"lora_path", "lora_id", "image_data", "audio_data", "video_data", "input_embeds",
        "modalities", "session_params", "custom_logit_processor", "return_hidden_states",
        "bootstrap_host", "bootstrap_port", "bootstrap_room", "token_type_ids",
        "return_indexer_topk", "positional_embed_overrides", "multi_item_delimiter"}) {
    in.refuse(refused, kNone);
  }
  in.finish();
  // What was read before the error is half of a request.
  if (errors.any()) request.prompts.clear();
  return request;
}

GenerationPlan plan_sglang(SglangRequest& request, const PlanInput& input, RequestErrors& errors) {
  GenerationPlan plan;
  const auto prompts = static_cast<std::int64_t>(request.prompts.size());
  const std::int64_t n = request.prompts.empty() ? 1 : request.prompts[0].n;
  check_choices({.prompts = prompts, .each = n, .param = input.param}, input.limits, errors);
  for (std::size_t i = 0; i < request.prompts.size() && !errors.any(); ++i) {
    SglangPrompt& prompt = request.prompts[i];
    PlanInput own = input;
    const std::string param =
        prompts == 1 ? std::string(input.param) : fmt::format("{}[{}]", input.param, i);
    own.param = param;
    own.random = input.random + plan.requests.size();
    GenerationPlan part = make_plan(prompt, own, errors);
    std::move(part.requests.begin(), part.requests.end(), std::back_inserter(plan.requests));
    plan.filters.push_back({});
    if (!prompt.logprob_ids.empty()) {
      plan.filters.back() = {.most = static_cast<std::size_t>(prompt.top_logprobs),
                             .ids = prompt.logprob_ids};
    }
  }
  plan.per_prompt = static_cast<std::size_t>(n);
  plan.stream = request.stream;
  return plan;
}

}  // namespace holdfast::serve
