// CudaScans: what a GPU finds out about its own memory, batch by batch through tables of fixed
// size: tree digests and lane searches. Owned by the device; thread-safe, one call at a time.
#pragma once

#include <cuda_runtime.h>

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "device/cuda/scan.h"
#include "device/memory.h"
#include "holdfast/result.h"

namespace holdfast::device::cuda {

class CudaScans {
 public:
  CudaScans() = default;
  ~CudaScans();
  CudaScans(const CudaScans&) = delete;
  CudaScans& operator=(const CudaScans&) = delete;

  // As the functions of Device. Scans run behind everything else that wants the GPU.
  Result<std::vector<base::Digest>> digests(std::span<const Memory> ranges);
  Result<std::vector<std::optional<std::size_t>>> find_lanes(
      std::span<const LaneSearch> searches);

 private:
  Status open();
  Status read(const std::byte* from, std::span<std::byte> to);
  Status take_leaves(std::span<const LeafJob> jobs, std::span<base::Digest> digests);
  Result<std::optional<std::size_t>> find_in(const std::byte* from, std::size_t bytes,
                                             const LaneTest& test);
  Status find_firsts(std::span<const WordSearch> words, std::span<std::uint64_t> firsts);

  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;
  std::byte* table_ = nullptr;  // what goes in, then what comes out
};

}  // namespace holdfast::device::cuda
