#include "device/upload.h"

#include <mutex>

#include "device/device.h"

namespace holdfast::device {
namespace {

class PlainUpload final : public Upload {
 public:
  explicit PlainUpload(Device& device) : device_(device) {}

  Result<UploadBlock> take() override {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.push_back(blocks_.size());
      blocks_.emplace_back(kUploadBlockBytes);
    }
    const std::size_t index = free_.back();
    free_.pop_back();
    return UploadBlock{.bytes = blocks_[index], .index = index};
  }
  Status send(const UploadBlock& block, std::byte* to, std::size_t bytes) override {
    const Status sent = bytes == 0 ? Status() : send_from(to, block.bytes.first(bytes));
    const std::lock_guard lock(mutex_);
    free_.push_back(block.index);
    return sent;
  }
  bool is_page_locked(std::span<const std::byte>) const override { return false; }
  Status send_from(std::byte* to, std::span<const std::byte> from) override {
    return device_.write(to, from.data(), from.size());
  }
  Status finish() override { return {}; }

 private:
  Device& device_;
  std::mutex mutex_;
  std::vector<std::vector<std::byte>> blocks_;  // their bytes stay where they are
  std::vector<std::size_t> free_;
};

}  // namespace

std::unique_ptr<Upload> make_plain_upload(Device& device) {
  return std::make_unique<PlainUpload>(device);
}

}  // namespace holdfast::device
