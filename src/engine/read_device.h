// ReadDevice: a CPU whose memory the host may only reach by write and read, as a GPU's, though its
// addresses are the host's, so that kernels run; counts what is read. Test code; as its inner one.
#pragma once

#include <memory>

#include "device/cpu/cpu_device.h"
#include "device/device.h"

namespace holdfast::engine {

class ReadDevice final : public device::Device {
 public:
  device::DeviceKind kind() const override { return inner_->kind(); }
  std::string name() const override { return inner_->name(); }
  std::size_t page_bytes() const override { return inner_->page_bytes(); }
  Result<device::Memory> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void free(device::Memory memory) override { inner_->free(memory); }
  Status protect(device::Memory memory, device::Protection protection) override {
    return inner_->protect(memory, protection);
  }
  Status exchange_backing(device::Memory a, device::Memory b) override {
    return inner_->exchange_backing(a, b);
  }
  device::MemoryUsage usage() const override { return inner_->usage(); }
  void reset_peak() override { inner_->reset_peak(); }
  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return inner_->write(to, from, bytes);
  }
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    ++reads;
    bytes_read += bytes;
    return inner_->read(to, from, bytes);
  }
  bool host_addressable() const override { return false; }
  Result<std::unique_ptr<device::Stream>> create_stream(int workers) override {
    return inner_->create_stream(workers);
  }

  int reads = 0;
  std::size_t bytes_read = 0;

 private:
  std::unique_ptr<device::Device> inner_ = device::make_cpu_device();
};

}  // namespace holdfast::engine
