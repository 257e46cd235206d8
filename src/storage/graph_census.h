// GraphCensus: every pointer that the captured graphs hold, read back from the graphs themselves,
// with the slot in which it lies and the operand that it is, and every entry of a table of
// addresses. A value; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "storage/registry.h"

namespace holdfast::storage {

struct GraphCensus {
  struct Pointer {
    std::uint64_t byte = 0;  // where in the node's parameters
    std::uint64_t address = 0;
    std::string role = {};         // of the declared operand that holds it; empty: none does
    std::string slot = {};         // empty: in none
    std::uint64_t slot_offset = 0;
  };
  struct Node {
    std::string graph = {};
    std::string name = {};  // "3:rms_norm", on a GPU with the kernel's symbol
    std::vector<Pointer> pointers = {};
  };
  std::vector<Node> nodes;
  std::uint64_t graphs = 0, words = 0, pointers = 0;
  std::uint64_t homeless = 0;          // pointers that lie in no slot
  std::vector<std::string> unaudited;  // "graph: node: why it cannot be read"
};

// Engine thread. Errors: kDevice.
Result<GraphCensus> take_graph_census(const Registry& registry,
                                      std::span<const device::Graph* const> graphs);

}  // namespace holdfast::storage
