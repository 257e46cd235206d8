#include "api/graph_census.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "storage/graph_census.h"

namespace holdfast::api {
namespace {

using Json = nlohmann::ordered_json;

Json pointer_json(const GraphCensusPointer& pointer) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  return {{"byte", pointer.byte},
          {"address", fmt::format("{:#x}", pointer.address)},
          {"role", or_null(pointer.role)},
          {"slot", or_null(pointer.slot)},
          {"offset", pointer.slot_offset}};
}

std::string to_json(const GraphCensusReport& report) {
  Json nodes = Json::array();
  for (const GraphCensusNode& node : report.nodes) {
    Json pointers = Json::array();
    for (const GraphCensusPointer& pointer : node.pointers) {
      pointers.push_back(pointer_json(pointer));
    }
    nodes.push_back(
        {{"graph", node.graph}, {"node", node.name}, {"pointers", std::move(pointers)}});
  }
  const Json whole = {{"nodes", std::move(nodes)},
                      {"unaudited", report.unaudited},
                      {"figures",
                       {{"graphs", report.graphs},
                        {"nodes", report.nodes.size()},
                        {"words", report.words},
                        {"pointers", report.pointers},
                        {"homeless", report.homeless},
                        {"unaudited", report.unaudited.size()},
                        {"ms", report.ms}}}};
  return whole.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Result<GraphCensusReport> make_graph_census(const storage::Registry& registry,
                                            const engine::GraphSet& graphs) {
  const base::SteadyClock clock;
  const std::vector<const device::Graph*> captured = graphs.graphs();
  const std::int64_t begin_ns = clock.now_ns();
  HF_ASSIGN(storage::GraphCensus census, storage::take_graph_census(registry, captured));
  GraphCensusReport report;
  report.ms = static_cast<double>(clock.now_ns() - begin_ns) * 1e-6;
  report.graphs = census.graphs;
  report.words = census.words;
  report.pointers = census.pointers;
  report.homeless = census.homeless;
  report.unaudited = std::move(census.unaudited);
  for (storage::GraphCensus::Node& node : census.nodes) {
    GraphCensusNode& made = report.nodes.emplace_back();
    made.graph = std::move(node.graph);
    made.name = std::move(node.name);
    for (storage::GraphCensus::Pointer& pointer : node.pointers) {
      made.pointers.push_back({.byte = pointer.byte,
                               .address = pointer.address,
                               .role = std::move(pointer.role),
                               .slot = std::move(pointer.slot),
                               .slot_offset = pointer.slot_offset});
    }
  }
  report.json = to_json(report);
  return report;
}

}  // namespace holdfast::api
