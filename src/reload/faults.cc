#include "reload/faults.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/error.h"

namespace holdfast::reload {
namespace {

using Kind = InjectedFault::Kind;
using storage::SlotClass;

constexpr std::string_view kLayerPrefix = "layers.";

bool is_loaded_or_derived(const storage::Slot& slot) {
  return slot.spec.slot_class == SlotClass::kWeight || slot.spec.slot_class == SlotClass::kDerived;
}

// N of "layers.N.attn.qkv"; empty for other names.
std::optional<std::uint64_t> layer_of(std::string_view name) {
  if (!name.starts_with(kLayerPrefix)) return std::nullopt;
  name.remove_prefix(kLayerPrefix.size());
  std::uint64_t layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc{} || end == name.data() + name.size() || *end != '.') return std::nullopt;
  return layer;
}

std::vector<storage::SlotId> first_derived(const storage::Registry& registry) {
  const storage::Slot* first = nullptr;
  for (const storage::Slot& slot : registry.slots()) {
    if (slot.spec.slot_class != SlotClass::kDerived) continue;
    if (layer_of(slot.spec.name) == 0u) return {slot.id};
    if (first == nullptr) first = &slot;
  }
  if (first == nullptr) return {};
  return {first->id};
}

std::vector<storage::SlotId> middle_layer(const storage::Registry& registry) {
  std::set<std::uint64_t> layers;
  for (const storage::Slot& slot : registry.slots()) {
    const auto layer = layer_of(slot.spec.name);
    if (layer.has_value() && is_loaded_or_derived(slot)) layers.insert(*layer);
  }
  if (layers.empty()) return {};
  const std::uint64_t middle = *std::next(layers.begin(), static_cast<long>(layers.size() / 2));
  std::vector<storage::SlotId> slots;
  for (const storage::Slot& slot : registry.slots()) {
    if (layer_of(slot.spec.name) == middle && is_loaded_or_derived(slot)) slots.push_back(slot.id);
  }
  return slots;
}

std::vector<storage::SlotId> sinks(const storage::Registry& registry) {
  std::vector<storage::SlotId> slots;
  for (const storage::Slot& slot : registry.slots()) {
    const bool named = slot.spec.name.find("sinks") != std::string::npos;
    if (named && is_loaded_or_derived(slot)) slots.push_back(slot.id);
  }
  return slots;
}

}  // namespace

std::string_view fault_kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "none";
    case Kind::kRebindConstants: return "rebind-constants";
    case Kind::kStaleDerived: return "stale-derived";
    case Kind::kSkipLayer: return "skip-layer";
    case Kind::kDropSink: return "drop-sink";
  }
  return "unknown";
}

std::optional<Kind> fault_kind_from_name(std::string_view name) {
  for (const Kind kind : {Kind::kNone, Kind::kRebindConstants, Kind::kStaleDerived,
                          Kind::kSkipLayer, Kind::kDropSink}) {
    if (fault_kind_name(kind) == name) return kind;
  }
  return std::nullopt;
}

Result<std::vector<storage::SlotId>> stale_slots(const storage::Registry& registry, Kind kind) {
  std::vector<storage::SlotId> slots;
  switch (kind) {
    case Kind::kNone: return slots;
    case Kind::kRebindConstants: {
      const auto arenas = registry.versioned_arenas();
      const bool found = std::any_of(arenas.begin(), arenas.end(), [](const device::Arena* arena) {
        return arena->name() == kConstantsArena;
      });
      if (found) return slots;
      return make_error(ErrorCode::kNotFound, "fault {}: this model has no arena {}",
                        fault_kind_name(kind), kConstantsArena);
    }
    case Kind::kStaleDerived: slots = first_derived(registry); break;
    case Kind::kSkipLayer: slots = middle_layer(registry); break;
    case Kind::kDropSink: slots = sinks(registry); break;
  }
  if (!slots.empty()) return slots;
  if (kind == Kind::kStaleDerived) {
    return make_error(ErrorCode::kNotFound,
                      "fault {}: this model derives no slot on {}, so that none can go stale",
                      fault_kind_name(kind), registry.device().name());
  }
  return make_error(ErrorCode::kNotFound, "fault {}: this model has no slot that it would act on",
                    fault_kind_name(kind));
}

}  // namespace holdfast::reload
