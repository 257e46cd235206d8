// FarDevice: a Device around a CPU's whose memory the host cannot address: its addresses fault when
// they are followed, as a GPU's do, so that what must go through the device's own calls can be
// tested without one. Thread-safe as the inner device.
#pragma once

#include <memory>

#include "device/device.h"

namespace holdfast::device {

class FarDevice final : public Device {
 public:
  // `fetches`: takes all host memory for page-locked, and fetches what was sent from there when
  // finish() is called and no sooner.
  explicit FarDevice(std::unique_ptr<Device> inner, bool fetches = false);

  DeviceKind kind() const override { return inner_->kind(); }
  std::string name() const override { return "far " + inner_->name(); }
  std::size_t page_bytes() const override { return inner_->page_bytes(); }
  Result<Memory> allocate(std::size_t bytes) override;
  void free(Memory memory) override;
  Status protect(Memory memory, Protection protection) override;
  Status exchange_backing(Memory a, Memory b) override;
  MemoryUsage usage() const override { return inner_->usage(); }
  void reset_peak() override { inner_->reset_peak(); }
  Status write(std::byte* to, const std::byte* from, std::size_t bytes) override;
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override;
  bool host_addressable() const override { return false; }
  Result<std::unique_ptr<Upload>> create_upload() override;
  // The inner device's: its kernels see host memory alone.
  Result<std::unique_ptr<Stream>> create_stream(int workers) override {
    return inner_->create_stream(workers);
  }

 private:
  std::unique_ptr<Device> inner_;
  const bool fetches_;
};

}  // namespace holdfast::device
