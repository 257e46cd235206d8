#include "tensor/mx_codecs.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "tensor/span_checks.h"

namespace holdfast::tensor {
namespace {

constexpr std::size_t kBlock = kMxBlock;
constexpr int kScaleBias = 127;
constexpr std::uint8_t kScaleNaN = 0xFF;

// Of an element format: the exponent of its largest number, and that number's significand as a
// fraction of 2^23 (1.5 for 6, 1.75 for 448), and its mantissa's width.
struct ElementFacts {
  int largest_exponent;
  std::uint32_t largest_fraction;
  int mantissa_bits;
};
constexpr ElementFacts facts_of(MxElement element) {
  return element == MxElement::kE2M1 ? ElementFacts{2, 0x400000u, 1}
                                     : ElementFacts{8, 0x600000u, 3};
}

Status check_blocks(MxElement element, std::size_t values, std::size_t codes, std::size_t scales) {
  if (values % kBlock != 0) {
    return make_error(ErrorCode::kMismatch, "mx: {} values are no whole blocks of {}", values,
                      kBlock);
  }
  const auto count = static_cast<std::int64_t>(values);
  const bool nibbles = element == MxElement::kE2M1;
  HF_TRY(check_count("mx codes", codes, nibbles ? count / 2 : count,
                     nibbles ? "two values to a byte" : "one byte a value"));
  return check_count("mx scales", scales, count / kMxBlock, "one for each 32 values");
}

}  // namespace

std::uint8_t e8m0_scale(MxElement element, E8m0Rule rule, float amax) {
  if (std::isnan(amax)) return kScaleNaN;
  if (amax == 0.0f) return 0;
  const ElementFacts facts = facts_of(element);
  int exponent = std::ilogb(amax) - facts.largest_exponent;
  // The significand as a normal number's fraction, also for a subnormal amax.
  const float significand = std::ldexp(amax, -std::ilogb(amax));
  const std::uint32_t fraction = std::bit_cast<std::uint32_t>(significand) & 0x7FFFFFu;
  if (rule == E8m0Rule::kCeil && fraction > facts.largest_fraction) ++exponent;
  if (rule == E8m0Rule::kEven && fraction + (1u << (22 - facts.mantissa_bits)) >= 0x800000u) {
    ++exponent;
  }
  return static_cast<std::uint8_t>(std::clamp(exponent, -kScaleBias, kScaleBias) + kScaleBias);
}

Status encode_mxfp8(E8m0Rule rule, std::span<const float> values, std::span<std::uint8_t> codes,
                    std::span<std::uint8_t> scales) {
  HF_TRY(check_blocks(MxElement::kE4M3, values.size(), codes.size(), scales.size()));
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const std::uint8_t scale = e8m0_scale(MxElement::kE4M3, rule,
                                          finite_amax(values.subspan(block * kBlock, kBlock)));
    scales[block] = scale;
    for (std::size_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      codes[i] = scale == kScaleNaN
                     ? std::uint8_t{0}
                     : f32_to_f8_e4m3(std::ldexp(values[i], kScaleBias - scale));
    }
  }
  return {};
}

Status decode_mxfp8(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                    std::span<float> out) {
  HF_TRY(check_blocks(MxElement::kE4M3, out.size(), codes.size(), scales.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = f8_e4m3_to_f32(codes[i]) * f8_e8m0_to_f32(scales[i / kBlock]);
  }
  return {};
}

Status encode_mxfp4(E8m0Rule rule, std::span<const float> values, std::span<std::uint8_t> codes,
                    std::span<std::uint8_t> scales) {
  HF_TRY(check_blocks(MxElement::kE2M1, values.size(), codes.size(), scales.size()));
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const float amax = finite_amax(values.subspan(block * kBlock, kBlock));
    const std::uint8_t scale = e8m0_scale(MxElement::kE2M1, rule, amax);
    scales[block] = scale;
    const bool empty = amax == 0.0f || scale == kScaleNaN;
    for (std::size_t i = block * kBlock; i < (block + 1) * kBlock; i += 2) {
      if (empty) {
        codes[i / 2] = 0;
        continue;
      }
      const auto low = f32_to_f4_e2m1(std::ldexp(values[i], kScaleBias - scale));
      const auto high = f32_to_f4_e2m1(std::ldexp(values[i + 1], kScaleBias - scale));
      codes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));
    }
  }
  return {};
}

Status decode_mxfp4(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                    std::span<float> out) {
  HF_TRY(check_blocks(MxElement::kE2M1, out.size(), codes.size(), scales.size()));
  for (std::size_t block = 0; block < scales.size(); ++block) {
    decode_mxfp4_block(codes.subspan(block * kBlock / 2).first<kBlock / 2>(), scales[block],
                       out.subspan(block * kBlock).first<kBlock>());
  }
  return {};
}

}  // namespace holdfast::tensor
