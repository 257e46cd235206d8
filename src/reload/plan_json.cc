// The plan as one JSON object, for `holdfast plan --json` and other programs.
#include <nlohmann/json.hpp>

#include "reload/plan.h"

namespace holdfast::reload {
namespace {

using Json = nlohmann::ordered_json;

Json costs_json(const ReloadPlan& plan) {
  Json costs = Json::array();
  for (const StrategyCost& cost : plan.costs) {
    costs.push_back({{"strategy", commit_strategy_name(cost.strategy)},
                     {"peak_device_bytes", cost.peak_device_bytes},
                     {"peak_host_bytes", cost.peak_host_bytes},
                     {"expected_pause_us", cost.expected_pause_us}});
  }
  return costs;
}

Json derivations_json(const ReloadPlan& plan, const storage::Registry& registry) {
  Json steps = Json::array();
  for (const DeriveStep& step : plan.derivations) {
    const storage::Derivation& derivation = registry.derivations()[step.derivation_index];
    Json outputs = Json::array();
    for (const storage::SlotId id : derivation.outputs) {
      outputs.push_back(registry.slot(id).spec.name);
    }
    steps.push_back({{"name", derivation.name},
                     {"slices", step.slices.size()},
                     {"of_slices", derivation.slice_count},
                     {"outputs", std::move(outputs)}});
  }
  return steps;
}

Json copies_json(const ReloadPlan& plan, const storage::Registry& registry) {
  Json copies = Json::array();
  for (const CopyStep& copy : plan.copies) {
    copies.push_back({{"parameter", registry.parameters()[copy.parameter.index()].name},
                      {"slot", registry.slot(copy.slot).spec.name},
                      {"offset_bytes", copy.offset_bytes},
                      {"bytes", copy.bytes}});
  }
  return copies;
}

Json state_json(const storage::Registry& registry) {
  Json state = Json::array();
  for (const storage::Slot& slot : registry.slots()) {
    const std::string_view policy = keyless_policy(slot.spec.slot_class);
    if (policy.empty()) continue;
    state.push_back({{"slot", slot.spec.name},
                     {"class", storage::slot_class_name(slot.spec.slot_class)},
                     {"bytes", slot.range.bytes},
                     {"policy", policy}});
  }
  return state;
}

}  // namespace

std::string to_json(const ReloadPlan& plan, const storage::Registry& registry) {
  Json changes = Json::array();
  for (const config::ConfigDifference& field : plan.config_changes) {
    changes.push_back({{"field", field.field}, {"live", field.live}, {"next", field.next}});
  }
  Json constants = Json::array();
  for (const storage::ConstantChange& change : plan.constant_changes) {
    constants.push_back(registry.slot(change.slot).spec.name);
  }
  Json aliases = Json::object();
  for (const storage::ParameterAlias& alias : registry.aliases()) {
    aliases[alias.name] = registry.parameters()[alias.parameter.index()].name;
  }
  const Json json = {
      {"source", plan.source},
      {"from_epoch", plan.from_epoch.value},
      {"to_epoch", plan.to_epoch.value},
      {"strategy", commit_strategy_name(plan.strategy)},
      {"strategy_was_chosen", plan.strategy_was_chosen},
      {"undo_image", plan.undo == UndoPolicy::kImage},
      {"scope", to_text(plan.scope)},
      {"source_bytes", plan.source_bytes},
      {"versioned_bytes", plan.versioned_bytes},
      {"preserved_bytes", plan.preserved_bytes},
      {"constants_written", plan.constant_count},
      {"peak_device_bytes", plan.peak_device_bytes},
      {"peak_host_bytes", plan.peak_host_bytes},
      {"peak_host_bytes_pushed", plan.peak_host_bytes_pushed},
      {"expected_pause_us", plan.expected_pause_us},
      {"strategies", costs_json(plan)},
      {"copies", copies_json(plan, registry)},
      {"derivations", derivations_json(plan, registry)},
      {"config_changes", std::move(changes)},
      {"constant_changes", std::move(constants)},
      {"aliases", std::move(aliases)},
      {"state", state_json(registry)},
      {"notes", plan.notes},
  };
  // Names come from files: what is no UTF-8 is replaced instead of thrown about.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace holdfast::reload
