// FakeHome: an AddressHome made of a list of ranges, for tests that need no registry. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/memory.h"

namespace holdfast::device {

class FakeHome final : public AddressHome {
 public:
  void add(const void* address, std::size_t bytes) {
    slots.push_back({reinterpret_cast<std::uintptr_t>(address), bytes});
  }
  bool sealed() const override { return is_sealed; }
  std::uint64_t layout_generation() const override { return generation; }
  bool contains(const AddressRange& range) const override {
    for (const AddressRange& slot : slots) {
      if (slot.contains(range)) return true;
    }
    return false;
  }
  std::string describe(std::uintptr_t address) const override {
    return contains({address, 1}) ? "a fake slot" : "no slot";
  }

  std::vector<AddressRange> slots;
  std::uint64_t generation = 1;
  bool is_sealed = true;
};

}  // namespace holdfast::device
