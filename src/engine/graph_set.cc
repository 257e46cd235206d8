#include "engine/graph_set.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/assert.h"
#include "storage/address_tables.h"

namespace holdfast::engine {

namespace {

// The name of the slot that holds `address` now; empty when none does.
std::string home_of(const storage::Registry& registry, std::uintptr_t address) {
  const auto slot = registry.resolve(address);
  return slot ? registry.slot(*slot).spec.name : std::string();
}

}  // namespace

std::vector<std::int64_t> graph_row_counts(std::int64_t max_sequences, std::int64_t max_rows) {
  std::vector<std::int64_t> counts = {max_sequences, max_rows};
  for (std::int64_t rows = 1; rows <= std::min(max_rows, kLargestDecodeRows); rows *= 2) {
    counts.push_back(rows);
  }
  std::erase_if(counts, [max_rows](std::int64_t count) { return count > max_rows; });
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

Result<std::unique_ptr<GraphSet>> GraphSet::capture(const storage::Registry& registry,
                                                    const model::Decoder& decoder,
                                                    const ops::OpContext& context,
                                                    const Sizes& sizes) {
  std::unique_ptr<GraphSet> set(new GraphSet());
  std::vector<std::int64_t> counts = graph_row_counts(sizes.max_sequences, sizes.max_rows);
  std::reverse(counts.begin(), counts.end());
  for (const std::int64_t rows : counts) {
    HF_ASSIGN(auto graph,
              device::capture(context.stream, registry, fmt::format("step of {} rows", rows),
                              [&] { return decoder.step(context, rows); }));
    Entry entry{.rows = rows, .graph = std::move(graph), .homes = {}};
    for (const device::ManifestEntry& operand : entry.graph->manifest().entries) {
      entry.homes.push_back(home_of(registry, operand.range.begin));
    }
    set->entries_.push_back(std::move(entry));
  }
  std::reverse(set->entries_.begin(), set->entries_.end());
  HF_TRY(storage::check_address_tables(registry));
  std::set<storage::SlotId> seen;
  for (const Entry& entry : set->entries_) {
    for (const device::ManifestEntry& operand : entry.graph->manifest().entries) {
      const auto slot = registry.resolve(operand.range.begin);
      if (!slot || !seen.insert(*slot).second) continue;
      set->homes_.push_back({*slot, registry.slot(*slot).range});
    }
  }
  return set;
}

device::AuditFigures GraphSet::audited() const {
  device::AuditFigures sum;
  for (const Entry& entry : entries_) {
    const device::AuditFigures figures = entry.graph->audited();
    sum.nodes += figures.nodes;
    sum.words += figures.words;
    sum.pointers += figures.pointers;
    sum.unaudited += figures.unaudited;
    sum.ns += figures.ns;
  }
  return sum;
}

void GraphSet::recheck(const storage::Registry& registry, const base::Clock& clock) {
  const std::int64_t begin_ns = clock.now_ns();
  rechecked_ = {.slots = homes_.size()};
  for (const Home& home : homes_) {
    const device::AddressRange& now = registry.slot(home.slot).range;
    rechecked_.moved += now.begin != home.range.begin || now.bytes != home.range.bytes;
  }
  rechecked_.ns = clock.now_ns() - begin_ns;
}

Status GraphSet::replay(device::Stream& stream, std::int64_t rows) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [rows](const Entry& e) { return e.rows >= rows; });
  HF_ASSERT(rows >= 1 && entry != entries_.end(), "no graph is that large");
  return entry->graph->launch(stream);
}

std::vector<const device::Graph*> GraphSet::graphs() const {
  std::vector<const device::Graph*> result;
  for (const Entry& entry : entries_) result.push_back(entry.graph.get());
  return result;
}

std::uint64_t GraphSet::captured_address_count() const {
  std::uint64_t count = 0;
  for (const Entry& entry : entries_) count += entry.homes.size();
  return count;
}

std::vector<std::string> GraphSet::rehomed(const storage::Registry& registry) const {
  std::vector<std::string> result;
  for (const Entry& entry : entries_) {
    const device::AddressManifest& manifest = entry.graph->manifest();
    for (std::size_t i = 0; i < manifest.entries.size(); ++i) {
      const device::ManifestEntry& operand = manifest.entries[i];
      const std::string now = home_of(registry, operand.range.begin);
      if (now == entry.homes[i]) continue;
      result.push_back(fmt::format("{}/{}/{} {:#x} was {}, is {}", entry.graph->label(),
                                   manifest.nodes[operand.node], operand.role,
                                   operand.range.begin, entry.homes[i],
                                   now.empty() ? "no slot" : now));
    }
  }
  return result;
}

}  // namespace holdfast::engine
