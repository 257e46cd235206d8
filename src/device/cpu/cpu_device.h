// The CPU as a Device: anonymous pages, mprotect, mremap, worker threads, and a capture that
// records each kernel with its resolved addresses and replays it verbatim.
// A device is thread-safe; a stream and its graphs belong to one thread.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>

#include "base/assert.h"
#include "device/cpu/worker_pool.h"
#include "device/device.h"
#include "device/operand.h"

namespace holdfast::device {

inline constexpr std::size_t kMaxKernelArgBytes = 1024;
inline constexpr std::size_t kMaxKernelOperands = 24;

// `run` gets the address of the arguments or of a copy of them. In a capture every pointer in the
// arguments must lie in a declared operand or in read-only memory of the program: a pointer to a
// heap or stack object, or to a slot that no operand names, fails the capture.
struct CpuKernel {
  const char* name = "";
  void (*run)(const void* args, WorkerPool& workers) = nullptr;
  const void* args = nullptr;
  std::size_t arg_bytes = 0;
  std::span<const Operand> operands = {};
};

class CpuStream : public Stream {
 public:
  DeviceKind kind() const final { return DeviceKind::kCpu; }
  // Runs the kernel now, or records it (arguments and operands are copied) while capturing.
  // Asserts the size limits. Errors: kDevice (from a simulated fault).
  virtual Status launch(const CpuKernel& kernel) = 0;
  virtual WorkerPool& workers() = 0;
};

// Launches a kernel whose arguments are a trivially copyable struct:
//   launch_cpu<&run_rms_norm>(stream, "rms_norm", args,
//                             {reads("x", args.x), writes("out", args.out)})
// where run_rms_norm is `void(const Args&, WorkerPool&)`. Asserts that `stream` is a CPU stream.
template <auto Function, typename Args>
Status launch_cpu(Stream& stream, const char* name, const Args& args,
                  std::initializer_list<Operand> operands) {
  static_assert(std::is_trivially_copyable_v<Args> && sizeof(Args) <= kMaxKernelArgBytes);
  HF_ASSERT(stream.kind() == DeviceKind::kCpu, "a CPU kernel was launched on another device");
  CpuKernel kernel{
      .name = name,
      .run = [](const void* raw, WorkerPool& pool) {
        Function(*static_cast<const Args*>(raw), pool);
      },
      .args = &args,
      .arg_bytes = sizeof(Args),
      .operands = std::span<const Operand>(operands.begin(), operands.size())};
  auto& cpu_stream = static_cast<CpuStream&>(stream);
  if (!stream.capturing()) return cpu_stream.launch(kernel);
  // Padding holds whatever the stack held, stale pointers included: a capture looks at every word
  // of the arguments, and must find the same ones each time.
  Args recorded = args;
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&recorded);
#endif
#endif
  kernel.args = &recorded;
  return cpu_stream.launch(kernel);
}

struct CpuDeviceOptions {
  // Freed blocks up to this size are pooled (poisoned, and handed out again first).
  std::size_t max_pooled_block_bytes = std::size_t{16} << 20;
  std::size_t max_pooled_bytes = std::size_t{256} << 20;
  bool huge_pages = true;  // MADV_HUGEPAGE on allocations of 2 MiB and more
};
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options = {});

}  // namespace holdfast::device
