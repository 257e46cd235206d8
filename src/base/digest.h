// Digest: XXH3-128 of a byte range (https://github.com/Cyan4973/xxHash). Detects change and mix-up;
// it is no defence against an adversary. Two kinds: the plain one of a tensor as its publisher
// counts it, and the tree digest of a slot, whose leaves can be taken anywhere and in any order.
// Values; a stream belongs to one thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::base {

struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend constexpr auto operator<=>(const Digest&, const Digest&) = default;
  // 32 lower-case hex digits.
  std::string to_hex() const;
};

Digest digest_of(std::span<const std::byte> bytes);
// What to_hex gives, upper case allowed; empty for any other text.
std::optional<Digest> digest_from_hex(std::string_view hex);

// The digest of bytes that come in pieces: that of all pieces, in the order of the calls.
class DigestStream {
 public:
  DigestStream();
  ~DigestStream();
  DigestStream(DigestStream&&) noexcept;
  DigestStream& operator=(DigestStream&&) noexcept;
  void add(std::span<const std::byte> bytes);
  Digest digest() const;
  // As if nothing had been added.
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The tree digest: the bytes are cut into leaves of kDigestLeafBytes (the last may be shorter). One
// leaf: its plain digest; more: the plain digest of the leaves' digests, 16 bytes each in
// big-endian order, high half first. So it depends on the bytes alone, and not on who took which
// leaf.
inline constexpr std::size_t kDigestLeafBytes = std::size_t{64} << 10;

Digest tree_digest_of(std::span<const std::byte> bytes);
// From the plain digests of all leaves. Asserts that there is one.
Digest tree_digest_of_leaves(std::span<const Digest> leaves);
// How many leaves `bytes` bytes have; no bytes are one empty leaf.
constexpr std::size_t digest_leaf_count(std::size_t bytes) {
  return bytes == 0 ? 1 : (bytes - 1) / kDigestLeafBytes + 1;
}

// The tree digest of bytes that come in pieces, cut anywhere.
class TreeDigestStream {
 public:
  void add(std::span<const std::byte> bytes);
  Digest digest() const;

 private:
  std::vector<Digest> leaves_;  // full ones
  DigestStream last_;           // the leaf that is not full
  std::size_t last_bytes_ = 0;
};

}  // namespace holdfast::base
