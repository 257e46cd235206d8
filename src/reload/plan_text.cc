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
  for (const bool from_source : step.from_source) transient += from_source ? 1 : 0;
  std::vector<std::string_view> outputs;
  for (const auto id : derivation.outputs) outputs.push_back(registry.slot(id).spec.name);
  fmt::format_to(std::back_inserter(text),
                 "\n    {}: {} of {} inputs from the source, {} slices -> {}", derivation.name,
                 transient, derivation.inputs.size(), step.slices.size(),
                 fmt::join(outputs, ", "));
}

}  // namespace

std::string_view commit_strategy_name(CommitStrategy strategy) {
  switch (strategy) {
    case CommitStrategy::kRemap: return "remap";
    case CommitStrategy::kCopy: return "copy";
    case CommitStrategy::kStream: return "stream";
  }
  return "unknown";
}

std::string_view keyless_policy(storage::SlotClass slot_class) {
  switch (slot_class) {
    case storage::SlotClass::kState: return "preserve";
    case storage::SlotClass::kInput:
    case storage::SlotClass::kScratch: return "rewritten by every step";
    case storage::SlotClass::kSync: return "preserve";
    case storage::SlotClass::kWeight:
    case storage::SlotClass::kDerived:
    case storage::SlotClass::kConstant: break;
  }
  return "";
}

std::optional<CommitStrategy> commit_strategy_from_name(std::string_view name) {
  for (const CommitStrategy strategy : kCommitStrategies) {
    if (commit_strategy_name(strategy) == name) return strategy;
  }
  return std::nullopt;
}

std::string to_text(const ReloadPlan& plan, const storage::Registry& registry) {
  std::string text = fmt::format(
      "{}\n  epoch        {} -> {} by {}{}\n"
      "  scope        {}: {} keep their bytes\n"
      "  reads        {} in {} tensors that land unchanged and {} derivations' inputs\n"
      "  replaces     {} in weight, derived and constant slots\n"
      "  constants    {} written anew from the config\n"
      "  peak         {} on the device and {} on the host, beyond what is live\n"
      "  pause        about {:.0f} us\n"
      "  derivations  {}, in this order:",
      plan.source, plan.from_epoch.value, plan.to_epoch.value,
      commit_strategy_name(plan.strategy), plan.strategy_was_chosen ? " (chosen)" : "",
      to_text(plan.scope), bytes_text(plan.preserved_bytes), bytes_text(plan.source_bytes),
      plan.copies.size(),
      plan.derivations.size(), bytes_text(plan.versioned_bytes), plan.constant_count,
      bytes_text(plan.peak_device_bytes), bytes_text(plan.peak_host_bytes), plan.expected_pause_us,
      plan.derivations.size());
  for (const DeriveStep& step : plan.derivations) derivation_line(step, registry, text);
  text += "\n  strategies:";
  for (const StrategyCost& cost : plan.costs) {
    fmt::format_to(std::back_inserter(text),
                   "\n    {:<7} {} on the device, {} on the host, {:.0f} us",
                   commit_strategy_name(cost.strategy), bytes_text(cost.peak_device_bytes),
                   bytes_text(cost.peak_host_bytes), cost.expected_pause_us);
  }
  fmt::format_to(std::back_inserter(text), "\n    pushed fragments may need {} on the host",
                 bytes_text(plan.peak_host_bytes_pushed));
  for (const config::ConfigDifference& field : plan.config_changes) {
    fmt::format_to(std::back_inserter(text), "\n  config       {}: {} -> {}", field.field,
                   field.live, field.next);
  }
  for (const storage::ConstantChange& change : plan.constant_changes) {
    fmt::format_to(std::back_inserter(text), "\n  constant     {} gets another value",
                   registry.slot(change.slot).spec.name);
  }
  for (const storage::ParameterAlias& alias : registry.aliases()) {
    fmt::format_to(std::back_inserter(text), "\n  alias        {} is {}", alias.name,
                   registry.parameters()[alias.parameter.index()].name);
  }
  for (const storage::Slot& slot : registry.slots()) {
    const std::string_view policy = keyless_policy(slot.spec.slot_class);
    if (policy.empty()) continue;
    fmt::format_to(std::back_inserter(text), "\n  state        {} ({}): {}", slot.spec.name,
                   bytes_text(slot.range.bytes), policy);
  }
  for (const std::string& note : plan.notes) text += "\n  note         " + note;
  return text;
}

}  // namespace holdfast::reload
