// Addresses and ranges of a device's memory, and what a graph does to them. Values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace holdfast::device {

// Fills memory that was freed or not yet written: as bytes 0xDD, as f32 about -2.0e18, as i32
// negative.
inline constexpr std::byte kPoisonByte{0xDD};

// A range that a device's allocator gave out. Owns nothing.
struct Memory {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
};

struct AddressRange {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::uintptr_t end() const { return begin + bytes; }
  bool contains(const AddressRange& inner) const {
    return inner.begin >= begin && inner.bytes <= bytes &&
           inner.begin - begin <= bytes - inner.bytes;
  }
};

enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };
enum class Protection : std::uint8_t { kNone, kReadOnly, kReadWrite };

// Whether captured work may run over the memory of a home now.
enum class ReplayGate : std::uint8_t {
  kOpen,
  kApplying,     // a commit is exchanging or writing what graphs read
  kPoisoned,     // a commit failed half-way: the bytes are a mixture
  kUnpublished,  // pages were exchanged under an arena and no commit has said so
};

// Who can say whether an address lies in a live slot: the Registry, seen from below.
class AddressHome {
 public:
  virtual ~AddressHome() = default;
  virtual bool sealed() const = 0;
  // Changes whenever any slot's address changes, which from seal to close never happens: a graph
  // compares it in O(1) at every launch.
  virtual std::uint64_t layout_generation() const = 0;
  // Compared in O(1) at every launch, as layout_generation is.
  virtual ReplayGate replay_gate() const { return ReplayGate::kOpen; }
  // Whether the range lies wholly inside one live slot.
  virtual bool contains(const AddressRange& range) const = 0;
  // "slot layers.3.experts.swiglu_alpha + 0" or "no slot (nearest below: ...)".
  virtual std::string describe(std::uintptr_t address) const = 0;
};

}  // namespace holdfast::device
