#include "engine/settings.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "holdfast/quantize.h"

namespace holdfast::engine {

namespace {

Status check_range(std::string_view name, std::int64_t value, std::int64_t least,
                   std::int64_t most) {
  if (value >= least && value <= most) return {};
  return make_error(ErrorCode::kInvalidArgument, "engine option {} is {}, expected {} to {}", name,
                    value, least, most);
}

Result<KernelsKind> resolve_kernels(const std::string& name) {
  if (name == "fast") return KernelsKind::kFast;
  if (name == "reference") return KernelsKind::kReference;
  return make_error(ErrorCode::kInvalidArgument,
                    "engine option kernels is \"{}\", expected \"fast\" or \"reference\"", name);
}

Result<std::optional<experts::ExpertsBackendKind>> resolve_experts(const std::string& name) {
  if (name == "auto") return std::optional<experts::ExpertsBackendKind>();
  const auto kind = experts::experts_backend_from_name(name);
  if (kind) return kind;
  return make_error(ErrorCode::kInvalidArgument,
                    "engine option experts is \"{}\", expected \"auto\" or a backend that "
                    "holdfast inspect --matrix lists",
                    name);
}

Result<reload::CommitStrategy> resolve_commit(const std::string& name) {
  if (const auto strategy = reload::commit_strategy_from_name(name)) return *strategy;
  return make_error(ErrorCode::kInvalidArgument,
                    "engine option commit is \"{}\", expected \"remap\", \"copy\" or \"stream\"",
                    name);
}

// Those whose scales come from the checkpoint cannot be asked for.
Result<std::optional<config::ActivationScheme>> resolve_activations(const std::string& name) {
  if (name == "published") return std::optional<config::ActivationScheme>();
  for (const auto scheme :
       {config::ActivationScheme::kNone, config::ActivationScheme::kMxfp8,
        config::ActivationScheme::kFp8Token, config::ActivationScheme::kFp8TokenGroup}) {
    if (name == config::activation_scheme_name(scheme)) {
      return std::optional<config::ActivationScheme>(scheme);
    }
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "engine option expert_activations is \"{}\", expected \"published\", \"none\", "
                    "\"mxfp8\", \"fp8-token\" or \"fp8-token-group\"",
                    name);
}

Result<std::optional<config::QuantizeTarget>> resolve_quantize(const EngineOptions& options) {
  const std::int64_t group = options.quantize_group_size;
  if (options.quantize_experts != "int4" && group != EngineOptions{}.quantize_group_size) {
    return make_error(ErrorCode::kInvalidArgument,
                      "engine option quantize_group_size is {}, and quantize_experts is \"{}\": it "
                      "is for \"int4\"",
                      group, options.quantize_experts);
  }
  if (options.quantize_experts.empty()) return std::optional<config::QuantizeTarget>();
  const std::vector<std::string> known = quantize_schemes();
  const auto scheme = config::expert_scheme_from_name(options.quantize_experts);
  if (scheme && std::ranges::find(known, options.quantize_experts) != known.end()) {
    return std::optional<config::QuantizeTarget>(
        {.scheme = *scheme, .group_size = group});
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "engine option quantize_experts is \"{}\", expected \"\" or one of {}",
                    options.quantize_experts, fmt::join(known, ", "));
}

Status resolve_context(const EngineOptions& options, const config::ModelConfig& config,
                       Settings& settings) {
  settings.max_context = options.max_context != 0
                             ? options.max_context
                             : std::min(config.max_positions, kDefaultMaxContext);
  return check_range("max_context (the model's positions)", settings.max_context, 1,
                     config.max_positions);
}

Status resolve_kv(const EngineOptions& options, Settings& settings) {
  const std::int64_t pages_per_context = (settings.max_context + kPageSize - 1) / kPageSize;
  if (options.kv_tokens == 0) {
    // One whole context always fits, so that every valid request can be admitted.
    const std::int64_t wanted = settings.max_sequences * pages_per_context;
    settings.page_count =
        std::max(std::min(wanted, kDefaultKvTokens / kPageSize), pages_per_context);
    return {};
  }
  if (options.kv_tokens < settings.max_context || options.kv_tokens > kMaxKvTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "engine option kv_tokens is {}, expected {} (max_context, so that every "
                      "request fits) to {}",
                      options.kv_tokens, settings.max_context, kMaxKvTokens);
  }
  settings.page_count = (options.kv_tokens + kPageSize - 1) / kPageSize;
  return {};
}

}  // namespace

Result<Settings> resolve_settings(const EngineOptions& options,
                                  const config::ModelConfig& config) {
  HF_TRY(check_range("threads (0: all cores)", options.threads, 0, kMaxThreads));
  HF_TRY(check_range("max_sequences", options.max_sequences, 1, kMaxSequences));
  HF_TRY(check_range("prefill_chunk", options.prefill_chunk, 1, kMaxPrefillChunk));
  HF_TRY(check_range("max_waiting", options.max_waiting, 1, kMaxWaiting));
  Settings settings;
  settings.model_directory = options.model_directory;
  settings.threads = options.threads;
  settings.max_sequences = options.max_sequences;
  settings.prefill_chunk = options.prefill_chunk;
  settings.max_waiting = options.max_waiting;
  settings.prefix_cache = options.prefix_cache;
  settings.max_rows = std::max(options.prefill_chunk, options.max_sequences);
  HF_TRY(resolve_context(options, config, settings));
  HF_TRY(resolve_kv(options, settings));
  HF_ASSIGN(settings.kernels, resolve_kernels(options.kernels));
  HF_ASSIGN(settings.experts, resolve_experts(options.experts));
  HF_ASSIGN(settings.expert_activations, resolve_activations(options.expert_activations));
  HF_ASSIGN(settings.quantize_experts, resolve_quantize(options));
  HF_ASSIGN(settings.commit, resolve_commit(options.commit));
  return settings;
}

std::unique_ptr<ops::Kernels> make_kernels(KernelsKind kind) {
  return kind == KernelsKind::kReference ? ops::make_cpu_reference_kernels()
                                         : ops::make_cpu_fast_kernels();
}

}  // namespace holdfast::engine
