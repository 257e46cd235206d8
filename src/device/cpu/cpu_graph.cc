#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "device/cpu/cpu_stream.h"
#include "device/replay_check.h"

namespace holdfast::device {
namespace {

// Below this lie numbers that are no pointers, and the shadow memory of sanitizers; the heap, the
// stacks and all mappings of a position-independent program lie above.
constexpr std::uintptr_t kLowestHostPointer = std::uintptr_t{0x5000} << 32;

// The process's writable ranges: a pointer there that is no operand is state which a replay would
// read behind the manifest's back, and which may move or end before the graph does.
std::vector<AddressRange> writable_ranges() {
  std::vector<AddressRange> ranges;
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char write = '-';
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*c%c", &begin, &end, &write) != 3) {
      continue;
    }
    if (write == 'w' && begin >= kLowestHostPointer) ranges.push_back({begin, end - begin});
  }
  return ranges;
}

bool any_contains(const std::vector<AddressRange>& ranges, std::uintptr_t address) {
  for (const AddressRange& range : ranges) {
    if (range.contains({address, 1})) return true;
  }
  return false;
}

}  // namespace

void CpuRecording::add(const CpuKernel& kernel) {
  const std::size_t blocks = (kernel.arg_bytes + sizeof(ArgBlock) - 1) / sizeof(ArgBlock);
  nodes_.push_back({kernel.run, args_.size(), kernel.arg_bytes});
  args_.resize(args_.size() + blocks);
  if (blocks != 0) std::memcpy(&args_[args_.size() - blocks], kernel.args, kernel.arg_bytes);
  const auto node = static_cast<std::uint32_t>(manifest_.nodes.size());
  manifest_.nodes.emplace_back(kernel.name);
  for (const Operand& operand : kernel.operands) {
    if (operand.range.bytes == 0) continue;
    manifest_.entries.push_back({.node = node,
                                 .role = operand.role,
                                 .range = operand.range,
                                 .access = operand.access});
  }
}

CpuGraph::CpuGraph(CpuRecording recording, const AddressHome& home, std::string label)
    : recording_(std::move(recording)),
      home_(home),
      layout_generation_(home.layout_generation()),
      label_(std::move(label)) {}

const std::byte* CpuGraph::args_of(const CpuRecording::Node& node) const {
  return reinterpret_cast<const std::byte*>(recording_.args_.data() + node.arg_offset);
}

Status CpuGraph::check_parameters(const AddressHome& home) const {
  HF_ASSERT(&home == &home_, "a graph is checked against the home that it was captured over");
  const std::vector<AddressRange> writable = writable_ranges();
  const auto& entries = recording_.manifest_.entries;
  std::size_t first = 0;
  for (std::size_t node = 0; node < recording_.nodes_.size(); ++node) {
    std::size_t end = first;
    while (end < entries.size() && entries[end].node == node) ++end;
    HF_TRY(check_node(node, first, end, writable));
    first = end;
  }
  return {};
}

Status CpuGraph::check_node(std::size_t index, std::size_t first_entry, std::size_t entry_end,
                            const std::vector<AddressRange>& writable) const {
  const CpuRecording::Node& node = recording_.nodes_[index];
  const auto& entries = recording_.manifest_.entries;
  const auto declared = [&](std::uintptr_t address) {
    for (std::size_t entry = first_entry; entry < entry_end; ++entry) {
      if (entries[entry].range.contains({address, 1})) return true;
    }
    return false;
  };
  // Every 4 bytes, because a packed struct may hold a pointer there. Host pointers are looked for
  // at their natural alignment alone: elsewhere two counts could pass for one.
  for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= node.arg_bytes; at += 4) {
    std::uintptr_t word = 0;
    std::memcpy(&word, args_of(node) + at, sizeof(word));
    if (word == 0 || declared(word)) continue;
    const bool in_slot = home_.contains({word, 1});
    const bool in_host = !in_slot && at % sizeof(word) == 0 && word >= kLowestHostPointer &&
                         any_contains(writable, word);
    if (!in_slot && !in_host) continue;
    return make_error(ErrorCode::kMismatch,
                      "graph {}: node {} ({}): the arguments hold the pointer {:#x} at byte {}, "
                      "which no operand declares: {}; declare it, or place what it points to in a "
                      "slot",
                      label_, index, recording_.manifest_.nodes[index], word, at,
                      home_.describe(word));
  }
  return {};
}

// An operand that lies in no slot any more is a pointer all the same.
Result<GraphReading> CpuGraph::read_back() const {
  GraphReading reading;
  auto operand = recording_.manifest_.entries.begin();
  for (std::size_t index = 0; index < recording_.nodes_.size(); ++index) {
    const CpuRecording::Node& node = recording_.nodes_[index];
    const auto number = static_cast<std::uint32_t>(index);
    reading.nodes.push_back({recording_.manifest_.nodes[index], number});
    const auto first = operand;
    while (operand != recording_.manifest_.entries.end() && operand->node == index) ++operand;
    const auto declared = [&](std::uintptr_t word) {
      return std::any_of(first, operand, [word](const ManifestEntry& entry) {
        return entry.range.contains({word, 1});
      });
    };
    for (std::size_t at = 0; at + sizeof(std::uintptr_t) <= node.arg_bytes; at += 4) {
      std::uintptr_t word = 0;
      std::memcpy(&word, args_of(node) + at, sizeof(word));
      ++reading.words;
      if (word == 0 || (!home_.contains({word, 1}) && !declared(word))) continue;
      reading.pointers.push_back({number, at, word});
    }
  }
  return reading;
}

Status CpuGraph::launch(Stream& stream) {
  HF_ASSERT(stream.kind() == DeviceKind::kCpu, "a CPU graph was launched on another device");
  HF_TRY(check_replay(home_, layout_generation_, label_));
  if (stream.capturing()) {
    return make_error(ErrorCode::kFailedPrecondition, "graph {}: launched inside a capture",
                      label_);
  }
  WorkerPool& workers = static_cast<CpuStream&>(stream).workers();
  for (const CpuRecording::Node& node : recording_.nodes_) node.run(args_of(node), workers);
  return {};
}

}  // namespace holdfast::device
