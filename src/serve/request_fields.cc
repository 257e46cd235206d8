#include "serve/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <random>

#include "holdfast/tokenizer.h"

namespace holdfast::serve {
namespace {

constexpr std::int64_t kInt32Max = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxBiases = 1u << 16;

void read_logit_bias(FieldReader& in, CommonRequest& request, const RequestLimits& limits) {
  const auto found = in.value("logit_bias");
  if (!found) return;
  const std::string path = in.path_of("logit_bias");
  if (found->kind() != JsonKind::kObject || found->size() > kMaxBiases) {
    in.fail("logit_bias", fmt::format("{} is {}; expected an object of at most {} token ids with "
                                      "a bias each", path, found->brief(), kMaxBiases));
    return;
  }
  auto& biases = request.engine.sampling.logit_bias;
  for (const auto& [name, value] : found->members()) {
    std::int32_t id = -1;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), id);
    const bool is_id = failure == std::errc() && end == name.data() + name.size() && id >= 0 &&
                       id < limits.vocab_size;
    const auto bias = value.real();
    if (!is_id || !bias || *bias < -100 || *bias > 100) {
      in.errors().add(path, fmt::format("{}: \"{}\" is {}; expected a token id, 0 to {}, with "
                                        "a number, -100 to 100", path, name.substr(0, 40),
                                        value.brief(), limits.vocab_size - 1));
      return;
    }
    biases.emplace_back(id, static_cast<float>(*bias));
  }
  std::sort(biases.begin(), biases.end());
  const auto same_id = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::adjacent_find(biases.begin(), biases.end(), same_id);
  if (twice != biases.end()) {
    in.errors().add(path, fmt::format("{}: token id {} comes twice; expected once", path,
                                      twice->first));
  }
}

void read_seed(FieldReader& in, CommonRequest& request, std::string_view name) {
  const auto found = in.value(name);
  if (!found) return;
  if (const auto natural = found->natural()) {
    request.seed = *natural;
  } else if (const auto integer = found->integer()) {
    request.seed = static_cast<std::uint64_t>(*integer);
  } else {
    in.fail(name, fmt::format("{} is {}; expected an integer of 64 bits", in.path_of(name),
                              found->brief()));
  }
}

void read_stops(FieldReader& in, Request& engine, const RequestLimits& limits,
                const SamplingNames& names) {
  if (const auto stop = in.value("stop"); stop && stop->kind() == JsonKind::kString &&
                                          stop->string()->empty()) {
    // vLLM's clients send "" for none.
  } else {
    in.strings("stop", engine.stop, kMaxStopStrings);
  }
  for (const std::string& stop : engine.stop) {
    if (stop.size() <= kMaxStopStringBytes) continue;
    in.fail("stop", fmt::format("{} holds a string of {} bytes; at most {}", in.path_of("stop"),
                                stop.size(), kMaxStopStringBytes));
  }
  const IntRange ids{0, limits.vocab_size - 1};
  in.ids("stop_token_ids", engine.stop_token_ids, kMaxStopTokens, ids);
  in.boolean(names.include_stop, engine.include_stop);
  in.boolean("ignore_eos", engine.ignore_eos);
  in.integer(names.min_tokens, engine.min_tokens, {0, kInt32Max});
  in.boolean("skip_special_tokens", engine.skip_special);
}

void read_logprobs_mode(FieldReader& in, Request& engine) {
  std::string mode;
  if (!in.one_of("logprobs_mode", mode,
                 {"raw", "processed", "raw_logprobs", "processed_logprobs"})) {
    return;
  }
  engine.logprobs_mode = mode.starts_with("raw") ? LogprobsMode::kRaw : LogprobsMode::kProcessed;
}

}  // namespace

IntRange logprobs_range(const RequestLimits& limits) {
  return {limits.max_logprobs < limits.vocab_size ? 0 : -1, limits.max_logprobs};
}

void read_sampling(FieldReader& in, CommonRequest& request, const RequestLimits& limits,
                   const SamplingNames& names) {
  Request& engine = request.engine;
  Sampling& sampling = engine.sampling;
  sampling.temperature = 1.0f;  // as OpenAI has it
  engine.logprobs_mode = limits.logprobs_mode;
  in.real("temperature", sampling.temperature, {0, 100});
  in.real("top_p", sampling.top_p, {0, 1, true});
  std::int64_t top_k = 0;
  in.integer("top_k", top_k, {-1, kInt32Max});
  sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k, 0));
  in.real("min_p", sampling.min_p, {0, 1});
  in.real("repetition_penalty", sampling.repetition_penalty, {0, 10, true});
  in.real("frequency_penalty", sampling.frequency_penalty, {-2, 2});
  in.real("presence_penalty", sampling.presence_penalty, {-2, 2});
  read_logit_bias(in, request, limits);
  const auto ids = static_cast<std::size_t>(limits.vocab_size);
  in.ids("allowed_token_ids", sampling.allowed_token_ids, ids, {0, limits.vocab_size - 1});
  if (in.has("allowed_token_ids") && sampling.allowed_token_ids.empty()) {
    in.fail("allowed_token_ids", "allowed_token_ids is empty, so that no token could follow; leave "
                                 "it out to allow all");
  }
  read_seed(in, request, names.seed);
  in.integer("n", request.n, {1, limits.max_choices});
  read_stops(in, engine, limits, names);
  std::int64_t tokens = 0;
  if (in.integer(names.max_tokens, tokens, {0, kInt32Max})) request.max_tokens = tokens;
  read_logprobs_mode(in, engine);
}

void read_prompt_logprobs(FieldReader& in, Request& engine, const RequestLimits& limits) {
  std::int64_t count = 0;
  if (!in.integer("prompt_logprobs", count, logprobs_range(limits))) return;
  engine.prompt_logprobs = true;
  engine.prompt_top_logprobs = static_cast<std::int32_t>(count);
}

bool read_name(FieldReader& in, std::string_view field, std::string& into) {
  std::string name;
  if (!in.string(field, name, kMaxNameBytes)) return false;
  if (name.empty()) {
    in.fail(field, fmt::format("{} is empty; expected 1 to {} bytes, or none at all",
                               in.path_of(field), kMaxNameBytes));
    return false;
  }
  into = std::move(name);
  return true;
}

void read_envelope(FieldReader& in, CommonRequest& request) {
  in.string("model", request.model, kMaxNameBytes);
  in.boolean("stream", request.stream);
  if (const auto options = in.value("stream_options")) {
    FieldReader inner(*options, in.path_of("stream_options"), in.errors());
    inner.boolean("include_usage", request.include_usage);
    inner.boolean("continuous_usage_stats", request.continuous_usage);
    inner.ignore({"include_obfuscation"});
    inner.finish();
  }
  in.integer("priority", request.engine.priority);
  read_name(in, "cache_salt", request.engine.cache_salt);
  read_name(in, "request_id", request.request_id);
}

void read_openai_extras(FieldReader& in, CommonRequest& request, const RequestLimits& limits) {
  in.boolean("return_token_ids", request.return_token_ids);
  in.boolean("return_tokens_as_token_ids", request.tokens_as_ids);
  std::int64_t keep = 0;
  if (in.integer("truncate_prompt_tokens", keep, {-1, kInt32Max})) {
    request.truncate_prompt_tokens = keep;
  }
  if (keep == 0 && request.truncate_prompt_tokens) {
    in.fail("truncate_prompt_tokens", "truncate_prompt_tokens is 0, which leaves no prompt; "
                                      "expected -1 (what the context takes) or 1 and more");
  }
  std::string side = "left";
  in.one_of("truncation_side", side, {"left", "right"});
  request.keep_prompt_end = side == "left";
  // The tokenizers that are served add no special tokens of their own.
  bool unused = true;
  in.boolean("add_special_tokens", unused);
  in.boolean("return_routed_experts", request.engine.routed_experts);
  if (request.engine.routed_experts && !limits.routed_experts) {
    in.fail("return_routed_experts", "return_routed_experts is true, and the model's config.json "
                                     "does not say how many experts a token goes to");
  }
  in.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
             "prompt_cache_retention", "session_id", "spaces_between_special_tokens",
             "stream_interval", "return_token_offsets", "return_mm_kwargs"});
}

void refuse_unsupported(FieldReader& in) {
  constexpr std::string_view kFree = "output cannot be constrained here; leave it out";
  for (const std::string_view name :
       {"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
        "guided_decoding_backend", "guided_whitespace_pattern", "bad_words"}) {
    in.refuse(name, kFree);
  }
  constexpr std::string_view kNone = "this server does not have it; leave it out";
  for (const std::string_view name :
       {"use_beam_search", "early_stopping", "suffix", "prompt_embeds", "logits_processors",
        "logprob_token_ids", "vllm_xargs", "kv_transfer_params", "ec_transfer_params",
        "mm_processor_kwargs", "media_io_kwargs", "repetition_detection", "watermarking",
        "routed_experts_prompt_start"}) {
    in.refuse(name, kNone);
  }
  in.refuse("length_penalty", kNone, 1);
  in.refuse("best_of", "it is not had here; ask for n choices instead", 1);
  in.refuse("thinking_token_budget", kNone, -1);
  if (const auto format = in.value("response_format")) {
    FieldReader inner(*format, in.path_of("response_format"), in.errors());
    std::string type = "text";
    inner.string("type", type, kMaxNameBytes);
    if (type != "text") {
      inner.fail("type", fmt::format("response_format.type is \"{}\"; {}", type, kFree));
    }
  }
}

// ------------------------------------------------------------------------------ plan

namespace {

// The ids of one prompt, or an error.
void resolve_prompt(CommonRequest& request, std::size_t index, const PlanInput& input,
                    RequestErrors& errors) {
  Prompt& prompt = request.prompts[index];
  const RequestLimits& limits = input.limits;
  const std::string param = request.prompts.size() == 1 ? std::string(input.param)
                                                        : fmt::format("{}[{}]", input.param, index);
  if (prompt.is_text) {
    Result<std::vector<std::int32_t>> ids = input.tokenizer.encode(prompt.text);
    if (!ids.ok()) {
      errors.add(param, fmt::format("{}: {}", param, ids.error().message()));
      return;
    }
    prompt.ids = std::move(*ids);
  }
  std::vector<std::int32_t>& ids = prompt.ids;
  if (request.truncate_prompt_tokens) {
    const std::int64_t wanted = *request.truncate_prompt_tokens;
    const std::int64_t room =
        std::max<std::int64_t>(limits.max_context - request.max_tokens.value_or(0), 1);
    const auto keep = static_cast<std::size_t>(wanted < 0 ? room : wanted);
    if (ids.size() > keep) {
      if (request.keep_prompt_end) {
        ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(keep));
      } else {
        ids.resize(keep);
      }
    }
  }
  const auto tokens = static_cast<std::int64_t>(ids.size());
  if (tokens < 1 || tokens > limits.max_prompt_tokens) {
    errors.add(param, fmt::format("{} has {} tokens; expected 1 to {} (max_prompt_tokens)", param,
                                  tokens, limits.max_prompt_tokens));
    return;
  }
  const std::int64_t asked = request.max_tokens.value_or(0);
  if (asked > 0 && tokens + asked > limits.max_context) {
    errors.add("max_tokens",
               fmt::format("max_tokens is {} and {} has {} tokens; together at most {} "
                           "(max_model_len)", asked, param, tokens, limits.max_context));
  }
}

std::int64_t tokens_to_make(const CommonRequest& request, std::int64_t prompt_tokens,
                            const RequestLimits& limits) {
  if (request.max_tokens) return *request.max_tokens;
  // A prompt that fills the context still gets one token.
  const std::int64_t room = std::max<std::int64_t>(limits.max_context - prompt_tokens, 1);
  return request.default_max_tokens < 0 ? room : std::min(room, request.default_max_tokens);
}

}  // namespace

void check_choices(const ChoiceCount& count, const RequestLimits& limits, RequestErrors& errors) {
  const std::int64_t all = count.prompts * count.each;
  const std::string what =
      fmt::format("{} prompts of {} choices each are {}", count.prompts, count.each, all);
  if (all > limits.max_choices) {
    errors.add(std::string(count.param),
               fmt::format("{}; at most {} (max_choices)", what, limits.max_choices));
  } else if (limits.max_waiting != 0 && all > limits.max_waiting) {
    errors.add(std::string(count.param),
               fmt::format("{}, and no more than {} requests may wait (max_waiting), so that they "
                           "could never be taken together; ask for fewer",
                           what, limits.max_waiting));
  }
}

GenerationPlan make_plan(CommonRequest& request, const PlanInput& input, RequestErrors& errors) {
  const auto prompts = static_cast<std::int64_t>(request.prompts.size());
  if (prompts == 0) errors.add(std::string(input.param), fmt::format("{} is missing", input.param));
  check_choices({.prompts = prompts,
                 .each = request.n,
                 .param = prompts > 1 ? input.param : std::string_view("n")},
                input.limits, errors);
  for (std::size_t i = 0; i < request.prompts.size() && !errors.any(); ++i) {
    resolve_prompt(request, i, input, errors);
  }
  if (request.max_tokens && request.engine.min_tokens > *request.max_tokens) {
    errors.add("min_tokens", fmt::format("min_tokens is {} and max_tokens {}; expected no more",
                                         request.engine.min_tokens, *request.max_tokens));
  }
  GenerationPlan plan;
  if (errors.any()) return plan;
  plan.stream = request.stream;
  plan.per_prompt = static_cast<std::size_t>(request.n);
  for (const Prompt& prompt : request.prompts) {
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(request.n); ++i) {
      Request one = request.engine;
      one.prompt_ids = prompt.ids;
      one.max_tokens = tokens_to_make(request, static_cast<std::int64_t>(prompt.ids.size()),
                                      input.limits);
      one.min_tokens = std::min(one.min_tokens, one.max_tokens);
      // Without a seed, equal prompts of one request still differ.
      one.sampling.seed = request.seed ? *request.seed + i : input.random + plan.requests.size();
      plan.requests.push_back(std::move(one));
    }
  }
  return plan;
}

std::uint64_t random_seed() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq words{device(), device(), device(), device()};
    return std::mt19937_64(words);
  }();
  return generator();
}

}  // namespace holdfast::serve
