// CpuMemory: anonymous pages of the process as a device's memory: allocation with poison and a
// pool, protection, and the exchange of pages under two ranges. Owned by CpuDevice; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "device/memory.h"
#include "holdfast/result.h"

namespace holdfast::device {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Bytes that the process may still take: the machine's MemAvailable or what its control group
// leaves, whichever is less. The largest size_t when the system does not say.
std::size_t available_memory_bytes();

// Moves the pages at `from` onto `to`, replacing what is mapped there, all or nothing. `keep`
// leaves an empty mapping at `from`, so that no other thread's mmap can land in the gap. False,
// with errno, when the system refuses.
using MovePages = bool (*)(std::byte* from, std::byte* to, std::size_t bytes, bool keep);
bool move_pages_by_mremap(std::byte* from, std::byte* to, std::size_t bytes, bool keep);

class CpuMemory {
 public:
  // `move_pages` is another function only where a test makes the system refuse.
  explicit CpuMemory(const CpuDeviceOptions& options,
                     MovePages move_pages = &move_pages_by_mremap);
  // Returns the pool to the system. Asserts that nothing is live.
  ~CpuMemory();
  CpuMemory(const CpuMemory&) = delete;
  CpuMemory& operator=(const CpuMemory&) = delete;

  std::size_t page_bytes() const { return page_bytes_; }
  // As Device.
  Result<Memory> allocate(std::size_t bytes);
  void free(Memory memory);
  Status protect(Memory memory, Protection protection);
  Status exchange(Memory a, Memory b);
  MemoryUsage usage() const;
  void reset_peak();

 private:
  bool is_live(Memory memory) const;
  Result<Memory> map_pages(std::size_t bytes);
  std::byte* take_pooled(std::size_t bytes);
  void count_live(std::size_t bytes);
  bool move_pages_out(std::byte* from, std::byte* to, std::size_t bytes) const;

  CpuDeviceOptions options_;
  MovePages move_pages_;
  std::size_t page_bytes_;
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::size_t> live_;
  std::map<std::size_t, std::vector<std::byte*>> pool_;  // by size; the last freed goes out first
  MemoryUsage usage_;
};

}  // namespace holdfast::device
