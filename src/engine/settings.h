// Settings: EngineOptions checked against one model, with every default resolved. Values and pure
// functions; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "config/expert_quantizer.h"
#include "config/model_config.h"
#include "experts/experts.h"
#include "holdfast/engine.h"
#include "ops/ops.h"
#include "reload/plan.h"

namespace holdfast::engine {

inline constexpr int kMaxThreads = 1024;
inline constexpr std::int64_t kMaxSequences = 1024;
inline constexpr std::int64_t kMaxPrefillChunk = 8192;
inline constexpr std::int64_t kDefaultMaxContext = 4096;
inline constexpr std::int64_t kDefaultKvTokens = 65536;
inline constexpr std::int64_t kMaxKvTokens = std::int64_t{1} << 26;
inline constexpr std::int64_t kMaxWaiting = std::int64_t{1} << 20;
inline constexpr std::int64_t kPageSize = 16;  // tokens in a KV page

enum class KernelsKind : std::uint8_t { kFast, kReference };

struct Settings {
  std::string model_directory;
  int threads = 0;  // 0: all cores
  std::int64_t max_context = 0;
  std::int64_t max_sequences = 0;
  std::int64_t prefill_chunk = 0;
  std::int64_t max_rows = 0;    // of one step
  std::int64_t page_count = 0;  // KV pages of kPageSize tokens per layer
  std::int64_t max_waiting = 0;
  bool prefix_cache = true;
  KernelsKind kernels = KernelsKind::kFast;
  std::optional<experts::ExpertsBackendKind> experts;
  std::optional<config::ActivationScheme> expert_activations;  // empty: as published
  std::optional<config::QuantizeTarget> quantize_experts;      // empty: as published
  reload::CommitStrategy commit = reload::CommitStrategy::kRemap;
};

// Errors: kInvalidArgument naming the option, its value and what is accepted.
Result<Settings> resolve_settings(const EngineOptions& options, const config::ModelConfig& config);
std::unique_ptr<ops::Kernels> make_kernels(KernelsKind kind);

}  // namespace holdfast::engine
