// What each strategy costs, and which one is chosen.
#include <algorithm>

#include "base/error.h"
#include "reload/plan.h"
#include "reload/stage_far.h"

namespace holdfast::reload {
namespace {

// Fitted to reload_bench at 1 MB, 100 MB and 1 GB on a 2-core AMD EPYC (Zen 5), bench/RESULTS.md.
// What a commit takes whatever it replaces.
constexpr double kCommitUs = 20.0;
// mremap moves page tables; the rest of an exchange is system calls per arena.
constexpr double kRemapUsPerGib = 850.0;
constexpr double kRemapUsPerArena = 60.0;
// Two reads and two writes of memory per byte, on the one thread that commits.
constexpr double kSwapBytesPerUs = 12000.0;
// Reading, checking, deriving and digesting on that thread, from memory or the page cache.
constexpr double kStreamBytesPerUs = 4300.0;

StrategyCost cost_of(CommitStrategy strategy, std::uint64_t arena_bytes, std::size_t arena_count,
                     const PlanOptions& options, const ReloadPlan& plan) {
  const double bytes = static_cast<double>(arena_bytes);
  StrategyCost cost{.strategy = strategy,
                    .peak_device_bytes = arena_bytes,
                    .peak_host_bytes = plan.peak_host_bytes,
                    .expected_pause_us = kCommitUs};
  switch (strategy) {
    case CommitStrategy::kRemap:
      cost.expected_pause_us += static_cast<double>(arena_count) * kRemapUsPerArena +
                                bytes / static_cast<double>(1u << 30) * kRemapUsPerGib;
      break;
    case CommitStrategy::kCopy:
      cost.expected_pause_us += bytes / kSwapBytesPerUs;
      cost.peak_host_bytes += kSwapBlockBytes;
      break;
    case CommitStrategy::kStream:
      if (options.undo == UndoPolicy::kNone) cost.peak_device_bytes = 0;
      cost.expected_pause_us += static_cast<double>(plan.source_bytes) / kStreamBytesPerUs;
      break;
  }
  return cost;
}

bool any_cast(const ReloadPlan& plan) {
  return std::any_of(plan.feeds.begin(), plan.feeds.end(),
                     [](const ParameterFeed& feed) { return feed.cast_from.has_value(); });
}

bool any_passing(const ReloadPlan& plan) {
  return std::any_of(plan.copies.begin(), plan.copies.end(),
                     [&](const CopyStep& step) { return !is_plain_copy(plan, step); });
}

// Buffers for fragments that come in the worst order: every transient input and alias whole.
std::uint64_t pushed_bytes(const storage::Registry& registry, const ReloadPlan& plan) {
  std::uint64_t bytes = any_cast(plan) ? kStageChunkBytes : 0;
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
  return make_error(ErrorCode::kResourceExhausted,
                    "no strategy keeps within {} extra bytes and a pause of {:.0f} us: {}",
                    limits.max_extra_bytes, limits.max_pause_us, fmt::join(texts, "; "));
}

Status declare_cost(const storage::Registry& registry, const PlanOptions& options,
                    ReloadPlan& plan) {
  const auto arenas = registry.versioned_arenas();
  std::uint64_t arena_bytes = 0;
  for (const device::Arena* arena : arenas) arena_bytes += arena->memory().bytes;
  for (const DeriveStep& step : plan.derivations) {
    plan.peak_host_bytes = std::max(plan.peak_host_bytes, transient_buffer_bytes(registry, step));
  }
  // Through which casts go, and in which an alias is compared.
  if (any_cast(plan)) plan.peak_host_bytes += kStageChunkBytes;
  if (any_alias(plan)) plan.peak_host_bytes += kStageChunkBytes;
  plan.peak_host_bytes_pushed = pushed_bytes(registry, plan);
  if (options.pushed) plan.peak_host_bytes = plan.peak_host_bytes_pushed;
  // Where the host cannot write the staging, what is cast or digested in order passes through one
  // more chunk. (The ring of the uploads is the device's own, as long as that lives.)
  if (!registry.device().host_addressable() && !options.pushed && any_passing(plan)) {
    plan.peak_host_bytes += kStageChunkBytes;
  }
  for (std::size_t i = 0; i < kCommitStrategies.size(); ++i) {
    plan.costs[i] = cost_of(kCommitStrategies[i], arena_bytes, arenas.size(), options, plan);
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
