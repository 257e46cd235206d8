#include "storage/graph_census.h"

#include <algorithm>

#include "base/error.h"
#include "storage/address_tables.h"
#include "storage/census.h"

namespace holdfast::storage {
namespace {

// The role of the operand of `node` that holds `address`; entries lie in the order of nodes.
std::string role_of(const device::AddressManifest& manifest, std::uint32_t node,
                    std::uintptr_t address) {
  const auto begin =
      std::partition_point(manifest.entries.begin(), manifest.entries.end(),
                           [node](const device::ManifestEntry& e) { return e.node < node; });
  for (auto entry = begin; entry != manifest.entries.end() && entry->node == node; ++entry) {
    if (entry->range.contains({address, 1})) return entry->role;
  }
  return {};
}

Status count_graph(const Registry& registry, const device::Graph& graph, GraphCensus& census) {
  HF_ASSIGN(const device::GraphReading reading, graph.read_back());
  const std::size_t first = census.nodes.size();
  for (std::size_t i = 0; i < reading.nodes.size(); ++i) {
    census.nodes.push_back(
        {.graph = graph.label(), .name = fmt::format("{}:{}", i, reading.nodes[i].name)});
  }
  for (const device::GraphReading::Pointer& pointer : reading.pointers) {
    GraphCensus::Pointer counted{.byte = pointer.byte, .address = pointer.address};
    const auto& ours = reading.nodes[pointer.node].manifest_node;
    if (ours) counted.role = role_of(graph.manifest(), *ours, pointer.address);
    if (const auto slot = registry.resolve(pointer.address)) {
      counted.slot = registry.slot(*slot).spec.name;
      counted.slot_offset = pointer.address - registry.slot(*slot).range.begin;
    } else {
      ++census.homeless;
    }
    census.nodes[first + pointer.node].pointers.push_back(std::move(counted));
  }
  for (const std::string& node : reading.unaudited) {
    census.unaudited.push_back(fmt::format("{}: {}", graph.label(), node));
  }
  census.words += reading.words;
  census.pointers += reading.pointers.size();
  return {};
}

// Each table is a node of its own, whose bytes are the slot's.
Status count_tables(const Registry& registry, GraphCensus& census) {
  HF_ASSIGN(const std::vector<TableEntry> entries, read_address_tables(registry));
  for (const TableEntry& entry : entries) {
    const std::string& table = registry.slot(entry.table).spec.name;
    if (census.nodes.empty() || census.nodes.back().name != table) {
      census.nodes.push_back({.graph = std::string(kAddressTables), .name = table});
    }
    GraphCensus::Pointer counted{.byte = entry.index * sizeof(entry.address),
                                 .address = entry.address,
                                 .role = "entry"};
    if (entry.home) {
      const Slot& home = registry.slot(*entry.home);
      counted.slot = home.spec.name;
      counted.slot_offset = entry.address - home.range.begin;
    } else {
      ++census.homeless;
    }
    census.nodes.back().pointers.push_back(std::move(counted));
  }
  census.pointers += entries.size();
  return {};
}

}  // namespace

Result<GraphCensus> take_graph_census(const Registry& registry,
                                      std::span<const device::Graph* const> graphs) {
  GraphCensus census;
  census.graphs = graphs.size();
  for (const device::Graph* graph : graphs) HF_TRY(count_graph(registry, *graph, census));
  HF_TRY(count_tables(registry, census));
  return census;
}

}  // namespace holdfast::storage
