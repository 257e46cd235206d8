#include "engine/census_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <utility>

namespace holdfast::engine {

namespace {
double to_ms(std::int64_t ns) { return static_cast<double>(ns) * 1e-6; }
}  // namespace

Result<CensusReport> make_census_report(const storage::Registry& registry,
                                        const GraphSet& graphs) {
  const std::vector<const device::Graph*> captured = graphs.graphs();
  HF_ASSIGN(const storage::Census census, storage::take_census(registry, captured));
  CensusReport report;
  report.epoch = census.epoch;
  for (const storage::CensusSlot& slot : census.slots) {
    report.slots.push_back({.name = slot.name,
                            .slot_class = std::string(storage::slot_class_name(slot.slot_class)),
                            .address = slot.address,
                            .bytes = slot.bytes,
                            .epoch = slot.epoch,
                            .digest = slot.digest ? slot.digest->to_hex() : std::string()});
  }
  report.captured_addresses = graphs.captured_address_count();
  for (const storage::CensusAddress& address : census.addresses) {
    if (!address.home.empty()) continue;
    report.homeless.push_back(fmt::format("{}/{}/{} {:#x}", address.graph, address.node,
                                          address.role, address.address));
  }
  report.rehomed = graphs.rehomed(registry);
  nlohmann::json json = nlohmann::json::parse(storage::to_json(census), nullptr, false);
  json["rehomed"] = report.rehomed;
  const device::AuditFigures audit = graphs.audited();
  const GraphSet::Recheck& recheck = graphs.rechecked();
  json["audit"] = {{"graphs", captured.size()},    {"nodes", audit.nodes},
                   {"words", audit.words},         {"pointers", audit.pointers},
                   {"unaudited", audit.unaudited}, {"ms", to_ms(audit.ns)},
                   {"recheck_slots", recheck.slots}, {"recheck_moved", recheck.moved},
                   {"recheck_ms", to_ms(recheck.ns)}};
  report.json = json.dump();
  return report;
}

}  // namespace holdfast::engine
