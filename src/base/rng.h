// Rng: a small deterministic generator with the same stream on every machine, and a counter-based
// draw for sampling, where the value depends only on (seed, counter) and never on who drew before.
#pragma once

#include <cstdint>

namespace holdfast::base {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection on 64 bits that mixes well.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// 64 random bits for draw number `counter` of stream `seed`.
constexpr std::uint64_t counter_draw(std::uint64_t seed, std::uint64_t counter) {
  return mix64(mix64(seed) ^ mix64(counter * 0xD1342543DE82EF95ull + 1));
}

// In [0, 1): the top 53 bits.
constexpr double to_unit_interval(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

class Rng {
 public:
  explicit constexpr Rng(std::uint64_t seed) : seed_(seed) {}
  constexpr std::uint64_t next() { return counter_draw(seed_, counter_++); }
  constexpr double next_unit() { return to_unit_interval(next()); }
  // In [0, bound); bound > 0. The bias is below bound / 2^64.
  constexpr std::uint64_t next_below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

}  // namespace holdfast::base
