#include "base/digest.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <xxhash.h>
#if HF_XXHASH_DISPATCH
// Makes the calls below use the processor's widest vectors; the digests are the same.
#include <xxh_x86dispatch.h>
#endif

#include "base/assert.h"

namespace holdfast::base {

std::string Digest::to_hex() const { return fmt::format("{:016x}{:016x}", high, low); }

Digest digest_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return Digest{hash.high64, hash.low64};
}

std::optional<Digest> digest_from_hex(std::string_view hex) {
  constexpr std::size_t kHalf = 16;
  if (hex.size() != 2 * kHalf) return std::nullopt;
  Digest digest;
  for (auto [half, value] : {std::pair{hex.substr(0, kHalf), &digest.high},
                             std::pair{hex.substr(kHalf), &digest.low}}) {
    const auto read = std::from_chars(half.data(), half.data() + kHalf, *value, 16);
    if (read.ec != std::errc() || read.ptr != half.data() + kHalf) return std::nullopt;
  }
  return digest;
}

struct DigestStream::State {
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash{XXH3_createState(),
                                                               &XXH3_freeState};
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_->hash.get());
}
DigestStream::~DigestStream() = default;
DigestStream::DigestStream(DigestStream&&) noexcept = default;
DigestStream& DigestStream::operator=(DigestStream&&) noexcept = default;

void DigestStream::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->hash.get(), bytes.data(), bytes.size());
}

Digest DigestStream::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->hash.get());
  return Digest{hash.high64, hash.low64};
}

void DigestStream::reset() { XXH3_128bits_reset(state_->hash.get()); }

Digest tree_digest_of_leaves(std::span<const Digest> leaves) {
  HF_ASSERT(!leaves.empty(), "a tree has at least one leaf");
  if (leaves.size() == 1) return leaves.front();
  DigestStream root;
  for (const Digest& leaf : leaves) {
    XXH128_canonical_t text;
    XXH128_canonicalFromHash(&text, XXH128_hash_t{.low64 = leaf.low, .high64 = leaf.high});
    root.add(std::as_bytes(std::span(text.digest)));
  }
  return root.digest();
}

Digest tree_digest_of(std::span<const std::byte> bytes) {
  if (bytes.size() <= kDigestLeafBytes) return digest_of(bytes);
  TreeDigestStream stream;
  stream.add(bytes);
  return stream.digest();
}

void TreeDigestStream::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kDigestLeafBytes - last_bytes_);
    const auto piece = bytes.first(count);
    bytes = bytes.subspan(count);
    if (count == kDigestLeafBytes) {
      leaves_.push_back(digest_of(piece));
      continue;
    }
    last_.add(piece);
    last_bytes_ += count;
    if (last_bytes_ < kDigestLeafBytes) continue;
    leaves_.push_back(last_.digest());
    last_.reset();
    last_bytes_ = 0;
  }
}

Digest TreeDigestStream::digest() const {
  if (last_bytes_ == 0 && !leaves_.empty()) return tree_digest_of_leaves(leaves_);
  std::vector<Digest> all = leaves_;
  all.push_back(last_.digest());
  return tree_digest_of_leaves(all);
}

}  // namespace holdfast::base
