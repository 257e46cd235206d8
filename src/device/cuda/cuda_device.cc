#include "device/cuda/cuda_device.h"

#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_scans.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/cuda_upload.h"
#include "device/devices.h"

namespace holdfast::device::cuda {
namespace {

// Writes up to this size are fetched by a kernel: a step's inputs.
constexpr std::size_t kFetchedBytes = std::size_t{64} << 10;

struct Transfers {
  cudaStream_t stream = nullptr;
  std::byte* fetched = nullptr;  // page-locked, kFetchedBytes
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const Driver& driver, int index, std::string name, std::size_t granularity,
             const Transfers& transfers)
      : driver_(driver),
        index_(index),
        name_(std::move(name)),
        memory_(driver, index, granularity),
        transfers_(transfers) {}
  ~CudaDevice() override {
    static_cast<void>(cudaStreamDestroy(transfers_.stream));
    static_cast<void>(cudaFreeHost(transfers_.fetched));
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return name_; }
  std::size_t page_bytes() const override { return memory_.granularity(); }
  Result<Memory> allocate(std::size_t bytes) override {
    HF_TRY(bind());
    return memory_.allocate(bytes);
  }
  void free(Memory memory) override { memory_.free(memory); }
  Status protect(Memory memory, Protection protection) override {
    return memory_.protect(memory, protection);
  }
  // Fences first: an exchange does not wait for kernels that read either range.
  Status exchange_backing(Memory a, Memory b) override {
    HF_TRY(bind());
    HF_TRY(check(cudaDeviceSynchronize(), "waiting for the device before an exchange"));
    return memory_.exchange(a, b);
  }
  MemoryUsage usage() const override { return memory_.usage(); }
  void reset_peak() override { memory_.reset_peak(); }

  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes > kFetchedBytes || is_device_memory(from)) {
      return transfer(to, from, bytes, "writing device memory");
    }
    const std::lock_guard lock(transfers_mutex_);
    HF_TRY(bind());
    if (bytes > 0) std::memcpy(transfers_.fetched, from, bytes);
    HF_TRY(check(fetch_bytes(to, transfers_.fetched, bytes, transfers_.stream),
                 "writing device memory"));
    return check(cudaStreamSynchronize(transfers_.stream), "writing device memory");
  }
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return transfer(to, from, bytes, "reading device memory");
  }
  bool host_addressable() const override { return false; }

  Result<std::unique_ptr<Upload>> create_upload() override {
    HF_ASSIGN(auto upload, CudaUpload::create(ring_, index_));
    return std::unique_ptr<Upload>(std::move(upload));
  }
  Result<std::shared_ptr<const void>> page_lock(std::span<std::byte> memory) override {
    HF_TRY(bind());
    HF_TRY(check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable),
                 fmt::format("page-locking {} bytes of host memory", memory.size())));
    return std::shared_ptr<const void>(memory.data(), [](const void* begin) {
      static_cast<void>(cudaHostUnregister(const_cast<void*>(begin)));
    });
  }
  // Arenas are whole pages, so that whole words change places.
  Status swap(std::byte* a, std::byte* b, std::size_t bytes) override {
    constexpr std::size_t kWord = 16;
    if ((reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) | bytes) %
            kWord != 0) {
      return make_error(ErrorCode::kUnsupported, "{} swaps multiples of {} bytes, not {}", name_,
                        kWord, bytes);
    }
    const std::lock_guard lock(transfers_mutex_);
    HF_TRY(bind());
    HF_TRY(check(swap_ranges(a, b, bytes, transfers_.stream), "swapping device memory"));
    return check(cudaStreamSynchronize(transfers_.stream), "swapping device memory");
  }
  Result<std::vector<base::Digest>> digests(std::span<const Memory> ranges) override {
    HF_TRY(bind());
    return scans_.digests(ranges);
  }
  Result<std::vector<std::optional<std::size_t>>> find_lanes(
      std::span<const LaneSearch> searches) override {
    HF_TRY(bind());
    return scans_.find_lanes(searches);
  }

  Result<std::unique_ptr<Stream>> create_stream(int) override {
    HF_TRY(bind());
    HF_ASSIGN(auto stream, CudaStream::create(driver_));
    return std::unique_ptr<Stream>(std::move(stream));
  }

 private:
  // The current device is a thread's own.
  Status bind() { return check(cudaSetDevice(index_), "choosing the device"); }

  Status transfer(std::byte* to, const std::byte* from, std::size_t bytes, const char* what) {
    const std::lock_guard lock(transfers_mutex_);
    HF_TRY(bind());
    HF_TRY(check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, transfers_.stream), what));
    return check(cudaStreamSynchronize(transfers_.stream), what);
  }

  bool is_device_memory(const std::byte* address) {
    unsigned type = 0;
    return driver_.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
  }

  const Driver& driver_;
  const int index_;
  const std::string name_;
  CudaMemory memory_;
  std::mutex transfers_mutex_;
  const Transfers transfers_;
  PinnedRing ring_;
  CudaScans scans_;
};

Result<cudaDeviceProp> properties_of(int index) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    count = 0;
  }
  if (index < 0 || index >= count) {
    return make_error(ErrorCode::kUnsupported, "CUDA device {} is not there: {} were found", index,
                      count);
  }
  cudaDeviceProp properties = {};
  HF_TRY(check(cudaGetDeviceProperties(&properties, index), "reading the device's properties"));
  if (properties.major < 9) {
    return make_error(ErrorCode::kUnsupported,
                      "{} has compute capability {}.{}; this build needs 9.0 (Hopper)",
                      properties.name, properties.major, properties.minor);
  }
  return properties;
}

Result<Transfers> open_transfers() {
  Transfers transfers;
  HF_TRY(check(cudaStreamCreateWithPriority(&transfers.stream, cudaStreamNonBlocking,
                                            highest_priority()),
               "creating the stream of transfers"));
  void* fetched = nullptr;
  HF_TRY(check(cudaHostAlloc(&fetched, kFetchedBytes, cudaHostAllocPortable),
               "allocating page-locked host memory"));
  transfers.fetched = static_cast<std::byte*>(fetched);
  return transfers;
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(int index) {
  HF_ASSIGN(const cudaDeviceProp properties, properties_of(index));
  HF_ASSIGN(const Driver* loaded, driver());
  HF_TRY(check(cudaSetDevice(index), "choosing the device"));
  HF_TRY(check(cudaFree(nullptr), "starting the device"));
  CUmemAllocationProp allocation = {};
  allocation.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  allocation.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  allocation.location.id = index;
  std::size_t granularity = 0;
  HF_TRY(check(loaded->mem_granularity(&granularity, &allocation,
                                       CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "asking for the memory granularity"));
  HF_ASSIGN(const Transfers transfers, open_transfers());
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      *loaded, index, fmt::format("cuda:{} ({})", index, properties.name), granularity,
      transfers));
}

}  // namespace holdfast::device::cuda

namespace holdfast::device {

Result<std::unique_ptr<Device>> make_gpu_device(int index) { return cuda::make_cuda_device(index); }

}  // namespace holdfast::device
