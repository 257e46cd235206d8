// GraphCensusReport: every pointer in the captured graphs, read back from the graphs themselves:
// node -> pointer -> slot. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace holdfast {

struct GraphCensusPointer {
  std::uint64_t byte = 0;  // where in the node's parameters
  std::uint64_t address = 0;
  std::string role;  // of the declared operand that holds it; empty: none does
  std::string slot;  // empty: it lies in none
  std::uint64_t slot_offset = 0;
};

struct GraphCensusNode {
  std::string graph;  // "step of 4 rows"
  std::string name;   // "3:rms_norm"; on a GPU with the kernel's symbol
  std::vector<GraphCensusPointer> pointers;
};

struct GraphCensusReport {
  std::vector<GraphCensusNode> nodes;  // in the graphs' own order
  // Words looked at: every 4 bytes of all parameters. Homeless: pointers in no slot.
  std::uint64_t graphs = 0, words = 0, pointers = 0, homeless = 0;
  std::vector<std::string> unaudited;  // nodes that cannot be read, and why
  double ms = 0;                       // of reading all graphs and resolving what they hold
  std::string json;                    // the whole, as one object
};

}  // namespace holdfast
