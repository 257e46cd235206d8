// ForwardingDevice: a CPU device behind another one, for tests that change one of its answers. Its
// owner is a test or an engine; threads as its inner one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "device/cpu/cpu_device.h"
#include "device/device.h"

namespace holdfast::device {

class ForwardingDevice : public Device {
 public:
  DeviceKind kind() const override { return inner_->kind(); }
  std::string name() const override { return inner_->name(); }
  std::size_t page_bytes() const override { return inner_->page_bytes(); }
  Result<Memory> allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void free(Memory memory) override { inner_->free(memory); }
  Status protect(Memory memory, Protection protection) override {
    return inner_->protect(memory, protection);
  }
  Status exchange_backing(Memory a, Memory b) override { return inner_->exchange_backing(a, b); }
  MemoryUsage usage() const override { return inner_->usage(); }
  void reset_peak() override { inner_->reset_peak(); }
  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return inner_->write(to, from, bytes);
  }
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return inner_->read(to, from, bytes);
  }
  bool host_addressable() const override { return inner_->host_addressable(); }
  Result<std::unique_ptr<Stream>> create_stream(int workers) override {
    return inner_->create_stream(workers);
  }

 private:
  std::unique_ptr<Device> inner_ = make_cpu_device();
};

}  // namespace holdfast::device
