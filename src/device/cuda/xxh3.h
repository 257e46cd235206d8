// XXH3-128 of a leaf of a tree digest, in steps that four GPU threads can share: each holds two of
// the eight accumulators. The same functions run on the host, where a test compares them with the
// library. (Format: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, XXH3 with its
// default secret and no seed, inputs of more than 240 bytes.) Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/host_device.h"

namespace holdfast::device::cuda {

inline constexpr std::size_t kXxh3MinBytes = 241;  // shorter inputs have other formulas
inline constexpr int kStripeBytes = 64;
inline constexpr int kStripesPerBlock = 16;
inline constexpr int kXxh3Lanes = 4;     // threads of a leaf
inline constexpr int kSecretWords = 24;

// The default secret as little-endian words.
struct Xxh3Secret {
  std::uint64_t words[kSecretWords] = {
      0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072,
      0x78E5C0CC4EE679CB, 0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0,
      0xCB00C391BB52283C, 0xA32E531B8B65D088, 0x4EF90DA297486471, 0xD8ACDEA946EF1938,
      0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A, 0x647378D9C97E9FC8,
      0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
      0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF};
  // The word at any byte.
  HF_HOST_DEVICE std::uint64_t at(int byte) const {
    const int word = byte / 8;
    const int shift = byte % 8 * 8;
    if (shift == 0) return words[word];
    return words[word] >> shift | words[word + 1] << (64 - shift);
  }
};

inline constexpr std::uint64_t kPrime32_1 = 0x9E3779B1;
inline constexpr std::uint64_t kPrime64_1 = 0x9E3779B185EBCA87;
inline constexpr std::uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4F;
inline constexpr int kLastStripeSecret = 192 - 64 - 7;
inline constexpr int kScrambleSecret = 192 - 64;
inline constexpr int kMergeLowSecret = 11;
inline constexpr int kMergeHighSecret = 192 - 64 - 11;

// Accumulators 2 * lane and 2 * lane + 1.
struct Xxh3Pair {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

HF_HOST_DEVICE inline Xxh3Pair xxh3_start(int lane) {
  switch (lane) {
    case 0: return {0xC2B2AE3D, kPrime64_1};
    case 1: return {kPrime64_2, 0x165667B19E3779F9};
    case 2: return {0x85EBCA77C2B2AE63, 0x85EBCA77};
    default: return {0x27D4EB2F165667C5, kPrime32_1};
  }
}

// Takes the lane's 16 bytes of a stripe, with the secret's words for them.
HF_HOST_DEVICE inline void xxh3_accumulate(Xxh3Pair& acc, Xxh3Pair data, Xxh3Pair secret) {
  const std::uint64_t key_a = data.a ^ secret.a;
  const std::uint64_t key_b = data.b ^ secret.b;
  acc.a += data.b + (key_a & 0xFFFFFFFF) * (key_a >> 32);
  acc.b += data.a + (key_b & 0xFFFFFFFF) * (key_b >> 32);
}

// After each full block of stripes.
HF_HOST_DEVICE inline void xxh3_scramble(Xxh3Pair& acc, Xxh3Pair secret) {
  acc.a = ((acc.a ^ acc.a >> 47) ^ secret.a) * kPrime32_1;
  acc.b = ((acc.b ^ acc.b >> 47) ^ secret.b) * kPrime32_1;
}

HF_HOST_DEVICE inline std::uint64_t xxh3_fold(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return a * b ^ __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#endif
}

// One lane's summand of a half of the digest, whose secret begins at byte `from`.
HF_HOST_DEVICE inline std::uint64_t xxh3_term(Xxh3Pair acc, const Xxh3Secret& secret, int from,
                                              int lane) {
  return xxh3_fold(acc.a ^ secret.at(from + 16 * lane), acc.b ^ secret.at(from + 16 * lane + 8));
}

HF_HOST_DEVICE inline std::uint64_t xxh3_avalanche(std::uint64_t hash) {
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

// The halves from the sums of the lanes' terms.
HF_HOST_DEVICE inline std::uint64_t xxh3_low(std::uint64_t sum, std::uint64_t bytes) {
  return xxh3_avalanche(sum + bytes * kPrime64_1);
}
HF_HOST_DEVICE inline std::uint64_t xxh3_high(std::uint64_t sum, std::uint64_t bytes) {
  return xxh3_avalanche(sum + ~(bytes * kPrime64_2));
}

}  // namespace holdfast::device::cuda
