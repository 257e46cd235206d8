// AddressManifest: all that a graph reads and writes, in launch order. A value; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/memory.h"

namespace holdfast::device {

struct ManifestEntry {
  std::uint32_t node = 0;  // index into AddressManifest::nodes
  std::string role = {};        // the operand's name in its op: "weight", "bias", "sinks"
  AddressRange range = {};
  Access access = Access::kRead;
};

struct AddressManifest {
  std::vector<std::string> nodes;  // the op of each node, in launch order
  std::vector<ManifestEntry> entries;
};

}  // namespace holdfast::device
