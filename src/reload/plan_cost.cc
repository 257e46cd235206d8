// What each strategy costs, and which one is chosen.
#include <algorithm>

#include "base/error.h"
#include "reload/derive.h"
#include "reload/plan.h"
#include "reload/stage_far.h"

namespace holdfast::reload {
namespace {

// Fitted to reload_bench at 1 MB, 100 MB and 1 GB on a 2-core AMD EPYC (Zen 5), bench/RESULTS.md.
// What a commit takes whatever it replaces.
constexpr double kCommitUs = 20.0;
struct CommitRates {
  double remap_us_per_gib = 0;
  double remap_us_per_arena = 0;
  double swap_bytes_per_us = 0;
  double stream_bytes_per_us = 0;
};
// mremap moves page tables; the rest of an exchange is system calls per arena. A swap is two reads
// and two writes of memory per byte on the one thread that commits; a stream reads, checks, derives
// and digests on that thread, from memory or the page cache.
constexpr CommitRates kHostRates{850.0, 60.0, 12'000.0, 4'300.0};
// Fitted to gpu_reload on an H200: handles are unmapped and mapped, the device swaps, and a stream
// is what the link brings.
constexpr CommitRates kGpuRates{70.0, 150.0, 900'000.0, 50'000.0};

// Of the versioned arenas.
struct ArenaSizes {
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  CommitRates rates = kHostRates;
};

StrategyCost cost_of(CommitStrategy strategy, const ArenaSizes& arenas, const PlanOptions& options,
                     const ReloadPlan& plan) {
  const double bytes = static_cast<double>(arenas.bytes);
  StrategyCost cost{.strategy = strategy,
                    .peak_device_bytes = arenas.bytes,
                    .peak_host_bytes = plan.peak_host_bytes,
                    .expected_pause_us = kCommitUs};
  switch (strategy) {
    case CommitStrategy::kRemap:
      cost.expected_pause_us +=
          static_cast<double>(arenas.count) * arenas.rates.remap_us_per_arena +
          bytes / static_cast<double>(1u << 30) * arenas.rates.remap_us_per_gib;
      break;
    case CommitStrategy::kCopy:
      cost.expected_pause_us += bytes / arenas.rates.swap_bytes_per_us;
      cost.peak_host_bytes += kSwapBlockBytes;
      break;
    case CommitStrategy::kStream:
      if (options.undo == UndoPolicy::kNone) cost.peak_device_bytes = 0;
      cost.expected_pause_us +=
          static_cast<double>(plan.source_bytes) / arenas.rates.stream_bytes_per_us;
      break;
  }
  return cost;
}

bool any_cast(const ReloadPlan& plan) {
  return std::any_of(plan.feeds.begin(), plan.feeds.end(),
                     [](const ParameterFeed& feed) { return feed.cast_from.has_value(); });
}

// Whether fragments may be cast, whatever was announced of their tensors.
bool any_rounded(const storage::Registry& registry, const ReloadPlan& plan) {
  for (std::size_t i = 0; i < plan.feeds.size(); ++i) {
    if (plan.feeds[i].pieces.empty()) continue;
    if (takes_rounded(registry.parameters()[i], tensor::DType::kF32)) return true;
  }
  return false;
}

bool any_passing(const ReloadPlan& plan) {
  return std::any_of(plan.copies.begin(), plan.copies.end(),
                     [&](const CopyStep& step) { return !is_plain_copy(plan, step); });
}

// Buffers for fragments that come in the worst order: every transient input and alias whole.
std::uint64_t pushed_bytes(const storage::Registry& registry, const ReloadPlan& plan) {
  std::uint64_t bytes = any_cast(plan) || any_rounded(registry, plan) ? kStageChunkBytes : 0;
  for (const DeriveStep& step : plan.derivations) {
    bytes += transient_buffer_bytes(registry, step) * step.slices.size();
  }
  for (std::size_t i = 0; i < plan.feeds.size(); ++i) {
    if (!plan.feeds[i].alias_source.has_value()) continue;
    const storage::ParameterSpec& spec = registry.parameters()[i];
    bytes += tensor::byte_size(spec.dtype, spec.shape).value();
  }
  return bytes;
}

// A stream that fails half-way poisons, unless it keeps an image, which costs what staging costs
// and gains nothing: only where neither of the others fits.
bool better(const StrategyCost& a, const StrategyCost& b) {
  const bool a_streams = a.strategy == CommitStrategy::kStream;
  const bool b_streams = b.strategy == CommitStrategy::kStream;
  if (a_streams != b_streams) return b_streams;
  return a.expected_pause_us < b.expected_pause_us;
}

bool any_alias(const ReloadPlan& plan) {
  return std::any_of(plan.feeds.begin(), plan.feeds.end(),
                     [](const ParameterFeed& feed) { return feed.alias_source.has_value(); });
}

}  // namespace

Result<CommitStrategy> choose_strategy(std::span<const StrategyCost> costs,
                                       const PlanLimits& limits) {
  const StrategyCost* best = nullptr;
  std::vector<std::string> texts;
  for (const StrategyCost& cost : costs) {
    const std::uint64_t extra = cost.peak_device_bytes + cost.peak_host_bytes;
    texts.push_back(fmt::format("{} needs {} bytes and {:.0f} us",
                                commit_strategy_name(cost.strategy), extra,
                                cost.expected_pause_us));
    if (extra > limits.max_extra_bytes || cost.expected_pause_us > limits.max_pause_us) continue;
    if (best == nullptr || better(cost, *best)) best = &cost;
  }
  if (best != nullptr) return best->strategy;
  std::vector<std::string> within;
  if (limits.max_extra_bytes != PlanLimits().max_extra_bytes) {
    within.push_back(fmt::format("{} extra bytes", limits.max_extra_bytes));
  }
  if (limits.max_pause_us != PlanLimits().max_pause_us) {
    within.push_back(fmt::format("a pause of {:.0f} us", limits.max_pause_us));
  }
  return make_error(ErrorCode::kResourceExhausted, "no strategy keeps within {}: {}",
                    fmt::join(within, " and "), fmt::join(texts, "; "));
}

Status declare_cost(const storage::Registry& registry, const PlanOptions& options,
                    ReloadPlan& plan) {
  ArenaSizes arenas;
  for (const device::Arena* arena : registry.versioned_arenas()) {
    arenas.bytes += arena->memory().bytes;
    ++arenas.count;
  }
  if (registry.device().kind() == device::DeviceKind::kCuda) arenas.rates = kGpuRates;
  // Of the largest that runs: one does at a time.
  std::uint64_t function_bytes = 0;
  std::uint64_t transient_bytes = 0, buffer_bytes = 0;
  for (const DeriveStep& step : plan.derivations) {
    const storage::Derivation& derivation = registry.derivations()[step.derivation_index];
    transient_bytes = std::max(transient_bytes, transient_buffer_bytes(registry, step));
    buffer_bytes = std::max(buffer_bytes, derive_buffer_bytes(registry, derivation));
    function_bytes = std::max(function_bytes, derivation.host_bytes);
  }
  plan.peak_host_bytes += transient_bytes + buffer_bytes;
  plan.peak_host_bytes += function_bytes;
  // Through which casts go, and in which an alias is compared.
  if (any_cast(plan)) plan.peak_host_bytes += kStageChunkBytes;
  if (any_alias(plan)) plan.peak_host_bytes += kStageChunkBytes;
  plan.peak_host_bytes_pushed = pushed_bytes(registry, plan) + buffer_bytes + function_bytes;
  if (options.pushed) plan.peak_host_bytes = plan.peak_host_bytes_pushed;
  // Where the host cannot write the staging, what is cast or digested in order passes through one
  // more chunk. (The ring of the uploads is the device's own, as long as that lives.)
  if (!registry.device().host_addressable() && !options.pushed && any_passing(plan)) {
    plan.peak_host_bytes += kStageChunkBytes;
  }
  for (std::size_t i = 0; i < kCommitStrategies.size(); ++i) {
    plan.costs[i] = cost_of(kCommitStrategies[i], arenas, options, plan);
  }
  if (options.pushed && options.strategy == CommitStrategy::kStream) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: stream reads its source inside the commit, and a push has none that "
                      "could be read then: use remap or copy",
                      plan.source);
  }
  const bool streams = !options.pushed && plan.peak_host_bytes <= kMaxStreamBufferBytes;
  const std::span<const StrategyCost> usable(plan.costs.data(), plan.costs.size() - !streams);
  plan.strategy_was_chosen = !options.strategy.has_value();
  if (options.strategy.has_value()) {
    plan.strategy = *options.strategy;
  } else {
    HF_ASSIGN(plan.strategy, choose_strategy(usable, options.limits));
  }
  if (plan.strategy == CommitStrategy::kStream && !streams) {
    return make_error(ErrorCode::kResourceExhausted,
                      "stream would hold {} bytes of the source at a time, at most {} are allowed: "
                      "use remap or copy",
                      plan.peak_host_bytes, kMaxStreamBufferBytes);
  }
  const StrategyCost& cost = plan.costs[static_cast<std::size_t>(plan.strategy)];
  plan.peak_device_bytes = cost.peak_device_bytes;
  plan.peak_host_bytes = cost.peak_host_bytes;
  plan.expected_pause_us = cost.expected_pause_us;
  return {};
}

}  // namespace holdfast::reload
