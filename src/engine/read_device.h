// ReadDevice: a CPU whose memory the host may only reach by write and read, as a GPU's, though its
// addresses are the host's, so that kernels run; counts what is read. Test code; as its inner one.
#pragma once

#include "device/forwarding_device.h"

namespace holdfast::engine {

class ReadDevice final : public device::ForwardingDevice {
 public:
  Status read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    ++reads;
    bytes_read += bytes;
    return ForwardingDevice::read(to, from, bytes);
  }
  bool host_addressable() const override { return false; }

  int reads = 0;
  std::size_t bytes_read = 0;
};

}  // namespace holdfast::engine
