#include "storage/census.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "storage/address_tables.h"
#include "storage/live_bytes.h"

namespace holdfast::storage {
namespace {

CensusSlot count_slot(const Slot& slot) {
  return {.name = slot.spec.name,
          .slot_class = slot.spec.slot_class,
          .address = slot.range.begin,
          .bytes = slot.range.bytes,
          .epoch = slot.epoch.value,
          .digest = std::nullopt};
}

void count_graph(const Registry& registry, const device::Graph& graph,
                 std::vector<CensusAddress>& addresses) {
  const device::AddressManifest& manifest = graph.manifest();
  for (const device::ManifestEntry& entry : manifest.entries) {
    const bool at_home = registry.contains(entry.range);
    addresses.push_back(
        {.graph = graph.label(),
         .node = fmt::format("{}:{}", entry.node, manifest.nodes[entry.node]),
         .role = entry.role,
         .address = entry.range.begin,
         .bytes = entry.range.bytes,
         .home = at_home ? registry.slot(*registry.resolve(entry.range.begin)).spec.name : ""});
  }
}

}  // namespace

std::uint64_t Census::homeless_count() const {
  return static_cast<std::uint64_t>(std::count_if(
      addresses.begin(), addresses.end(), [](const CensusAddress& a) { return a.home.empty(); }));
}

Result<Census> take_census(const Registry& registry,
                           std::span<const device::Graph* const> graphs) {
  Census census;
  census.epoch = registry.epoch().value;
  census.slots.reserve(registry.slots().size());
  for (const Slot& slot : registry.slots()) census.slots.push_back(count_slot(slot));
  const std::vector<SlotId> versioned = versioned_slots(registry);
  auto digests = live_digests(registry, versioned);
  if (!digests.ok()) return digests.error().with_context("census");
  for (std::size_t i = 0; i < versioned.size(); ++i) {
    census.slots[versioned[i].index()].digest = (*digests)[i];
  }
  for (const device::Graph* graph : graphs) count_graph(registry, *graph, census.addresses);
  auto entries = read_address_tables(registry);
  if (!entries.ok()) return entries.error().with_context("census");
  for (const TableEntry& entry : *entries) {
    census.addresses.push_back({.graph = std::string(kAddressTables),
                                .node = registry.slot(entry.table).spec.name,
                                .role = fmt::format("[{}]", entry.index),
                                .address = entry.address,
                                .bytes = 1,
                                .home = entry.home ? registry.slot(*entry.home).spec.name : ""});
  }
  return census;
}

CensusDiff diff(const Census& before, const Census& after) {
  CensusDiff result;
  std::unordered_map<std::string_view, const CensusSlot*> old_slots;
  for (const CensusSlot& slot : before.slots) old_slots.emplace(slot.name, &slot);
  for (const CensusSlot& now : after.slots) {
    const auto found = old_slots.find(now.name);
    if (found == old_slots.end()) {
      result.only_after.push_back(now.name);
      continue;
    }
    const CensusSlot& then = *found->second;
    if (then.address != now.address || then.bytes != now.bytes) {
      result.moved.push_back(now.name);
    } else {
      ++result.same_address_count;
    }
    if (then.digest != now.digest) result.changed.push_back(now.name);
    old_slots.erase(found);
  }
  for (const CensusSlot& slot : before.slots) {
    if (old_slots.contains(slot.name)) result.only_before.push_back(slot.name);
  }
  return result;
}

std::string to_table(const Census& census, bool verbose) {
  constexpr SlotClass kClasses[] = {SlotClass::kWeight, SlotClass::kDerived, SlotClass::kConstant,
                                    SlotClass::kState,  SlotClass::kInput,   SlotClass::kScratch,
                                    SlotClass::kSync};
  std::string text = fmt::format("epoch {}\n{:<10} {:>8} {:>18}\n", census.epoch, "class", "slots",
                                 "bytes");
  for (SlotClass slot_class : kClasses) {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    for (const CensusSlot& slot : census.slots) {
      if (slot.slot_class != slot_class) continue;
      ++count;
      bytes += slot.bytes;
    }
    if (count == 0) continue;
    text += fmt::format("{:<10} {:>8} {:>18}\n", slot_class_name(slot_class), count, bytes);
  }
  text += fmt::format("captured addresses: {}, of them in no slot: {}\n", census.addresses.size(),
                      census.homeless_count());
  for (const CensusAddress& address : census.addresses) {
    if (!address.home.empty()) continue;
    text += fmt::format("  no home: graph {} node {} operand {}: {:#x}, {} bytes\n", address.graph,
                        address.node, address.role, address.address, address.bytes);
  }
  if (!verbose) return text;
  for (const CensusSlot& slot : census.slots) {
    text += fmt::format("{:<10} {:#016x} {:>14} epoch {} {} {}\n", slot_class_name(slot.slot_class),
                        slot.address, slot.bytes, slot.epoch,
                        slot.digest ? slot.digest->to_hex() : "-", slot.name);
  }
  return text;
}

}  // namespace holdfast::storage
