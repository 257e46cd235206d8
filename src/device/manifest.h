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

// What the audit of a graph's parameters looked at.
struct AuditFigures {
  std::uint64_t nodes = 0;
  std::uint64_t words = 0;     // that could be pointers by their place
  std::uint64_t pointers = 0;  // and are
  std::uint64_t unaudited = 0;  // nodes that could not be read; one is enough to fail the capture
  std::int64_t ns = 0;
};

}  // namespace holdfast::device
