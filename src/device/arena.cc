#include "device/arena.h"

#include <utility>

#include "base/error.h"

namespace holdfast::device {

Backing::Backing(Backing&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)), memory_(std::exchange(other.memory_, {})) {}

Backing& Backing::operator=(Backing&& other) noexcept {
  if (this == &other) return *this;
  if (!empty()) device_->free(memory_);
  device_ = std::exchange(other.device_, nullptr);
  memory_ = std::exchange(other.memory_, {});
  return *this;
}

Backing::~Backing() {
  if (!empty()) device_->free(memory_);
}

Status Backing::protect(Protection protection) {
  if (empty()) return make_error(ErrorCode::kFailedPrecondition, "protect of an empty backing");
  return device_->protect(memory_, protection);
}

Result<std::unique_ptr<Arena>> Arena::create(Device& device, std::string name,
                                             std::size_t capacity_bytes) {
  if (capacity_bytes == 0) {
    return make_error(ErrorCode::kInvalidArgument, "arena {}: a capacity of 0 bytes", name);
  }
  auto memory = device.allocate(capacity_bytes);
  if (!memory.ok()) return memory.error().with_context("arena " + name);
  return std::unique_ptr<Arena>(new Arena(device, std::move(name), *memory));
}

Arena::~Arena() { device_.free(memory_); }

Result<std::byte*> Arena::allocate(std::size_t bytes, std::size_t alignment) {
  if (sealed_) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "arena {}: allocation of {} bytes after seal: nothing in it may move", name_,
                      bytes);
  }
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
    return make_error(ErrorCode::kInvalidArgument, "arena {}: alignment {} is no power of two",
                      name_, alignment);
  }
  const auto next = reinterpret_cast<std::uintptr_t>(memory_.address) + used_bytes_;
  const std::size_t gap = (alignment - next % alignment) % alignment;
  const std::size_t left = memory_.bytes - used_bytes_;
  if (gap > left || bytes > left - gap) {
    return make_error(ErrorCode::kResourceExhausted,
                      "arena {}: asked for {} bytes aligned to {}, {} of {} bytes are left", name_,
                      bytes, alignment, left, memory_.bytes);
  }
  std::byte* address = memory_.address + used_bytes_ + gap;
  used_bytes_ += gap + bytes;
  return address;
}

Status Arena::protect(Protection protection) {
  if (!sealed_) {
    return make_error(ErrorCode::kFailedPrecondition, "arena {}: protect before seal", name_);
  }
  Status status = device_.protect(memory_, protection);
  if (!status.ok()) return status.error().with_context("arena " + name_);
  protection_ = protection;
  return {};
}

Result<Backing> Arena::create_backing() {
  auto memory = device_.allocate(memory_.bytes);
  if (!memory.ok()) return memory.error().with_context("backing of arena " + name_);
  return Backing(&device_, *memory);
}

// The protection travels with the pages, so the staged pages take the arena's before they come in:
// the arena's addresses are at no moment more writable than they were.
Status Arena::exchange(Backing& backing) {
  if (!sealed_) {
    return make_error(ErrorCode::kFailedPrecondition, "arena {}: exchange before seal", name_);
  }
  if (backing.device_ != &device_ || backing.memory_.bytes != memory_.bytes) {
    return make_error(ErrorCode::kMismatch,
                      "arena {} has {} bytes, the backing has {}{}: a replacement must have the "
                      "arena's size and device",
                      name_, memory_.bytes, backing.memory_.bytes,
                      backing.device_ == &device_ ? "" : " (of another device)");
  }
  Status status = device_.protect(backing.memory_, protection_);
  if (status.ok()) status = device_.exchange_backing(memory_, backing.memory_);
  if (!status.ok()) return status.error().with_context("arena " + name_);
  if (exchange_counter_ != nullptr) ++*exchange_counter_;
  return {};
}

}  // namespace holdfast::device
