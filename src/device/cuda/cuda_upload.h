// CudaUpload: host bytes on their way to a GPU, through a ring of page-locked blocks or straight
// from memory that is page-locked already. The ring belongs to the device and serves every upload,
// since page-locking takes longer than a reload. Any threads.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "device/upload.h"

namespace holdfast::device::cuda {

// Enough for kFarThreads threads that fill one each while as many are under way.
inline constexpr std::size_t kRingBlocks = 16;

class PinnedRing {
 public:
  PinnedRing() = default;
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  // A block that no copy reads; allocates all of them at the first call. Errors: kDevice.
  Result<UploadBlock> take();
  // Enqueues the copy of the block's first `bytes` bytes and gives the block back.
  Status send(const UploadBlock& block, std::byte* to, std::size_t bytes, cudaStream_t stream);

 private:
  struct Block {
    std::byte* bytes = nullptr;
    cudaEvent_t sent = nullptr;
  };
  Status open();

  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> free_;
  std::deque<std::size_t> under_way_;  // the oldest first
};

class CudaUpload final : public Upload {
 public:
  // `ring` must outlive it. Errors: kDevice.
  static Result<std::unique_ptr<CudaUpload>> create(PinnedRing& ring, int device);
  ~CudaUpload() override;

  Result<UploadBlock> take() override;
  Status send(const UploadBlock& block, std::byte* to, std::size_t bytes) override;
  bool is_page_locked(std::span<const std::byte> from) const override;
  Status send_from(std::byte* to, std::span<const std::byte> from) override;
  Status finish() override;

 private:
  CudaUpload(PinnedRing& ring, int device) : ring_(ring), device_(device) {}
  Status bind() const;

  PinnedRing& ring_;
  const int device_;
  cudaStream_t stream_ = nullptr;
  std::mutex mutex_;  // guards what follows
  // Of direct copies: as many as may be under way, so that whoever sends can stop.
  std::array<cudaEvent_t, 4> direct_ = {};
  std::size_t next_direct_ = 0;
};

}  // namespace holdfast::device::cuda
