#include "device/cuda/graph_audit.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"

namespace holdfast::device::cuda {
namespace {

constexpr std::size_t kMaxParameters = 4096;
constexpr int kMaxDepth = 8;  // of child graphs

// What one node was given, as bytes.
struct NodeBytes {
  std::string name;
  std::vector<std::byte> bytes;
  std::string unaudited;  // why it could not be read
};

// As the driver's CUgraphNodeType has them.
std::string type_name(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_HOST: return "host function";
    case CU_GRAPH_NODE_TYPE_GRAPH: return "child graph";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return "memory allocation";
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return "memory free";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return "batch of memory operations";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return "conditional node";
    default: return fmt::format("node of type {}", static_cast<int>(type));
  }
}

class Reader {
 public:
  explicit Reader(const Driver& driver) : driver_(driver) {}

  Result<NodeBytes> read(CUgraphNode node) const {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    HF_TRY(check(driver_.graph_node_type(node, &type), "asking for a node's type"));
    switch (type) {
      case CU_GRAPH_NODE_TYPE_KERNEL: return kernel(node);
      case CU_GRAPH_NODE_TYPE_MEMCPY: return memcpy_node(node);
      case CU_GRAPH_NODE_TYPE_MEMSET: return memset_node(node);
      case CU_GRAPH_NODE_TYPE_EMPTY:
      case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return NodeBytes{"event", {}, {}};
      default: break;
    }
    return NodeBytes{type_name(type), {}, "its parameters cannot be read back"};
  }

  Result<std::vector<CUgraphNode>> nodes(CUgraph graph) const {
    std::size_t count = 0;
    HF_TRY(check(driver_.graph_nodes(graph, nullptr, &count), "counting a graph's nodes"));
    std::vector<CUgraphNode> nodes(count);
    if (count == 0) return nodes;
    HF_TRY(check(driver_.graph_nodes(graph, nodes.data(), &count), "listing a graph's nodes"));
    return nodes;
  }

  // The child of a child-graph node; null for every other node.
  Result<CUgraph> child(CUgraphNode node) const {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    HF_TRY(check(driver_.graph_node_type(node, &type), "asking for a node's type"));
    CUgraph graph = nullptr;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      HF_TRY(check(driver_.graph_child(node, &graph), "opening a child graph"));
    }
    return graph;
  }

 private:
  Result<NodeBytes> kernel(CUgraphNode node) const {
    CUDA_KERNEL_NODE_PARAMS params = {};
    HF_TRY(check(driver_.graph_kernel_params(node, &params), "reading a kernel node"));
    CUfunction function = params.func;
    if (function == nullptr && params.kern != nullptr) {
      HF_TRY(check(driver_.kernel_function(&function, params.kern), "reading a kernel node"));
    }
    NodeBytes result;
    const char* name = nullptr;
    if (driver_.function_name(&name, function) == CUDA_SUCCESS && name != nullptr) {
      result.name = name;
    }
    const std::byte* extra = buffer_of(params.extra);
    if (params.kernelParams == nullptr && extra == nullptr) {
      result.unaudited = "it has neither kernelParams nor extra";
      return result;
    }
    for (std::size_t i = 0; i < kMaxParameters; ++i) {
      std::size_t offset = 0;
      std::size_t size = 0;
      if (driver_.function_parameter(function, i, &offset, &size) != CUDA_SUCCESS) break;
      const auto* from = params.kernelParams != nullptr
                             ? static_cast<const std::byte*>(params.kernelParams[i])
                             : extra + offset;
      result.bytes.resize(std::max(result.bytes.size(), offset + size));
      std::memcpy(result.bytes.data() + offset, from, size);
    }
    return result;
  }

  // Libraries pack their parameters into one buffer and leave kernelParams empty.
  static const std::byte* buffer_of(void** extra) {
    for (; extra != nullptr && extra[0] != CU_LAUNCH_PARAM_END; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        return static_cast<const std::byte*>(extra[1]);
      }
    }
    return nullptr;
  }

  Result<NodeBytes> memcpy_node(CUgraphNode node) const {
    CUDA_MEMCPY3D params = {};
    HF_TRY(check(driver_.graph_memcpy_params(node, &params), "reading a memcpy node"));
    return words("memcpy", {params.srcDevice, params.dstDevice,
                            reinterpret_cast<CUdeviceptr>(params.srcHost),
                            reinterpret_cast<CUdeviceptr>(params.dstHost)});
  }

  Result<NodeBytes> memset_node(CUgraphNode node) const {
    CUDA_MEMSET_NODE_PARAMS params = {};
    HF_TRY(check(driver_.graph_memset_params(node, &params), "reading a memset node"));
    return words("memset", {params.dst});
  }

  static NodeBytes words(const char* name, std::initializer_list<CUdeviceptr> addresses) {
    NodeBytes result{.name = name, .bytes = {}, .unaudited = {}};
    for (const CUdeviceptr address : addresses) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&address);
      result.bytes.insert(result.bytes.end(), bytes, bytes + sizeof(address));
    }
    return result;
  }

  const Driver& driver_;
};

bool is_device_memory(const Driver& driver, std::uintptr_t word) {
  unsigned type = 0;
  return driver.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, word) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE;
}

// Where CudaMemory reserves its addresses.
constexpr std::uintptr_t kArenaAddresses = std::uintptr_t{1} << 45;

// Every 4 bytes, because a packed struct may hold a pointer there; off the natural alignment only
// what lies in a slot counts, or where slots of ours are or have been, because two neighbouring
// small numbers can look like an address of other memory.
template <typename Found>
std::size_t for_each_pointer(const Driver& driver, const std::vector<std::byte>& bytes,
                             const AddressHome& home, Found&& found) {
  std::size_t words = 0;
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= bytes.size(); at += 4) {
    std::uintptr_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof(word));
    ++words;
    if (word == 0) continue;
    const bool place = at % 8 == 0 || word >= kArenaAddresses;
    if (home.contains({word, 1}) || (place && is_device_memory(driver, word))) {
      found(at, word);
    }
  }
  return words;
}

struct Auditor {
  const Driver& driver;
  const AddressHome& home;
};

Status audit_into(const Auditor& auditor, CUgraph graph, int depth, GraphAudit& audit) {
  const auto& [driver, home] = auditor;
  const Reader reader(driver);
  if (depth > kMaxDepth) {
    audit.unaudited.push_back(fmt::format("child graphs deeper than {}", kMaxDepth));
    return {};
  }
  HF_ASSIGN(const auto nodes, reader.nodes(graph));
  for (const CUgraphNode node : nodes) {
    HF_ASSIGN(CUgraph child, reader.child(node));
    if (child != nullptr) {
      HF_TRY(audit_into(auditor, child, depth + 1, audit));
      continue;
    }
    HF_ASSIGN(const NodeBytes read, reader.read(node));
    const std::size_t index = audit.nodes++;
    audit.found.push_back({node, read.name});
    if (!read.unaudited.empty()) audit.unaudited.push_back(read.name + ": " + read.unaudited);
    audit.words += for_each_pointer(driver, read.bytes, home,
                                    [&](std::size_t byte, std::uintptr_t address) {
                                      audit.pointers.push_back({index, read.name, byte, address});
                                    });
  }
  return {};
}

// The entries of one node of the manifest, which lie in the order of nodes.
std::span<const ManifestEntry> entries_of(const AddressManifest& manifest, std::uint32_t node) {
  const auto begin =
      std::partition_point(manifest.entries.begin(), manifest.entries.end(),
                           [node](const ManifestEntry& e) { return e.node < node; });
  const auto end = std::find_if(begin, manifest.entries.end(),
                                [node](const ManifestEntry& e) { return e.node != node; });
  return {begin, end};
}

}  // namespace

Result<GraphAudit> audit_graph(const Driver& driver, CUgraph graph, const AddressHome& home) {
  GraphAudit audit;
  HF_TRY(audit_into({driver, home}, graph, 0, audit));
  return audit;
}

Result<AuditFigures> compare_with_manifest(const Driver& driver, CUgraph graph,
                                           const CudaRecording& recording,
                                           const AddressHome& home, const std::string& label) {
  const Reader reader(driver);
  AuditFigures figures;
  std::map<CUgraphNode, std::uint32_t> ours;
  for (std::uint32_t i = 0; i < recording.nodes.size(); ++i) ours.emplace(recording.nodes[i], i);
  HF_ASSIGN(const auto nodes, reader.nodes(graph));
  for (const CUgraphNode node : nodes) {
    HF_ASSIGN(const NodeBytes read, reader.read(node));
    const auto known = ours.find(node);
    figures.unaudited += !read.unaudited.empty();
    if (!read.unaudited.empty() || known == ours.end()) {
      return make_error(ErrorCode::kUnsupported,
                        "graph {}: node {} cannot be audited: {}; only launches through holdfast's "
                        "streams may be captured",
                        label, read.name,
                        known == ours.end() ? "no launch of ours made it" : read.unaudited);
    }
    const auto declared = entries_of(recording.manifest, known->second);
    std::vector<bool> seen(declared.size(), false);
    Status wrong;
    ++figures.nodes;
    const auto look = [&](std::size_t byte, std::uintptr_t address) {
      bool found = false;
      ++figures.pointers;
      for (std::size_t i = 0; i < declared.size(); ++i) {
        if (!declared[i].range.contains({address, 1})) continue;
        seen[i] = found = true;
      }
      if (found || !wrong.ok()) return;
      wrong = make_error(ErrorCode::kMismatch,
                         "graph {}: node {} ({}): the parameters hold the pointer {:#x} at byte "
                         "{}, which no operand declares: {}; declare it, or place what it points "
                         "to in a slot",
                         label, recording.manifest.nodes[known->second], read.name, address, byte,
                         home.describe(address));
    };
    figures.words += for_each_pointer(driver, read.bytes, home, look);
    HF_TRY(wrong);
    const auto unseen = std::find(seen.begin(), seen.end(), false);
    if (unseen == seen.end()) continue;
    const ManifestEntry& entry = declared[static_cast<std::size_t>(unseen - seen.begin())];
    return make_error(ErrorCode::kMismatch,
                      "graph {}: node {} declares operand {} at {:#x}, and no parameter points "
                      "there",
                      label, recording.manifest.nodes[known->second], entry.role,
                      entry.range.begin);
  }
  return figures;
}

}  // namespace holdfast::device::cuda
