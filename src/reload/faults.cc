#include "reload/faults.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/assert.h"
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

std::vector<storage::SlotId> derived_named(const storage::Registry& registry,
                                           std::initializer_list<std::string_view> suffixes) {
  std::vector<storage::SlotId> slots;
  for (const storage::Slot& slot : registry.slots()) {
    const bool named = std::ranges::any_of(
        suffixes, [&](std::string_view suffix) { return slot.spec.name.ends_with(suffix); });
    if (named && slot.spec.slot_class == SlotClass::kDerived) slots.push_back(slot.id);
  }
  return slots;
}

std::vector<storage::SlotId> alphas(const storage::Registry& registry) {
  std::vector<storage::SlotId> slots = derived_named(registry, {".alpha"});
  return slots.empty() ? derived_named(registry, {".weight_scale"}) : slots;
}

Status check_arena(const storage::Registry& registry, Kind kind) {
  const std::string_view name = rebound_arena(kind);
  const auto arenas = registry.all_arenas();
  if (std::ranges::any_of(arenas, [&](const auto* arena) { return arena->name() == name; })) {
    return {};
  }
  return make_error(ErrorCode::kNotFound, "fault {}: this model has no arena {}",
                    fault_kind_name(kind), name);
}

}  // namespace

std::string_view rebound_arena(Kind kind) {
  switch (kind) {
    case Kind::kRebindConstants: return "experts.constants";
    case Kind::kRebuiltWorkspace: return "experts.sync";
    case Kind::kReregisteredScale: return "experts.scales";
    default: return {};
  }
}

std::string_view fault_kind_name(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "none";
    case Kind::kRebindConstants: return "rebind-constants";
    case Kind::kStaleDerived: return "stale-derived";
    case Kind::kSkipLayer: return "skip-layer";
    case Kind::kDropSink: return "drop-sink";
    case Kind::kRebuiltWorkspace: return "rebuilt-workspace";
    case Kind::kReregisteredScale: return "reregistered-scale";
    case Kind::kStaleSortIndex: return "stale-sort-index";
    case Kind::kStalePermutation: return "stale-permutation";
    case Kind::kStaleAlpha: return "stale-alpha";
    case Kind::kShuffleTwice: return "shuffle-twice";
    case Kind::kNoShuffle: return "no-shuffle";
  }
  return "unknown";
}

std::optional<Kind> fault_kind_from_name(std::string_view name) {
  for (const Kind kind :
       {Kind::kNone, Kind::kRebindConstants, Kind::kStaleDerived, Kind::kSkipLayer,
        Kind::kDropSink, Kind::kRebuiltWorkspace, Kind::kReregisteredScale, Kind::kStaleSortIndex,
        Kind::kStalePermutation, Kind::kStaleAlpha, Kind::kShuffleTwice, Kind::kNoShuffle}) {
    if (fault_kind_name(kind) == name) return kind;
  }
  return std::nullopt;
}

Result<std::vector<storage::SlotId>> stale_slots(const storage::Registry& registry, Kind kind) {
  std::vector<storage::SlotId> slots;
  switch (kind) {
    case Kind::kNone: return slots;
    case Kind::kRebindConstants:
    case Kind::kRebuiltWorkspace:
    case Kind::kReregisteredScale: HF_TRY(check_arena(registry, kind)); return slots;
    case Kind::kShuffleTwice:
    case Kind::kNoShuffle:
      if (!reordered_by(registry, kind).empty()) return slots;
      return make_error(ErrorCode::kNotFound, "fault {}: this model's packing moves no units",
                        fault_kind_name(kind));
    case Kind::kStaleSortIndex: slots = derived_named(registry, {".sort_indices"}); break;
    case Kind::kStalePermutation: slots = derived_named(registry, {".act_perm", ".order"}); break;
    case Kind::kStaleAlpha: slots = alphas(registry); break;
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

std::vector<const storage::Derivation*> reordered_by(const storage::Registry& registry,
                                                     Kind kind) {
  std::vector<const storage::Derivation*> found;
  if (kind != Kind::kShuffleTwice && kind != Kind::kNoShuffle) return found;
  std::optional<std::uint64_t> layer;
  for (const storage::Derivation& derivation : registry.derivations()) {
    if (!derivation.order.place) continue;
    const auto here = layer_of(registry.slot(derivation.outputs.front()).spec.name);
    if (!found.empty() && here != layer) continue;
    layer = here;
    found.push_back(&derivation);
  }
  return found;
}

void misapply(const storage::Derivation& derivation, Kind kind, std::span<std::byte> bytes) {
  const auto unit = static_cast<std::size_t>(derivation.order.unit_bytes);
  const std::size_t slice = bytes.size() / static_cast<std::size_t>(derivation.slice_count);
  HF_ASSERT(slice % unit == 0, "slices of whole units");
  const std::vector<std::byte> packed(bytes.begin(), bytes.end());
  for (std::size_t begin = 0; begin < bytes.size(); begin += slice) {
    for (std::size_t i = 0; i < slice / unit; ++i) {
      const auto place =
          static_cast<std::size_t>(derivation.order.place(static_cast<std::int64_t>(i)));
      const bool twice = kind == Kind::kShuffleTwice;
      const std::size_t from = begin + (twice ? i : place) * unit;
      const std::size_t to = begin + (twice ? place : i) * unit;
      std::copy_n(packed.begin() + static_cast<std::ptrdiff_t>(from), unit,
                  bytes.begin() + static_cast<std::ptrdiff_t>(to));
    }
  }
}

}  // namespace holdfast::reload
