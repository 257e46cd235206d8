// CudaMemory: the memory of one GPU behind Device: each block a reserved virtual range backed by
// physical handles, so that the pages under two addresses can be exchanged and protected. Small
// freed blocks stay mapped, poisoned, and go out again first, as under a caching allocator: a
// pointer into one reads poison or a stranger's data instead of ending the process. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

#include "device/cuda/driver.h"
#include "device/device.h"

namespace holdfast::device::cuda {

class CudaMemory {
 public:
  CudaMemory(const Driver& driver, int device, std::size_t granularity)
      : driver_(driver), device_(device), granularity_(granularity) {}
  ~CudaMemory();
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::size_t granularity() const { return granularity_; }
  // As the functions of Device.
  Result<Memory> allocate(std::size_t bytes);
  void free(Memory memory);
  Status protect(Memory memory, Protection protection);
  Status exchange(Memory a, Memory b);
  MemoryUsage usage() const;
  void reset_peak();

 private:
  // Handles of at most kHandleBytes each, in order of addresses.
  struct Block {
    std::size_t bytes = 0;
    std::vector<CUmemGenericAllocationHandle> handles;
    Protection protection = Protection::kReadWrite;
  };
  using Blocks = std::map<CUdeviceptr, Block>;
  Result<Blocks::iterator> find(Memory memory);
  Result<Block> create(std::size_t bytes);
  Status reserve(CUdeviceptr& address, std::size_t bytes);
  Status map(CUdeviceptr address, const Block& block);
  Status set_access(CUdeviceptr address, const Block& block);
  void release(Block& block);
  void drop(CUdeviceptr address, Block& block);
  Result<Memory> take_pooled(std::size_t bytes);

  const Driver& driver_;
  const int device_;
  const std::size_t granularity_;
  mutable std::mutex mutex_;
  Blocks blocks_;                                          // given out
  std::multimap<std::size_t, std::pair<CUdeviceptr, Block>> pool_;  // freed, by size
  CUdeviceptr next_address_ = CUdeviceptr{1} << 45;
  std::size_t pooled_bytes_ = 0;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace holdfast::device::cuda
