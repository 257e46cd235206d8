#include "reload/sanity.h"

#include <cstdint>
#include <cstring>

namespace holdfast::reload {
namespace {

// In each lane of a word: an element is insane when all bits of `mask` are set, which adding `one`
// (the mask's lowest bit) carries into `top`, the lane's highest bit; no carry leaves the lane.
// `require` is a bit that must be set as well (e8m0 uses the sign bit as an exponent bit).
struct LaneTest {
  std::uint64_t mask;
  std::uint64_t one;
  std::uint64_t top;
  std::uint64_t require;
  std::size_t width;
};

constexpr std::uint64_t spread(std::uint64_t lane, int bits) {
  std::uint64_t word = 0;
  for (int at = 0; at < 64; at += bits) word |= lane << at;
  return word;
}
constexpr LaneTest lane_test(std::uint64_t mask, std::size_t width, bool whole_byte = false) {
  const int bits = static_cast<int>(width) * 8;
  const std::uint64_t top = spread(std::uint64_t{1} << (bits - 1), bits);
  return {spread(mask, bits), spread(mask & (~mask + 1), bits), top, whole_byte ? top : 0, width};
}

LaneTest test_for(Insanity insanity) {
  switch (insanity) {
    case Insanity::kF32NotFinite: return lane_test(0x7F800000, 4);
    case Insanity::kF16NotFinite: return lane_test(0x7C00, 2);
    case Insanity::kBF16NotFinite: return lane_test(0x7F80, 2);
    case Insanity::kF8E4M3Nan: return lane_test(0x7F, 1);
    case Insanity::kF8E5M2NotFinite: return lane_test(0x7C, 1);
    case Insanity::kE8M0Nan: return lane_test(0x7F, 1, true);
    case Insanity::kNone: break;
  }
  return {0, 0, 0, 0, 1};
}

inline std::uint64_t hits(std::uint64_t word, const LaneTest& test) {
  return ((word & test.mask) + test.one) & test.top & (word | ~test.require);
}

constexpr std::size_t kBlockWords = 512;

// A fixed trip count and no early exit: the compiler turns this into vector code.
bool block_is_sane(const std::byte* bytes, const LaneTest& test) {
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < kBlockWords; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    any |= hits(word, test);
  }
  return any == 0;
}

std::optional<std::size_t> scan_elements(std::span<const std::byte> bytes, std::size_t begin,
                                         const LaneTest& test) {
  for (std::size_t at = begin; at + test.width <= bytes.size(); at += test.width) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, test.width);
    if (hits(word, test) != 0) return at / test.width;
  }
  return std::nullopt;
}

}  // namespace

Insanity insanity_of(std::string_view name, tensor::DType dtype) {
  switch (dtype) {
    case tensor::DType::kF32: return Insanity::kF32NotFinite;
    case tensor::DType::kF16: return Insanity::kF16NotFinite;
    case tensor::DType::kBF16: return Insanity::kBF16NotFinite;
    case tensor::DType::kF8E4M3: return Insanity::kF8E4M3Nan;
    case tensor::DType::kF8E5M2: return Insanity::kF8E5M2NotFinite;
    case tensor::DType::kF8E8M0: return Insanity::kE8M0Nan;
    case tensor::DType::kU8:
      return name.ends_with("_scales") ? Insanity::kE8M0Nan : Insanity::kNone;
    case tensor::DType::kF4E2M1:
    case tensor::DType::kI32:
    case tensor::DType::kI64: break;
  }
  return Insanity::kNone;
}

std::string_view insanity_text(Insanity insanity) {
  switch (insanity) {
    case Insanity::kNone: return "nothing";
    case Insanity::kF32NotFinite:
    case Insanity::kF16NotFinite:
    case Insanity::kBF16NotFinite:
    case Insanity::kF8E5M2NotFinite: return "NaN or infinity";
    case Insanity::kF8E4M3Nan: return "NaN";
    case Insanity::kE8M0Nan: return "the e8m0 NaN 0xFF";
  }
  return "unknown";
}

std::optional<std::size_t> find_insane(std::span<const std::byte> bytes, Insanity insanity) {
  if (insanity == Insanity::kNone) return std::nullopt;
  const LaneTest test = test_for(insanity);
  constexpr std::size_t kBlockBytes = kBlockWords * sizeof(std::uint64_t);
  std::size_t at = 0;
  while (bytes.size() - at >= kBlockBytes && block_is_sane(bytes.data() + at, test)) {
    at += kBlockBytes;
  }
  return scan_elements(bytes, at, test);
}

}  // namespace holdfast::reload
