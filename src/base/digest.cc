#include "base/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace holdfast::base {

std::string Digest::to_hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Digest digest_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return Digest{hash.high64, hash.low64};
}

}  // namespace holdfast::base
