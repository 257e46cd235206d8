// GraphReading: what a captured graph itself holds, read back from it and not from the record that
// the capture kept. A value; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace holdfast::device {

struct GraphReading {
  struct Node {
    std::string name = {};  // of the op that launched it, and on a GPU the kernel's symbol
    std::optional<std::uint32_t> manifest_node = {};  // none: no launch of ours made it
  };
  // A word of a node's parameters that is an address.
  struct Pointer {
    std::uint32_t node = 0;  // index into `nodes`
    std::uint64_t byte = 0;  // where in the parameters
    std::uintptr_t address = 0;
  };
  std::vector<Node> nodes;        // in the graph's own order; those of child graphs among them
  std::uint64_t words = 0;        // looked at
  std::vector<Pointer> pointers;  // in a slot, or in any memory of the device
  std::vector<std::string> unaudited;  // nodes that cannot be read, and why
};

}  // namespace holdfast::device
