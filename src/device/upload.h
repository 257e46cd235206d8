// Upload: host bytes on their way into a device's memory, several pieces under way at once. Made by
// Device::create_upload, which outlives it. Any threads; a block belongs to the one that took it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "holdfast/result.h"

namespace holdfast::device {

class Device;

// The largest piece that a block holds.
inline constexpr std::size_t kUploadBlockBytes = std::size_t{8} << 20;

// Host memory to be filled and sent.
struct UploadBlock {
  std::span<std::byte> bytes = {};
  std::size_t index = 0;
};

class Upload {
 public:
  // Waits for what is under way.
  virtual ~Upload() = default;
  // A block of kUploadBlockBytes; waits until one is free. Errors: kDevice.
  virtual Result<UploadBlock> take() = 0;
  // Sends the block's first `bytes` bytes to `to` and gives the block back, also on an error, and
  // also when `bytes` is 0. Errors: kDevice.
  virtual Status send(const UploadBlock& block, std::byte* to, std::size_t bytes) = 0;
  // Whether send_from takes bytes where they lie, with no copy by the host.
  virtual bool is_page_locked(std::span<const std::byte> from) const = 0;
  // Sends bytes of any size. Page-locked ones must stay until finish(); others may go at once.
  // Returns while they are under way; waits when too many are. Errors: kDevice.
  virtual Status send_from(std::byte* to, std::span<const std::byte> from) = 0;
  // Waits until all that was sent has landed. Errors: kDevice.
  virtual Status finish() = 0;
};

// For devices without anything better: one Device::write for each piece.
std::unique_ptr<Upload> make_plain_upload(Device& device);

}  // namespace holdfast::device
