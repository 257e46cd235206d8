// The CPU's streams and graphs, for cpu_device.cc. A stream and its graphs belong to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/device.h"

namespace holdfast::device {

inline constexpr int kMaxStreamWorkers = 1024;

// Kernels with a copy of their arguments, in launch order.
class CpuRecording {
 public:
  void add(const CpuKernel& kernel);

 private:
  friend class CpuGraph;
  struct Node {
    void (*run)(const void* args, WorkerPool& workers) = nullptr;
    std::size_t arg_offset = 0;
    std::size_t arg_bytes = 0;
  };
  struct alignas(64) ArgBlock {
    std::byte bytes[64];
  };
  std::vector<Node> nodes_;
  std::vector<ArgBlock> args_;  // each node's arguments start on a block of their own
  AddressManifest manifest_;
};

class CpuGraph final : public Graph {
 public:
  CpuGraph(CpuRecording recording, const AddressHome& home, std::string label);

  const std::string& label() const override { return label_; }
  const AddressManifest& manifest() const override { return recording_.manifest_; }
  Status check_parameters(const AddressHome& home) const override;
  Result<GraphReading> read_back() const override;
  // Allocates nothing when it succeeds.
  Status launch(Stream& stream) override;

 private:
  const std::byte* args_of(const CpuRecording::Node& node) const;
  Status check_node(std::size_t index, std::size_t first_entry, std::size_t entry_end,
                    const std::vector<AddressRange>& writable) const;

  CpuRecording recording_;
  const AddressHome& home_;
  std::uint64_t layout_generation_;
  std::string label_;
};

// Errors: kInvalidArgument for a worker count outside [0, kMaxStreamWorkers].
Result<std::unique_ptr<Stream>> make_cpu_stream(int workers);

}  // namespace holdfast::device
