#include "device/device.h"

#include "base/error.h"

namespace holdfast::device {
namespace {

Status check_manifest(const Graph& graph, const AddressHome& home) {
  const AddressManifest& manifest = graph.manifest();
  for (const ManifestEntry& entry : manifest.entries) {
    if (home.contains(entry.range)) continue;
    return make_error(ErrorCode::kMismatch,
                      "graph {}: node {} ({}), operand {}: {} bytes at {:#x} do not lie in one "
                      "live slot: {}; every operand of a captured kernel must be a slot of the "
                      "registry",
                      graph.label(), entry.node, manifest.nodes[entry.node], entry.role,
                      entry.range.bytes, entry.range.begin, home.describe(entry.range.begin));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Graph>> capture(Stream& stream, const AddressHome& home, std::string label,
                                       const std::function<Status()>& body) {
  if (!home.sealed()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "capture of graph {} over a registry that is not sealed: its addresses could "
                      "still change; seal it first",
                      label);
  }
  if (stream.capturing()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "capture of graph {} inside another capture on the same stream", label);
  }
  HF_TRY(stream.begin_capture());
  Status launched = body();
  // Whatever happened, the recording ends here, so the stream is usable again.
  auto ended = stream.end_capture(home, label);
  if (!launched.ok()) return launched.error().with_context("capture of graph " + label);
  HF_ASSIGN(std::unique_ptr<Graph> graph, std::move(ended));
  HF_TRY(check_manifest(*graph, home));
  HF_TRY(graph->check_parameters(home));
  return graph;
}

}  // namespace holdfast::device
