#include "device/cpu/cpu_device.h"

#include <cstring>
#include <string>

#include "base/error.h"
#include "device/cpu/cpu_memory.h"
#include "device/cpu/cpu_stream.h"

namespace holdfast::device {
namespace {

const char* vector_unit() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
    return "AVX-512 VNNI BF16";
  }
  if (__builtin_cpu_supports("avx512f")) return "AVX-512";
  if (__builtin_cpu_supports("avx2")) return "AVX2";
  return "SSE2";
#else
  return "portable";
#endif
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : memory_(options) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string name() const override {
    return fmt::format("cpu ({} threads, {})", usable_core_count(), vector_unit());
  }
  std::size_t page_bytes() const override { return memory_.page_bytes(); }

  Result<Memory> allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void free(Memory memory) override { memory_.free(memory); }
  Status protect(Memory memory, Protection protection) override {
    return memory_.protect(memory, protection);
  }
  Status exchange_backing(Memory a, Memory b) override { return memory_.exchange(a, b); }
  MemoryUsage usage() const override { return memory_.usage(); }
  void reset_peak() override { memory_.reset_peak(); }

  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);  // null may come with nothing
    return {};
  }
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);  // null may come with nothing
    return {};
  }
  bool host_addressable() const override { return true; }

  Result<std::unique_ptr<Stream>> create_stream(int workers) override {
    return make_cpu_stream(workers);
  }

 private:
  CpuMemory memory_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace holdfast::device
