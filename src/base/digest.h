// Digest: XXH3-128 of a byte range (https://github.com/Cyan4973/xxHash). Detects change and mix-up;
// it is no defence against an adversary.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

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

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::base
