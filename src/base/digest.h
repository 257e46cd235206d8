// Digest: XXH3-128 of a byte range (https://github.com/Cyan4973/xxHash). Detects change and mix-up;
// it is no defence against an adversary.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace holdfast::base {

struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend constexpr auto operator<=>(const Digest&, const Digest&) = default;
  // 32 lower-case hex digits.
  std::string to_hex() const;
};

Digest digest_of(std::span<const std::byte> bytes);

}  // namespace holdfast::base
