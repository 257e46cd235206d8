#include "device/lanes.h"

#include <cstring>

namespace holdfast::device {
namespace {

constexpr std::size_t kBlockWords = 512;
constexpr std::size_t kBlockBytes = kBlockWords * sizeof(std::uint64_t);

// A fixed trip count and no early exit: the compiler turns this into vector code.
bool block_has_none(const std::byte* bytes, const LaneTest& test) {
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < kBlockWords; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    any |= lane_hits(word, test);
  }
  return any == 0;
}

}  // namespace

std::optional<std::size_t> find_lane(std::span<const std::byte> bytes, const LaneTest& test) {
  std::size_t at = 0;
  while (bytes.size() - at >= kBlockBytes && block_has_none(bytes.data() + at, test)) {
    at += kBlockBytes;
  }
  for (; at + test.width <= bytes.size(); at += test.width) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, test.width);
    if (lane_hits(word, test) != 0) return at / test.width;
  }
  return std::nullopt;
}

}  // namespace holdfast::device
