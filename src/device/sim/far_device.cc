#include "device/sim/far_device.h"

#include <mutex>
#include <utility>
#include <vector>

namespace holdfast::device {
namespace {

// No address of a process has this bit, and one that does faults.
constexpr std::uintptr_t kFarBit = std::uintptr_t{1} << 62;

std::uintptr_t bits(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address); }

template <typename Byte>
Byte* near(Byte* address) {
  return reinterpret_cast<Byte*>(bits(address) & ~kFarBit);
}
Memory near(Memory memory) { return {near(memory.address), memory.bytes}; }

// As late as may be, so that bytes which did not stay are found.
class FetchingUpload final : public Upload {
 public:
  explicit FetchingUpload(Device& device) : device_(device), blocks_(make_plain_upload(device)) {}
  ~FetchingUpload() override { static_cast<void>(finish().ok()); }

  Result<UploadBlock> take() override { return blocks_->take(); }
  Status send(const UploadBlock& block, std::byte* to, std::size_t bytes) override {
    return blocks_->send(block, to, bytes);
  }
  bool is_page_locked(std::span<const std::byte>) const override { return true; }
  Status send_from(std::byte* to, std::span<const std::byte> from) override {
    const std::lock_guard lock(mutex_);
    sent_.push_back({to, from});
    return {};
  }
  Status finish() override {
    const std::lock_guard lock(mutex_);
    for (const auto& [to, from] : std::exchange(sent_, {})) {
      HF_TRY(device_.write(to, from.data(), from.size()));
    }
    return {};
  }

 private:
  Device& device_;
  std::unique_ptr<Upload> blocks_;
  std::mutex mutex_;
  std::vector<std::pair<std::byte*, std::span<const std::byte>>> sent_;
};

}  // namespace

FarDevice::FarDevice(std::unique_ptr<Device> inner, bool fetches)
    : inner_(std::move(inner)), fetches_(fetches) {}

Result<std::unique_ptr<Upload>> FarDevice::create_upload() {
  if (!fetches_) return make_plain_upload(*this);
  return std::unique_ptr<Upload>(std::make_unique<FetchingUpload>(*this));
}

Result<Memory> FarDevice::allocate(std::size_t bytes) {
  HF_ASSIGN(Memory memory, inner_->allocate(bytes));
  memory.address = reinterpret_cast<std::byte*>(bits(memory.address) | kFarBit);
  return memory;
}

void FarDevice::free(Memory memory) { inner_->free(near(memory)); }

Status FarDevice::protect(Memory memory, Protection protection) {
  return inner_->protect(near(memory), protection);
}

Status FarDevice::exchange_backing(Memory a, Memory b) {
  return inner_->exchange_backing(near(a), near(b));
}

Status FarDevice::write(std::byte* to, const std::byte* from, std::size_t bytes) {
  return inner_->write(near(to), near(from), bytes);
}

Status FarDevice::read(std::byte* to, const std::byte* from, std::size_t bytes) {
  return inner_->read(near(to), near(from), bytes);
}

}  // namespace holdfast::device
