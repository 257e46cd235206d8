#include "cli/request_line.h"

#include <cmath>
#include <limits>
#include <utility>

#include "holdfast/tokenizer.h"
#include "cli/output.h"

namespace holdfast::cli {
namespace {

constexpr std::int32_t kMaxTopK = 1 << 22;

Status in_range(std::string_view name, float value, bool inside, std::string_view expected) {
  if (inside) return {};
  return format_error(ErrorCode::kInvalidArgument, "{} is {}, expected a number {}", name, value,
                      expected);
}

// A field that replaces a float of the flags. The range is check_sampling's.
Status take_real(const LineObject& object, std::string_view name, float& target) {
  HF_ASSIGN(const std::optional<double> value, object.real(name));
  if (value) target = static_cast<float>(*value);
  return {};
}

Status read_sampling(const LineObject& object, Sampling& sampling) {
  HF_TRY(take_real(object, "temperature", sampling.temperature));
  HF_TRY(take_real(object, "top_p", sampling.top_p));
  HF_TRY(take_real(object, "min_p", sampling.min_p));
  HF_ASSIGN(const std::optional<std::int64_t> top_k, object.integer("top_k", {0, kMaxTopK}));
  if (top_k) sampling.top_k = static_cast<std::int32_t>(*top_k);
  HF_ASSIGN(const std::optional<std::uint64_t> seed, object.unsigned_integer("seed"));
  if (seed) sampling.seed = *seed;
  if (Status status = check_sampling(sampling); !status.ok()) {
    return status.error().with_context(object.place());
  }
  return {};
}

struct PromptFields {
  std::string_view text, text_alias, ids, ids_alias;
};

// Exactly one of the four fields, into `line`.
Status read_prompt(const LineObject& object, const PromptFields& fields, RequestLine& line) {
  int given = 0;
  for (const std::string_view name : {fields.text, fields.text_alias}) {
    if (name.empty()) continue;
    HF_ASSIGN(std::optional<std::string> text, object.text(name));
    if (!text) continue;
    ++given;
    line.text = std::move(text);
  }
  for (const std::string_view name : {fields.ids, fields.ids_alias}) {
    if (name.empty()) continue;
    HF_ASSIGN(std::optional<std::vector<std::int32_t>> ids, object.token_ids(name));
    if (!ids) continue;
    ++given;
    if (ids->empty()) return object.wrong(name, "at least one token id");
    line.ids = std::move(*ids);
  }
  if (given == 1) return {};
  return object.error(fmt::format("{} of {} and {} given, expected exactly one",
                                  given == 0 ? "none" : "more than one", fields.text, fields.ids));
}

}  // namespace

Status check_sampling(const Sampling& s) {
  HF_TRY(in_range("temperature", s.temperature, s.temperature >= 0 && s.temperature <= 100,
                  "from 0 to 100"));
  HF_TRY(in_range("top_p", s.top_p, s.top_p > 0 && s.top_p <= 1, "above 0 and at most 1"));
  HF_TRY(in_range("min_p", s.min_p, s.min_p >= 0 && s.min_p <= 1, "from 0 to 1"));
  if (s.top_k < 0 || s.top_k > kMaxTopK) {
    return format_error(ErrorCode::kInvalidArgument,
                        "top_k is {}, expected an integer from 0 to {}", s.top_k, kMaxTopK);
  }
  return {};
}

Request request_from_flags(const RequestFlags& flags) {
  Request request;
  request.sampling = flags.sampling;
  request.max_tokens = flags.max_tokens;
  request.ignore_eos = flags.ignore_eos;
  request.stop_token_ids = flags.stop_token_ids;
  request.stop = flags.stop;
  request.skip_special = flags.skip_special;
  request.prompt_logprobs = flags.prompt_logprobs;
  return request;
}

Result<RequestLine> read_generate_line(const LineObject& object, const RequestFlags& flags) {
  constexpr std::string_view kKnown[] = {
      "prompt", "prompt_ids", "id",         "temperature",    "top_p",          "top_k",
      "min_p",  "seed",       "max_tokens", "ignore_eos",     "stop_token_ids", "prompt_logprobs"};
  HF_TRY(object.allow_only(kKnown));
  RequestLine line;
  line.place = object.place();
  line.request = request_from_flags(flags);
  HF_ASSIGN(line.id, object.label("id"));
  HF_TRY(read_prompt(object, {"prompt", "", "prompt_ids", ""}, line));
  HF_TRY(read_sampling(object, line.request.sampling));
  HF_ASSIGN(const std::optional<std::int64_t> max_tokens,
            object.integer("max_tokens", {0, kMaxRequestTokens}));
  if (max_tokens) line.request.max_tokens = *max_tokens;
  HF_ASSIGN(const std::optional<bool> ignore_eos, object.boolean("ignore_eos"));
  if (ignore_eos) line.request.ignore_eos = *ignore_eos;
  HF_ASSIGN(const std::optional<bool> prompt_logprobs, object.boolean("prompt_logprobs"));
  if (prompt_logprobs) line.request.prompt_logprobs = *prompt_logprobs;
  HF_ASSIGN(std::optional<std::vector<std::int32_t>> stop, object.token_ids("stop_token_ids"));
  if (stop && stop->size() > kMaxStopTokenIds) {
    return object.wrong("stop_token_ids", fmt::format("at most {}", kMaxStopTokenIds));
  }
  if (stop) line.request.stop_token_ids = std::move(*stop);
  return line;
}

Result<RequestLine> read_score_line(const LineObject& object, const RequestFlags& flags) {
  constexpr std::string_view kKnown[] = {"ids", "text", "prompt_ids", "prompt", "id"};
  HF_TRY(object.allow_only(kKnown));
  RequestLine line;
  line.place = object.place();
  line.request = request_from_flags(flags);
  line.request.max_tokens = 0;
  line.request.prompt_logprobs = true;
  HF_ASSIGN(line.id, object.label("id"));
  HF_TRY(read_prompt(object, {"text", "prompt", "ids", "prompt_ids"}, line));
  return line;
}

Status resolve_prompt(RequestLine& line, const Tokenizer& tokenizer, const PromptLimits& limits) {
  std::vector<std::int32_t> ids = std::move(line.ids);
  if (line.text) {
    Result<std::vector<std::int32_t>> encoded = tokenizer.encode(*line.text, !limits.plain_text);
    if (!encoded.ok()) return encoded.error().with_context(line.place);
    ids = std::move(*encoded);
    if (ids.empty()) {
      return format_error(ErrorCode::kInvalidArgument,
                          "{}: the text is empty; a prompt has at least one token", line.place);
    }
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < limits.vocab_size) continue;
    return format_error(ErrorCode::kInvalidArgument,
                        "{}: token {} of the prompt is id {}, the model has ids 0 to {}",
                        line.place, i, ids[i], limits.vocab_size - 1);
  }
  if (static_cast<std::int64_t>(ids.size()) > limits.max_context) {
    return format_error(ErrorCode::kInvalidArgument,
                        "{}: the prompt has {} tokens, the context holds {}; shorten it or raise "
                        "--max-context", line.place, ids.size(), limits.max_context);
  }
  line.request.prompt_ids = std::move(ids);
  return {};
}

}  // namespace holdfast::cli
