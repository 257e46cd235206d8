#include "device/cuda/cuda_device.h"

#include <mutex>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_memory.h"
#include "device/cuda/cuda_stream.h"
#include "device/devices.h"

namespace holdfast::device::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(const Driver& driver, int index, std::string name, std::size_t granularity,
             cudaStream_t transfers)
      : driver_(driver),
        index_(index),
        name_(std::move(name)),
        memory_(driver, index, granularity),
        transfers_(transfers) {}
  ~CudaDevice() override { static_cast<void>(cudaStreamDestroy(transfers_)); }

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
    return transfer(to, from, bytes, "writing device memory");
  }
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return transfer(to, from, bytes, "reading device memory");
  }
  bool host_addressable() const override { return false; }

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
    HF_TRY(check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, transfers_), what));
    return check(cudaStreamSynchronize(transfers_), what);
  }

  const Driver& driver_;
  const int index_;
  const std::string name_;
  CudaMemory memory_;
  std::mutex transfers_mutex_;
  cudaStream_t transfers_;
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
  cudaStream_t transfers = nullptr;
  HF_TRY(check(cudaStreamCreateWithFlags(&transfers, cudaStreamNonBlocking),
               "creating the stream of transfers"));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(
      *loaded, index, fmt::format("cuda:{} ({})", index, properties.name), granularity,
      transfers));
}

}  // namespace holdfast::device::cuda

namespace holdfast::device {

Result<std::unique_ptr<Device>> make_gpu_device(int index) { return cuda::make_cuda_device(index); }

}  // namespace holdfast::device
