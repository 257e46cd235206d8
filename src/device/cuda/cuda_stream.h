// A CUDA stream, and how kernels are launched on it: each with its operands by name, for the
// manifest. One thread, as its graphs.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/assert.h"
#include "device/cuda/driver.h"
#include "device/device.h"
#include "device/operand.h"

namespace holdfast::device::cuda {

struct LaunchShape {
  dim3 grid = {1, 1, 1};
  dim3 block = {1, 1, 1};
  std::size_t shared_bytes = 0;  // above 48 KB the launch raises the kernel's limit
  unsigned cluster = 1;          // blocks of a cluster, along x
  // The kernel may start before the one before it has ended, because every thread of it calls
  // wait_for_inputs (launch.cuh) before it touches what that one may write or read.
  bool overlaps = false;
};

// A launch's name in the manifest, and its shape.
struct Launch {
  const char* name = "";
  LaunchShape shape = {};
};

struct CudaKernel {
  const char* name = "";
  const void* function = nullptr;
  LaunchShape shape = {};
  void* args = nullptr;  // one struct, by value
  std::span<const Operand> operands = {};
};

// What a capture has recorded besides CUDA's own graph: of each node its handle and operands.
struct CudaRecording {
  AddressManifest manifest;
  std::vector<CUgraphNode> nodes;  // of manifest.nodes
};

// Steps come before what runs behind them: scans, poison.
int highest_priority();

class CudaStream final : public Stream {
 public:
  static Result<std::unique_ptr<CudaStream>> create(const Driver& driver);
  ~CudaStream() override;

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  Status synchronize() override;
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  bool capturing() const override { return recording_.has_value(); }
  // Errors: kDevice.
  Status launch(const CudaKernel& kernel);
  cudaStream_t handle() const { return stream_; }

 protected:
  Status begin_capture() override;
  Result<std::unique_ptr<Graph>> end_capture(const AddressHome& home, std::string label) override;

 private:
  CudaStream(const Driver& driver, cudaStream_t stream) : driver_(driver), stream_(stream) {}
  Status note(const char* name, std::span<const Operand> operands);

  const Driver& driver_;
  cudaStream_t stream_;
  std::optional<CudaRecording> recording_;
};

// launch_cuda(stream, {"rms_norm", shape}, rms_norm_kernel, args, {reads("x", a.x), ...}) where the
// kernel is `__global__ void(Args)`. Asserts that `stream` is a CUDA stream.
template <typename Args>
Status launch_cuda(Stream& stream, const Launch& launch, void (*kernel)(Args), const Args& args,
                   std::initializer_list<Operand> operands) {
  static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= 4000);
  HF_ASSERT(stream.kind() == DeviceKind::kCuda, "a CUDA kernel was launched on another device");
  Args copy = args;
  void* pointers[] = {&copy};
  return static_cast<CudaStream&>(stream).launch(
      {.name = launch.name,
       .function = reinterpret_cast<const void*>(kernel),
       .shape = launch.shape,
       .args = pointers,
       .operands = std::span<const Operand>(operands.begin(), operands.size())});
}

}  // namespace holdfast::device::cuda
