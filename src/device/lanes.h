// Lane tests: a property of a range's elements as integer arithmetic on 8-byte words, several
// elements at a time, so that any processor can look for one that has it. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/host_device.h"
#include "device/memory.h"

namespace holdfast::device {

// An element is hit when all bits of `mask` are set in its lane, which adding `one` (the mask's
// lowest bit) carries into `top`, the lane's highest bit; no carry leaves the lane. `require` is a
// bit that must be set as well.
struct LaneTest {
  std::uint64_t mask = 0;
  std::uint64_t one = 0;
  std::uint64_t top = 0;
  std::uint64_t require = 0;
  std::size_t width = 1;  // bytes of an element: 1, 2, 4 or 8
};

HF_HOST_DEVICE constexpr std::uint64_t lane_hits(std::uint64_t word, const LaneTest& test) {
  return ((word & test.mask) + test.one) & test.top & (word | ~test.require);
}

// The first element of `bytes`, which start at one, that is hit; a last incomplete one is ignored.
std::optional<std::size_t> find_lane(std::span<const std::byte> bytes, const LaneTest& test);

// A range of device memory, which starts at an element, and what to look for in it.
struct LaneSearch {
  Memory range = {};
  LaneTest test = {};
};

}  // namespace holdfast::device
