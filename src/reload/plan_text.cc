#include <fmt/format.h>

#include <iterator>

#include "reload/plan.h"

namespace holdfast::reload {
namespace {

std::string bytes_text(std::uint64_t bytes) {
  const double value = static_cast<double>(bytes);
  if (bytes < 10'000) return fmt::format("{} B", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", value / 1e3);
  if (bytes < 10'000'000'000) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

void derivation_line(const DeriveStep& step, const storage::Registry& registry, std::string& text) {
  const storage::Derivation& derivation = registry.derivations()[step.derivation_index];
  std::size_t transient = 0;
  for (const auto& source : step.source_of_input) transient += source.has_value() ? 1 : 0;
  std::vector<std::string_view> outputs;
  for (const auto id : derivation.outputs) outputs.push_back(registry.slot(id).spec.name);
  fmt::format_to(std::back_inserter(text),
                 "\n    {}: {} of {} inputs from the source, {} slices -> {}", derivation.name,
                 transient, derivation.inputs.size(), derivation.slice_count,
                 fmt::join(outputs, ", "));
}

}  // namespace

std::string_view commit_strategy_name(CommitStrategy strategy) {
  switch (strategy) {
    case CommitStrategy::kRemap: return "remap";
    case CommitStrategy::kCopy: return "copy";
  }
  return "unknown";
}

std::optional<CommitStrategy> commit_strategy_from_name(std::string_view name) {
  for (const auto strategy : {CommitStrategy::kRemap, CommitStrategy::kCopy}) {
    if (commit_strategy_name(strategy) == name) return strategy;
  }
  return std::nullopt;
}

std::string to_text(const ReloadPlan& plan, const storage::Registry& registry) {
  std::string text = fmt::format(
      "{}\n  epoch        {} -> {} by {}\n"
      "  reads        {} in {} tensors that land unchanged and {} derivations' inputs\n"
      "  replaces     {} in weight, derived and constant slots\n"
      "  constants    {} written anew from the config\n"
      "  peak         {} on the device and {} on the host, beyond what is live\n"
      "  pause        about {:.0f} us\n"
      "  derivations  {}, in this order:",
      plan.source, plan.from_epoch.value, plan.from_epoch.value + 1,
      commit_strategy_name(plan.strategy), bytes_text(plan.source_bytes), plan.copies.size(),
      plan.derivations.size(), bytes_text(plan.versioned_bytes), plan.constant_count,
      bytes_text(plan.peak_device_bytes), bytes_text(plan.peak_host_bytes), plan.expected_pause_us,
      plan.derivations.size());
  for (const DeriveStep& step : plan.derivations) derivation_line(step, registry, text);
  return text;
}

}  // namespace holdfast::reload
