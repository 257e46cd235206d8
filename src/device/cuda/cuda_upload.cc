#include "device/cuda/cuda_upload.h"

#include <algorithm>
#include <cstring>

#include "device/cuda/driver.h"

namespace holdfast::device::cuda {
namespace {

// What is sent at a time from page-locked memory: short enough that a step's inputs, which go
// through the same copy engine, do not wait long behind it.
constexpr std::size_t kDirectBytes = std::size_t{8} << 20;

}  // namespace

PinnedRing::~PinnedRing() {
  for (const Block& block : blocks_) {
    static_cast<void>(cudaEventDestroy(block.sent));
    static_cast<void>(cudaFreeHost(block.bytes));
  }
}

Status PinnedRing::open() {
  for (std::size_t i = blocks_.size(); i < kRingBlocks; ++i) {
    Block block;
    void* bytes = nullptr;
    HF_TRY(check(cudaHostAlloc(&bytes, kUploadBlockBytes, cudaHostAllocPortable),
                 "allocating page-locked host memory"));
    block.bytes = static_cast<std::byte*>(bytes);
    if (const Status made = check(
            cudaEventCreateWithFlags(&block.sent, cudaEventDisableTiming), "creating an event");
        !made.ok()) {
      static_cast<void>(cudaFreeHost(bytes));
      return made;
    }
    blocks_.push_back(block);
    free_.push_back(i);
  }
  return {};
}

Result<UploadBlock> PinnedRing::take() {
  std::unique_lock lock(mutex_);
  HF_TRY(open());
  given_back_.wait(lock, [this] { return !free_.empty() || !under_way_.empty(); });
  std::size_t index = 0;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
    return UploadBlock{{blocks_[index].bytes, kUploadBlockBytes}, index};
  }
  index = under_way_.front();
  under_way_.pop_front();
  const Block block = blocks_[index];
  lock.unlock();
  const Status sent = check(cudaEventSynchronize(block.sent), "waiting for a block of the ring");
  if (sent.ok()) return UploadBlock{{block.bytes, kUploadBlockBytes}, index};
  lock.lock();
  free_.push_back(index);
  return sent.error();
}

Status PinnedRing::send(const UploadBlock& block, std::byte* to, std::size_t bytes,
                        cudaStream_t stream) {
  Status sent;
  if (bytes > 0) {
    sent = check(
        cudaMemcpyAsync(to, block.bytes.data(), bytes, cudaMemcpyHostToDevice, stream),
        "sending a block");
    const Status recorded =
        check(cudaEventRecord(blocks_[block.index].sent, stream), "recording an event");
    if (sent.ok()) sent = recorded;
  }
  const std::lock_guard lock(mutex_);
  if (bytes > 0 && sent.ok()) {
    under_way_.push_back(block.index);
  } else {
    free_.push_back(block.index);
  }
  given_back_.notify_one();
  return sent;
}

Result<std::unique_ptr<CudaUpload>> CudaUpload::create(PinnedRing& ring, int device) {
  std::unique_ptr<CudaUpload> upload(new CudaUpload(ring, device));
  HF_TRY(upload->bind());
  HF_TRY(check(cudaStreamCreateWithFlags(&upload->stream_, cudaStreamNonBlocking),
               "creating the stream of an upload"));
  for (cudaEvent_t& event : upload->direct_) {
    HF_TRY(check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
  }
  return upload;
}

CudaUpload::~CudaUpload() {
  static_cast<void>(bind().ok());
  if (stream_ == nullptr) return;
  static_cast<void>(cudaStreamSynchronize(stream_));
  for (const cudaEvent_t event : direct_) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
  static_cast<void>(cudaStreamDestroy(stream_));
}

Status CudaUpload::bind() const { return check(cudaSetDevice(device_), "choosing the device"); }

Result<UploadBlock> CudaUpload::take() {
  HF_TRY(bind());
  return ring_.take();
}

Status CudaUpload::send(const UploadBlock& block, std::byte* to, std::size_t bytes) {
  return ring_.send(block, to, bytes, stream_);
}

bool CudaUpload::is_page_locked(std::span<const std::byte> from) const {
  if (from.empty() || !bind().ok()) return false;
  for (const std::byte* address : {&from.front(), &from.back()}) {
    cudaPointerAttributes attributes = {};
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    if (attributes.type != cudaMemoryTypeHost) return false;
  }
  return true;
}

Status CudaUpload::send_from(std::byte* to, std::span<const std::byte> from) {
  if (!is_page_locked(from)) {
    while (!from.empty()) {
      HF_ASSIGN(const UploadBlock block, take());
      const auto piece = from.first(std::min(from.size(), block.bytes.size()));
      std::memcpy(block.bytes.data(), piece.data(), piece.size());
      HF_TRY(send(block, to, piece.size()));
      to += piece.size();
      from = from.subspan(piece.size());
    }
    return {};
  }
  const std::lock_guard lock(mutex_);
  const cudaEvent_t event = direct_[next_direct_++ % direct_.size()];
  HF_TRY(check(cudaEventSynchronize(event), "waiting for a direct copy"));
  for (std::size_t done = 0; done < from.size(); done += kDirectBytes) {
    const auto piece = from.subspan(done, std::min(kDirectBytes, from.size() - done));
    HF_TRY(check(cudaMemcpyAsync(to + done, piece.data(), piece.size(), cudaMemcpyHostToDevice,
                                 stream_),
                 "sending page-locked memory"));
  }
  return check(cudaEventRecord(event, stream_), "recording an event");
}

Status CudaUpload::finish() {
  HF_TRY(bind());
  return check(cudaStreamSynchronize(stream_), "waiting for an upload");
}

}  // namespace holdfast::device::cuda
