#include "serve/serve_options.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

namespace holdfast::serve {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 60;
constexpr std::int64_t kDayMs = 24LL * 3600 * 1000;

// What the table is filled with.
struct Table {
  std::vector<ServeOption> options;
  std::string group;

  // `field`: a reference to the member, of a ServeOptions that it is given.
  template <typename Field>
  ServeOption& add(std::string name, std::string help, Field field) {
    using Member = std::remove_reference_t<decltype(field(std::declval<ServeOptions&>()))>;
    ServeOption option;
    option.name = std::move(name);
    option.group = group;
    option.help = std::move(help);
    option.get = [field](const ServeOptions& values) -> OptionValue {
      const Member& member = field(const_cast<ServeOptions&>(values));  // only read
      if constexpr (std::is_integral_v<Member> && !std::is_same_v<Member, bool>) {
        return static_cast<std::int64_t>(member);
      } else {
        return member;
      }
    };
    option.set = [field](ServeOptions& values, OptionValue value) {
      if constexpr (std::is_integral_v<Member> && !std::is_same_v<Member, bool>) {
        field(values) = static_cast<Member>(std::get<std::int64_t>(value));
      } else {
        field(values) = std::get<Member>(std::move(value));
      }
    };
    options.push_back(std::move(option));
    return options.back();
  }

  template <typename Field>
  ServeOption& integer(std::string name, std::string help, std::int64_t least, std::int64_t most,
                       Field field) {
    ServeOption& option = add(std::move(name), std::move(help), field);
    option.least = least;
    option.most = most;
    return option;
  }
};

// A member of ServeOptions by its path.
#define HF_FIELD(path) [](ServeOptions& o) -> auto& { return o.path; }

void add_model(Table& table) {
  table.group = "Model and engine";
  table.add("model", "the model's directory (also as MODEL)", HF_FIELD(engine.model_directory));
  table.add("served-model-name", "its name in the API; the directory's last part by default",
            HF_FIELD(served_model_name));
  table.add("chat-format", "how messages become tokens", HF_FIELD(chat_format)).choices = {
      "auto", "harmony", "chatml", "mistral", "plain"};
  table.integer("max-model-len", "positions a sequence may have; 0 is the model's, at most 4096",
                0, 1 << 24, HF_FIELD(engine.max_context)).aliases = {"max-context"};
  table.integer("max-num-seqs", "requests that decode together", 1, 1024,
                HF_FIELD(engine.max_sequences)).aliases = {"max-sequences"};
  table.integer("max-num-batched-tokens", "prompt tokens in one step", 1, 1 << 16,
                HF_FIELD(engine.prefill_chunk)).aliases = {"prefill-chunk"};
  table.integer("kv-tokens", "KV cache, in tokens; 0: max-num-seqs times max-model-len, at most "
                "65536", 0, std::int64_t{1} << 40, HF_FIELD(engine.kv_tokens));
  table.integer("max-waiting", "requests that may wait; more are answered 429", 1, 1 << 24,
                HF_FIELD(engine.max_waiting));
  table.add("prefix-cache", "keep what requests with equal beginnings can share",
            HF_FIELD(engine.prefix_cache)).aliases = {"enable-prefix-caching"};
  table.add("device", "cpu, or a GPU of a build with CUDA: cuda, cuda:1, ...",
            HF_FIELD(engine.device));
  table.integer("threads", "CPU threads; 0 is all cores", 0, 1024, HF_FIELD(engine.threads));
  table.add("kernels", "fast, or reference: plain scalar loops",
            HF_FIELD(engine.kernels)).choices = {"fast", "reference"};
  table.add("experts", "the experts backend", HF_FIELD(engine.experts)).choices = {
      "auto", "holdfast", "reference", "cutlass", "trtllm-like", "marlin-like", "machete-like",
      "unquantised"};
  table.add("expert-activations", "what the experts do to their inputs: as published, nothing, or "
            "rounding to a format", HF_FIELD(engine.expert_activations)).choices = {
      "published", "none", "mxfp8", "fp8-token", "fp8-token-group"};
  table.add("quantize-experts", "quantise bf16 experts as they arrive, as `holdfast quantize --to` "
            "would", HF_FIELD(engine.quantize_experts)).choices = {
      "", "mxfp4", "mxfp8", "nvfp4", "fp8-block", "fp8-channel", "fp8-tensor", "int4"};
  table.integer("quantize-group", "with quantize-experts int4: inputs that share a scale", 1,
                1 << 20, HF_FIELD(engine.quantize_group_size));
  table.add("commit", "how weights are committed: swap pages, copy bytes, read into place",
            HF_FIELD(engine.commit)).choices = {"remap", "copy", "stream"};
}

void add_listeners(Table& table) {
  table.group = "Listeners";
  table.add("host", "address of the public listener: /v1, /generate, ...", HF_FIELD(host));
  table.integer("port", "its port; 0: any that is free", 0, 65535, HF_FIELD(port));
  table.add("control-host", "address of the control listener: pauses, reloads, status page",
            HF_FIELD(control_host));
  table.integer("control-port", "its port; the same as --port: one listener for both", 0, 65535,
                HF_FIELD(control_port));
  table.add("api-key", "bearer token that the public listener asks for", HF_FIELD(api_key))
      .secret = true;
  table.add("control-token", "bearer token that the control listener asks for; must be given when "
            "others can reach it", HF_FIELD(control_token)).secret = true;
  table.add("model-roots", "directories below which a reload may name a model (commas); the parent "
            "of the model's directory by default", HF_FIELD(model_roots));
  table.integer("io-threads", "threads for connections", 1, 64, HF_FIELD(io_threads));
}

void add_requests(Table& table) {
  table.group = "Requests";
  table.integer("max-prompt-tokens", "of one prompt; 0: the context", 0, 1 << 24,
                HF_FIELD(max_prompt_tokens));
  table.integer("max-choices", "n times prompts of one request", 1, 1 << 20,
                HF_FIELD(max_choices));
  table.integer("max-logprobs", "top log probabilities that one may ask for; -1: the vocabulary",
                -1, 1 << 24, HF_FIELD(max_logprobs));
  table.add("logprobs-mode", "of which distribution they are, unless a request says",
            HF_FIELD(logprobs_mode)).choices = {"raw", "processed"};
  table.integer("default-max-tokens", "of /v1/completions", 1, 1 << 24,
                HF_FIELD(default_max_tokens));
  table.integer("max-streams", "answers that are under way at once", 1, 1 << 20,
                HF_FIELD(max_streams));
}

void add_limits(Table& table) {
  table.group = "Limits of connections";
  table.integer("max-connections", "of one listener; more are answered 503", 1, 1 << 20,
                HF_FIELD(limits.max_connections));
  table.integer("max-header-bytes", "of a request's line and header", 256, 1 << 20,
                HF_FIELD(limits.max_header_bytes));
  table.integer("max-body-bytes", "of a request's body, except uploads", 1, kMaxBytes,
                HF_FIELD(limits.max_body_bytes));
  table.integer("max-buffered-bytes", "of all bodies that are coming at one time", 1, kMaxBytes,
                HF_FIELD(limits.max_buffered_bytes));
  table.integer("max-unsent-bytes", "that a stream's client has not read; then it is cut", 1024,
                kMaxBytes, HF_FIELD(limits.max_unsent_bytes));
  table.integer("max-upload-bytes", "of one upload of weights", 1, kMaxBytes,
                HF_FIELD(max_upload_bytes));
  table.integer("header-timeout-ms", "for a request's header to come", 1, kDayMs,
                HF_FIELD(limits.header_timeout_ms));
  table.integer("body-timeout-ms", "for the next part of a body to come", 1, kDayMs,
                HF_FIELD(limits.body_timeout_ms));
  table.integer("idle-timeout-ms", "between two requests of a connection", 1, kDayMs,
                HF_FIELD(limits.idle_timeout_ms));
  table.integer("write-timeout-ms", "for a client to read something", 1, kDayMs,
                HF_FIELD(limits.write_timeout_ms));
  table.integer("reply-timeout-ms", "for a client to read all of an answer that is whole", 1,
                kDayMs, HF_FIELD(limits.reply_timeout_ms));
}

void add_operation(Table& table) {
  table.group = "Operation";
  table.add("log-level", "debug has a line for each request", HF_FIELD(log_level)).choices = {
      "debug", "info", "warning", "error"};
  table.add("log-format", "text, or a JSON object a line", HF_FIELD(log_format)).choices = {
      "text", "json"};
  table.integer("drain-timeout-s", "after SIGTERM, for requests to end", 0, kMaxInt,
                HF_FIELD(drain_timeout_s));
}

#undef HF_FIELD

}  // namespace

const std::vector<ServeOption>& serve_options() {
  static const std::vector<ServeOption> options = [] {
    Table table;
    add_model(table);
    add_listeners(table);
    add_requests(table);
    add_limits(table);
    add_operation(table);
    return std::move(table.options);
  }();
  return options;
}

const ServeOption* find_serve_option(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  for (const ServeOption& option : serve_options()) {
    if (option.name == wanted) return &option;
    const auto& aliases = option.aliases;
    if (std::find(aliases.begin(), aliases.end(), wanted) != aliases.end()) return &option;
  }
  return nullptr;
}

std::string environment_name(const ServeOption& option) {
  std::string name = "HOLDFAST_";
  for (const char c : option.name) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

}  // namespace holdfast::serve
