// Arena: owns one contiguous address range of one device. Bump allocation, then seal(); from then
// on nothing in it moves. The only caller of the device's allocator. One owner thread, except that
// a Backing may be filled by another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/device.h"
#include "device/memory.h"
#include "holdfast/result.h"

namespace holdfast::device {

// Physical pages of an arena's size at an address of their own: staged content before a swap, the
// previous content after one. Move-only; frees its pages.
class Backing {
 public:
  Backing() = default;
  Backing(Backing&& other) noexcept;
  Backing& operator=(Backing&& other) noexcept;
  ~Backing();

  bool empty() const { return memory_.address == nullptr; }
  Memory memory() const { return memory_; }
  // kReadOnly ahead of an exchange with a read-only arena takes that work out of the pause;
  // kReadWrite makes the previous content of such an arena fit for staging again.
  // Errors: kFailedPrecondition when empty, kDevice.
  Status protect(Protection protection);

 private:
  friend class Arena;
  Backing(Device* device, Memory memory) : device_(device), memory_(memory) {}
  Device* device_ = nullptr;
  Memory memory_;
};

class Arena {
 public:
  // Allocates `capacity_bytes` (rounded up to pages). Errors: kResourceExhausted, kInvalidArgument.
  static Result<std::unique_ptr<Arena>> create(Device& device, std::string name,
                                               std::size_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::string& name() const { return name_; }
  Device& device() const { return device_; }
  Memory memory() const { return memory_; }
  std::size_t used_bytes() const { return used_bytes_; }
  bool sealed() const { return sealed_; }

  // Errors: kFailedPrecondition after seal; kResourceExhausted naming asked and left bytes;
  // kInvalidArgument for an alignment that is no power of two.
  Result<std::byte*> allocate(std::size_t bytes, std::size_t alignment);
  void seal() { sealed_ = true; }

  // Errors: kFailedPrecondition before seal, kDevice.
  Status protect(Protection protection);
  Protection protection() const { return protection_; }

  // Fresh pages of this arena's size, readable and writable, filled with kPoisonByte.
  Result<Backing> create_backing();
  // Exchanges the pages under the arena with `backing`'s: the arena's addresses show the staged
  // content, `backing` holds the previous one (so a second call undoes the first). Both end with
  // the protection that the arena has. Errors: kFailedPrecondition before seal, kMismatch for
  // another size, kDevice; on an error the arena is as before.
  Status exchange(Backing& backing);
  // From now on each exchange adds 1 to `*counter`, which must outlive the arena.
  void count_exchanges(std::uint64_t* counter) { exchange_counter_ = counter; }

 private:
  Arena(Device& device, std::string name, Memory memory)
      : device_(device), name_(std::move(name)), memory_(memory) {}
  Device& device_;
  std::string name_;
  Memory memory_;
  std::size_t used_bytes_ = 0;
  bool sealed_ = false;
  Protection protection_ = Protection::kReadWrite;
  std::uint64_t* exchange_counter_ = nullptr;
};

}  // namespace holdfast::device
