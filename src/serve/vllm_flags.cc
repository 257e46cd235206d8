#include "serve/vllm_flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace holdfast::serve {
namespace {

constexpr std::string_view kOneDevice =
    "a model runs on one device here: start one server for each and balance before them";
constexpr std::string_view kAsPublished =
    "weights are computed with as the checkpoint has them: convert the checkpoint";
constexpr std::string_view kNoLora = "there is no LoRA: merge it, and load the whole as a reload";
constexpr std::string_view kNoTls = "there is no TLS: put a proxy that has it in front";
constexpr std::string_view kCapture =
    "steps always run as graphs, which reloads leave valid: leave it out";
constexpr std::string_view kHttpOnly =
    "no Python runs in this server: replace weights over HTTP (docs/rollout.md)";
constexpr std::string_view kKvTokens = "the KV cache is given in tokens: --kv-tokens N";
constexpr std::string_view kOwnTokenizer = "the tokenizer is the one beside the weights";

VllmFlag value(std::string_view name, std::vector<std::string_view> harmless,
               std::string_view instead) {
  return {.name = name, .harmless = std::move(harmless), .instead = instead};
}
VllmFlag refused(std::string_view name, std::string_view instead) {
  return {.name = name, .takes_value = false, .harmless = {}, .instead = instead};
}
VllmFlag accepted(std::string_view name) {
  return {.name = name, .takes_value = false, .harmless = {}, .always_so = true, .instead = ""};
}

std::vector<VllmFlag> make_flags() {
  return {
      value("--tensor-parallel-size", {"1"}, kOneDevice),
      value("--pipeline-parallel-size", {"1"}, kOneDevice),
      value("--data-parallel-size", {"1"}, kOneDevice),
      value("--distributed-executor-backend", {"mp", "uni"}, kOneDevice),
      refused("--enable-expert-parallel", kOneDevice),
      value("--dtype", {"auto"}, kAsPublished),
      value("--quantization", {}, kAsPublished),
      value("--load-format", {"auto", "safetensors"}, kAsPublished),
      value("--kv-cache-dtype", {"auto"}, "keys and values are kept in float32"),
      value("--gpu-memory-utilization", {}, kKvTokens),
      value("--swap-space", {"0"}, kKvTokens),
      value("--cpu-offload-gb", {"0"}, kKvTokens),
      value("--block-size", {"16"}, "a page has 16 tokens"),
      refused("--enforce-eager", kCapture),
      value("--compilation-config", {}, kCapture),
      value("--max-seq-len-to-capture", {}, kCapture),
      value("--speculative-config", {}, "nothing is speculated: leave it out"),
      value("--worker-extension-cls", {}, kHttpOnly),
      refused("--trust-remote-code", "no code of a checkpoint is ever run: leave it out"),
      value("--tokenizer", {}, kOwnTokenizer),
      value("--tokenizer-mode", {"auto"}, kOwnTokenizer),
      value("--revision", {}, "a model is a directory: download that revision"),
      value("--chat-template", {}, "chats have a format of their own: --chat-format"),
      value("--reasoning-parser", {"openai_gptoss"}, "it follows from --chat-format"),
      value("--tool-call-parser", {"openai"}, "it follows from --chat-format"),
      value("--seed", {"0"}, "a request has its seed, or draws one: send \"seed\""),
      refused("--enable-lora", kNoLora),
      value("--lora-modules", {}, kNoLora),
      value("--uds", {}, "there are no Unix sockets: --host and --port"),
      value("--ssl-certfile", {}, kNoTls),
      value("--ssl-keyfile", {}, kNoTls),
      value("--middleware", {}, kHttpOnly),
      accepted("--enable-sleep-mode"),
      accepted("--enable-return-routed-experts"),
      accepted("--enable-chunked-prefill"),
      accepted("--enable-auto-tool-choice"),
      accepted("--enable-prompt-tokens-details"),
      accepted("--disable-log-requests"),
      accepted("--disable-log-stats"),
  };
}

}  // namespace

const std::vector<VllmFlag>& vllm_flags() {
  static const std::vector<VllmFlag> flags = make_flags();
  return flags;
}

Status check_vllm_flag(const VllmFlag& flag, const std::string& value) {
  const auto& harmless = flag.harmless;
  if (flag.always_so || std::find(harmless.begin(), harmless.end(), value) != harmless.end()) {
    return {};
  }
  if (!flag.takes_value) {
    return make_error(ErrorCode::kUnsupported, "{}: {}", flag.name, flag.instead);
  }
  return make_error(ErrorCode::kUnsupported, "{} is \"{}\"{}: {}", flag.name, value,
                    harmless.empty() ? std::string()
                                     : fmt::format(", and can be {}", fmt::join(harmless, ", ")),
                    flag.instead);
}

Status check_weight_transfer_config(const std::string& json) {
  const auto parsed = nlohmann::json::parse(json, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("backend") || !parsed["backend"].is_string()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--weight-transfer-config is {}, expected a JSON object with a backend, as "
                      "{{\"backend\": \"disk\"}}", json);
  }
  const auto backend = parsed["backend"].get<std::string>();
  if (backend == "disk" || backend == "http") return {};
  return make_error(ErrorCode::kUnsupported,
                    "--weight-transfer-config names the backend \"{}\"; this build has disk and "
                    "http: have the trainer save a checkpoint and send its path to "
                    "/update_weights, or upload its tensors there as safetensors", backend);
}

}  // namespace holdfast::serve
