#include "device/cuda/cuda_graph.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/clock.h"
#include "base/error.h"
#include "device/cuda/graph_audit.h"
#include "device/replay_check.h"

namespace holdfast::device::cuda {

CudaGraph::CudaGraph(const Driver& driver, cudaGraph_t graph, CudaRecording recording,
                     const AddressHome& home, std::string label)
    : driver_(driver),
      graph_(graph),
      recording_(std::move(recording)),
      home_(home),
      layout_generation_(home.layout_generation()),
      label_(std::move(label)) {}

Result<std::unique_ptr<CudaGraph>> CudaGraph::create(const Driver& driver, cudaGraph_t graph,
                                                     CudaRecording recording,
                                                     const AddressHome& home, std::string label) {
  std::unique_ptr<CudaGraph> made(
      new CudaGraph(driver, graph, std::move(recording), home, std::move(label)));
  HF_TRY(check(cudaGraphInstantiate(&made->executable_, graph, 0),
               "instantiating graph " + made->label_));
  return made;
}

CudaGraph::~CudaGraph() {
  if (executable_ != nullptr) static_cast<void>(cudaGraphExecDestroy(executable_));
  static_cast<void>(cudaGraphDestroy(graph_));
}

Status CudaGraph::check_parameters(const AddressHome& home) const {
  HF_ASSERT(&home == &home_, "a graph is checked against the home that it was captured over");
  const base::SteadyClock clock;
  const std::int64_t begin_ns = clock.now_ns();
  HF_ASSIGN(audited_, compare_with_manifest(driver_, graph_, recording_, home, label_));
  audited_.ns = clock.now_ns() - begin_ns;
  return {};
}

Result<GraphReading> CudaGraph::read_back() const {
  HF_ASSIGN(const GraphAudit audit, audit_graph(driver_, graph_, home_));
  GraphReading reading;
  reading.words = audit.words;
  reading.unaudited = audit.unaudited;
  for (const AuditedNode& node : audit.found) {
    const auto ours = std::find(recording_.nodes.begin(), recording_.nodes.end(), node.handle);
    if (ours == recording_.nodes.end()) {
      reading.nodes.push_back({node.name, std::nullopt});
      continue;
    }
    const auto number = static_cast<std::uint32_t>(ours - recording_.nodes.begin());
    reading.nodes.push_back(
        {fmt::format("{} ({})", recording_.manifest.nodes[number], node.name), number});
  }
  for (const AuditedPointer& pointer : audit.pointers) {
    reading.pointers.push_back(
        {static_cast<std::uint32_t>(pointer.node_index), pointer.byte, pointer.address});
  }
  return reading;
}

Status CudaGraph::launch(Stream& stream) {
  HF_ASSERT(stream.kind() == DeviceKind::kCuda, "a CUDA graph was launched on another device");
  HF_TRY(check_replay(home_, layout_generation_, label_));
  if (stream.capturing()) {
    return make_error(ErrorCode::kFailedPrecondition, "graph {}: launched inside a capture",
                      label_);
  }
  return check(cudaGraphLaunch(executable_, static_cast<CudaStream&>(stream).handle()), label_);
}

}  // namespace holdfast::device::cuda
