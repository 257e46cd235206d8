// The audit of a captured graph: reads all that each node was given, finds the words that could be
// device pointers, and compares them with the manifest. Reads CUDA's own graph, not our record of
// it. (What can be read from which node, and what cannot: docs/graph-audit.md.) Any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/cuda_stream.h"
#include "device/device.h"

namespace holdfast::device::cuda {

struct AuditedPointer {
  std::size_t node_index = 0;  // in the graph's own order
  std::string node;            // the kernel's symbol, or "memcpy", "memset"
  std::size_t byte = 0;        // where in the node's parameters
  std::uintptr_t address = 0;
};

struct AuditedNode {
  CUgraphNode handle = nullptr;
  std::string name;
};

struct GraphAudit {
  std::size_t nodes = 0;
  std::vector<AuditedNode> found;  // all nodes, in the order of node_index
  std::size_t words = 0;  // looked at
  std::vector<AuditedPointer> pointers;  // words that lie in a slot or in any device allocation
  std::vector<std::string> unaudited;    // nodes whose parameters cannot be read, and why
};

// Whether a word counts as a pointer: inside a slot of `home`, or device memory to the driver.
Result<GraphAudit> audit_graph(const Driver& driver, CUgraph graph, const AddressHome& home);

// That every pointer of every node is one of its declared operands, that each of our nodes has all
// of its operands, and that no node is unaudited. Errors: kMismatch naming node, byte, address and
// what lies there; kUnsupported naming what could not be read.
Result<AuditFigures> compare_with_manifest(const Driver& driver, CUgraph graph,
                                           const CudaRecording& recording,
                                           const AddressHome& home, const std::string& label);

}  // namespace holdfast::device::cuda
