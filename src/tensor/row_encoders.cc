// Highway versions of the scalar codecs, lane by lane. A small format's code of |x| is
//   normal      bits(|x|) rounded to its mantissa, nearest even, with the exponent's bias replaced
//   subnormal   |x| + M, with M's last place being the format's quantum: the adder rounds
// and the largest code where that is more. Loads and stores are unaligned; what is left over at the
// end of a run goes through the scalar codec.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/row_encoders.cc"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "tensor/codecs.h"
#include "tensor/nvfp4_codecs.h"
#include "tensor/row_encoders.h"

#ifndef HF_ROW_ENCODERS_ONCE
#define HF_ROW_ENCODERS_ONCE
namespace holdfast::tensor {

inline constexpr std::uint32_t kInfinityBits = 0x7F800000u;
inline constexpr std::uint32_t kMagnitudeBits = 0x7FFFFFFFu;
inline constexpr std::size_t kMaxLanes = 16;  // so that blocks of 16 and 32 are whole vectors

struct SmallFormat {
  int mantissa_bits;
  int bias;
  std::uint32_t largest;  // code
  constexpr std::uint32_t rebias() const {
    return static_cast<std::uint32_t>(127 - bias) << mantissa_bits;
  }
  constexpr float smallest_normal() const { return power(1 - bias); }
  constexpr float rounder() const { return power(1 - bias - mantissa_bits + 23); }
  static constexpr float power(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  }
};
inline constexpr SmallFormat kE2M1{1, 1, 7};
inline constexpr SmallFormat kE4M3{3, 7, 0x7E};
inline constexpr SmallFormat kF16{10, 15, 0x7C00};

// e8m0_scale of an amax with these bits, without its logarithm where the amax is a normal number.
inline std::uint8_t scale_of_bits(MxElement element, E8m0Rule rule, std::uint32_t bits) {
  if (bits >= kInfinityBits) return 0xFF;
  if (bits < 0x00800000u) return e8m0_scale(element, rule, std::bit_cast<float>(bits));
  const bool e2m1 = element == MxElement::kE2M1;
  int exponent = static_cast<int>(bits >> 23) - (e2m1 ? 2 : 8);
  const std::uint32_t fraction = bits & 0x7FFFFFu;
  if (rule == E8m0Rule::kCeil && fraction > (e2m1 ? 0x400000u : 0x600000u)) ++exponent;
  if (rule == E8m0Rule::kEven && fraction + (e2m1 ? 0x200000u : 0x80000u) >= 0x800000u) ++exponent;
  return static_cast<std::uint8_t>(std::clamp(exponent, 0, 254));
}

// 2^(127 - scale) for scale 0 ... 254.
inline float inverse_scale(std::uint8_t scale) {
  if (scale == 254) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<std::uint32_t>(254 - scale) << 23);
}

// Eight codes of 4 bits, one to a byte, to four bytes.
inline void pack_eight(const std::uint8_t* codes, std::uint8_t* bytes) {
  std::uint64_t word;
  std::memcpy(&word, codes, sizeof(word));
  word = (word | (word >> 4)) & 0x00FF00FF00FF00FFu;
  word = (word | (word >> 8)) & 0x0000FFFF0000FFFFu;
  const auto packed = static_cast<std::uint32_t>(word | (word >> 16));
  std::memcpy(bytes, &packed, sizeof(packed));
}
static_assert(std::endian::native == std::endian::little);

inline std::uint8_t int4_code(float value, float scale, std::uint8_t zero) {
  const float steps = std::nearbyint(value / scale) + static_cast<float>(zero);
  return static_cast<std::uint8_t>(std::clamp(steps, 0.0f, 15.0f));
}

}  // namespace holdfast::tensor
#endif

HWY_BEFORE_NAMESPACE();
namespace holdfast::tensor::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::CappedTag<float, kMaxLanes>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;

HWY_INLINE VU magnitude_of(VF value) {
  return hn::And(hn::BitCast(U32(), value), hn::Set(U32(), kMagnitudeBits));
}

// The magnitude's code; a NaN gives the largest.
template <int kMantissaBits>
HWY_INLINE VU encode_magnitude(VF value, SmallFormat format) {
  constexpr int kShift = 23 - kMantissaBits;
  const VU magnitude = magnitude_of(value);
  const VU odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(U32(), 1));
  const VU half = hn::Set(U32(), (1u << (kShift - 1)) - 1);
  const VU rounded = hn::ShiftRight<kShift>(hn::Add(hn::Add(magnitude, odd), half));
  const VU normal = hn::Sub(rounded, hn::Set(U32(), format.rebias()));
  const VF rounder = hn::Set(F32(), format.rounder());
  const VF absolute = hn::BitCast(F32(), magnitude);
  const VU subnormal = hn::Sub(hn::BitCast(U32(), hn::Add(absolute, rounder)),
                               hn::BitCast(U32(), rounder));
  const auto small = hn::Lt(absolute, hn::Set(F32(), format.smallest_normal()));
  const VU code = hn::IfThenElse(hn::RebindMask(U32(), small), subnormal, normal);
  return hn::Min(code, hn::Set(U32(), format.largest));
}

// The value's sign at bit `kBit`.
template <int kBit>
HWY_INLINE VU sign_at(VF value) {
  const VU sign = hn::ShiftRight<31>(hn::BitCast(U32(), value));
  return hn::ShiftLeft<kBit>(sign);
}

HWY_INLINE VU encode_e2m1(VF value) {
  return hn::Or(encode_magnitude<kE2M1.mantissa_bits>(value, kE2M1), sign_at<3>(value));
}

HWY_INLINE VU encode_e4m3(VF value) {
  const VU code = hn::Or(encode_magnitude<kE4M3.mantissa_bits>(value, kE4M3), sign_at<7>(value));
  const auto nan = hn::Gt(magnitude_of(value), hn::Set(U32(), kInfinityBits));
  return hn::IfThenElse(nan, hn::Set(U32(), 0x7F), code);
}

// Codes below 256 to a byte each.
HWY_INLINE void store_bytes(VU codes, std::uint8_t* to) {
  const hn::RebindToSigned<U32> signed_tag;
  const hn::Rebind<std::uint8_t, U32> byte_tag;
  hn::StoreU(hn::DemoteTo(byte_tag, hn::BitCast(signed_tag, codes)), byte_tag, to);
}

HWY_INLINE std::uint32_t block_magnitude(const float* values, std::size_t count) {
  VU largest = hn::Zero(U32());
  for (std::size_t i = 0; i < count; i += hn::Lanes(F32())) {
    largest = hn::Max(largest, magnitude_of(hn::LoadU(F32(), values + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(U32(), largest));
}

std::uint32_t magnitude_run(const float* values, std::size_t count) {
  const std::size_t whole = count - count % kMaxLanes;
  std::uint32_t largest = block_magnitude(values, whole);
  for (std::size_t i = whole; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & kMagnitudeBits);
  }
  return largest;
}

void mxfp4_run(E8m0Rule rule, const float* values, std::size_t blocks, std::uint8_t* codes,
               std::uint8_t* scales) {
  HWY_ALIGN std::uint8_t bytes[kMxBlock];
  for (std::size_t block = 0; block < blocks; ++block, values += kMxBlock, codes += 16) {
    const std::uint32_t amax = block_magnitude(values, kMxBlock);
    scales[block] = scale_of_bits(MxElement::kE2M1, rule, amax);
    if (amax == 0 || amax >= kInfinityBits) {
      std::memset(codes, 0, 16);
      continue;
    }
    const VF factor = hn::Set(F32(), inverse_scale(scales[block]));
    for (std::size_t i = 0; i < kMxBlock; i += hn::Lanes(F32())) {
      store_bytes(encode_e2m1(hn::Mul(hn::LoadU(F32(), values + i), factor)), bytes + i);
    }
    for (std::size_t i = 0; i < kMxBlock; i += 8) pack_eight(bytes + i, codes + i / 2);
  }
}

void mxfp8_run(E8m0Rule rule, const float* values, std::size_t blocks, std::uint8_t* codes,
               std::uint8_t* scales) {
  for (std::size_t block = 0; block < blocks; ++block, values += kMxBlock, codes += kMxBlock) {
    const std::uint32_t amax = block_magnitude(values, kMxBlock);
    scales[block] = scale_of_bits(MxElement::kE4M3, rule, amax);
    if (amax >= kInfinityBits) {
      std::memset(codes, 0, kMxBlock);
      continue;
    }
    const VF factor = hn::Set(F32(), inverse_scale(scales[block]));
    for (std::size_t i = 0; i < kMxBlock; i += hn::Lanes(F32())) {
      store_bytes(encode_e4m3(hn::Mul(hn::LoadU(F32(), values + i), factor)), codes + i);
    }
  }
}

void nvfp4_run(float global, const float* values, std::size_t blocks, std::uint8_t* codes,
               std::uint8_t* scales) {
  const float divisor = 6.0f * global;
  HWY_ALIGN std::uint8_t bytes[kNvfp4Block];
  for (std::size_t block = 0; block < blocks; ++block, values += kNvfp4Block, codes += 8) {
    const std::uint32_t amax = block_magnitude(values, kNvfp4Block);
    if (amax >= kInfinityBits) {
      scales[block] = 0x7F;
      std::memset(codes, 0, 8);
      continue;
    }
    const VF ratio = hn::Set(F32(), std::bit_cast<float>(amax) / divisor);
    scales[block] = static_cast<std::uint8_t>(hn::GetLane(encode_e4m3(ratio)));
    const VF step = hn::Set(F32(), f8_e4m3_to_f32(scales[block]) * global);
    const auto none = hn::Eq(step, hn::Zero(F32()));
    for (std::size_t i = 0; i < kNvfp4Block; i += hn::Lanes(F32())) {
      const VF value = hn::LoadU(F32(), values + i);
      const VF quotient = hn::IfThenElse(none, hn::CopySign(hn::Zero(F32()), value),
                                         hn::Div(value, step));
      store_bytes(encode_e2m1(quotient), bytes + i);
    }
    pack_eight(bytes, codes);
    pack_eight(bytes + 8, codes + 4);
  }
}

void e4m3_run(float scale, const float* values, std::size_t count, std::uint8_t* codes) {
  const std::size_t lanes = hn::Lanes(F32());
  const VF divisor = hn::Set(F32(), scale);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store_bytes(encode_e4m3(hn::Div(hn::LoadU(F32(), values + i), divisor)), codes + i);
  }
  for (; i < count; ++i) codes[i] = f32_to_f8_e4m3(values[i] / scale);
}

ValueRange range_run(const float* values, std::size_t count) {
  const std::size_t lanes = hn::Lanes(F32());
  VF low = hn::Zero(F32());
  VF high = hn::Zero(F32());
  VU magnitude = hn::Zero(U32());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF value = hn::LoadU(F32(), values + i);
    low = hn::Min(low, value);
    high = hn::Max(high, value);
    magnitude = hn::Max(magnitude, magnitude_of(value));
  }
  ValueRange range{hn::GetLane(hn::MinOfLanes(F32(), low)),
                   hn::GetLane(hn::MaxOfLanes(F32(), high)),
                   hn::GetLane(hn::MaxOfLanes(U32(), magnitude))};
  for (; i < count; ++i) {
    range.low = std::min(range.low, values[i]);
    range.high = std::max(range.high, values[i]);
    const auto bits = std::bit_cast<std::uint32_t>(values[i]) & kMagnitudeBits;
    range.magnitude = std::max(range.magnitude, bits);
  }
  return range;
}

void int4_run(float scale, std::uint8_t zero_code, const float* values, std::size_t count,
              std::uint8_t* bytes) {
  const VF divisor = hn::Set(F32(), scale);
  const VF zero = hn::Set(F32(), static_cast<float>(zero_code));
  const VF most = hn::Set(F32(), 15.0f);
  const hn::RebindToSigned<U32> signed_tag;
  HWY_ALIGN std::uint8_t codes[kMaxLanes];
  std::size_t i = 0;
  for (; i + kMaxLanes <= count; i += kMaxLanes) {
    for (std::size_t j = 0; j < kMaxLanes; j += hn::Lanes(F32())) {
      const VF quotient = hn::Div(hn::LoadU(F32(), values + i + j), divisor);
      // Limits first: what is far out would not fit an integer.
      const VF steps = hn::Add(hn::Round(quotient), zero);
      const VF limited = hn::Min(hn::Max(steps, hn::Zero(F32())), most);
      store_bytes(hn::BitCast(U32(), hn::ConvertTo(signed_tag, limited)), codes + j);
    }
    pack_eight(codes, bytes + i / 2);
    pack_eight(codes + 8, bytes + i / 2 + 4);
  }
  for (; i < count; i += 2) {
    const unsigned first = int4_code(values[i], scale, zero_code);
    const unsigned second = int4_code(values[i + 1], scale, zero_code);
    bytes[i / 2] = static_cast<std::uint8_t>(first | (second << 4));
  }
}

HWY_INLINE void store_halves(VU values, std::uint16_t* to) {
  const hn::RebindToSigned<U32> signed_tag;
  const hn::Rebind<std::uint16_t, U32> half_tag;
  hn::StoreU(hn::DemoteTo(half_tag, hn::BitCast(signed_tag, values)), half_tag, to);
}

void bf16_run(const float* values, std::size_t count, std::uint16_t* to) {
  const std::size_t lanes = hn::Lanes(F32());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF value = hn::LoadU(F32(), values + i);
    const VU bits = hn::BitCast(U32(), value);
    const VU upper = hn::ShiftRight<16>(bits);
    const VU odd = hn::And(upper, hn::Set(U32(), 1));
    const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, odd), hn::Set(U32(), 0x7FFF)));
    const auto nan = hn::Gt(magnitude_of(value), hn::Set(U32(), kInfinityBits));
    store_halves(hn::IfThenElse(nan, hn::Or(upper, hn::Set(U32(), 0x40)), rounded), to + i);
  }
  for (; i < count; ++i) to[i] = f32_to_bf16(values[i]);
}

void f16_run(const float* values, std::size_t count, std::uint16_t* to) {
  const std::size_t lanes = hn::Lanes(F32());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VF value = hn::LoadU(F32(), values + i);
    const VU payload = hn::And(hn::ShiftRight<13>(hn::BitCast(U32(), value)),
                               hn::Set(U32(), 0x3FF));
    const auto nan = hn::Gt(magnitude_of(value), hn::Set(U32(), kInfinityBits));
    const VU code = hn::IfThenElse(nan, hn::Or(payload, hn::Set(U32(), 0x7E00)),
                                   encode_magnitude<kF16.mantissa_bits>(value, kF16));
    store_halves(hn::Or(code, sign_at<15>(value)), to + i);
  }
  for (; i < count; ++i) to[i] = f32_to_f16(values[i]);
}

void widen_run(const std::uint16_t* from, std::size_t count, float* to) {
  const std::size_t lanes = hn::Lanes(F32());
  const hn::Rebind<std::uint16_t, U32> half_tag;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const VU bits = hn::PromoteTo(U32(), hn::LoadU(half_tag, from + i));
    hn::StoreU(hn::BitCast(F32(), hn::ShiftLeft<16>(bits)), F32(), to + i);
  }
  for (; i < count; ++i) to[i] = bf16_to_f32(from[i]);
}

#if HWY_TARGET == HWY_SCALAR

void transpose_run(const std::uint16_t* from, Strides strides, std::int64_t cols, float* to) {
  for (std::int64_t row = 0; row < kTransposed; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      to[row * strides.to + col] = bf16_to_f32(from[row + col * strides.from]);
    }
  }
}

#else

using Half8 = hn::FixedTag<std::uint16_t, 8>;
using V8 = hn::Vec<Half8>;

// Lanes of `T` of two vectors by turns: of their lower halves, and of their upper ones.
template <typename T>
HWY_INLINE void interleave(V8& a, V8& b) {
  const hn::Repartition<T, Half8> tag;
  const auto x = hn::BitCast(tag, a);
  const auto y = hn::BitCast(tag, b);
  a = hn::BitCast(Half8(), hn::InterleaveLower(tag, x, y));
  b = hn::BitCast(Half8(), hn::InterleaveUpper(tag, x, y));
}

HWY_INLINE void store_widened(V8 row, float* to) {
  const hn::FixedTag<std::uint32_t, 4> wide;
  const hn::FixedTag<float, 4> real;
  const auto lower = hn::PromoteTo(wide, hn::LowerHalf(row));
  const auto upper = hn::PromoteTo(wide, hn::UpperHalf(hn::Half<Half8>(), row));
  hn::StoreU(hn::BitCast(real, hn::ShiftLeft<16>(lower)), real, to);
  hn::StoreU(hn::BitCast(real, hn::ShiftLeft<16>(upper)), real, to + 4);
}

void transpose_run(const std::uint16_t* from, Strides strides, std::int64_t cols, float* to) {
  const std::int64_t f = strides.from;
  const std::int64_t t = strides.to;
  for (std::int64_t col = 0; col < cols; col += kTransposed, from += kTransposed * f) {
    // A vector is a column of 8 rows.
    V8 c0 = hn::LoadU(Half8(), from), c1 = hn::LoadU(Half8(), from + f);
    V8 c2 = hn::LoadU(Half8(), from + 2 * f), c3 = hn::LoadU(Half8(), from + 3 * f);
    V8 c4 = hn::LoadU(Half8(), from + 4 * f), c5 = hn::LoadU(Half8(), from + 5 * f);
    V8 c6 = hn::LoadU(Half8(), from + 6 * f), c7 = hn::LoadU(Half8(), from + 7 * f);
    // Pairs of columns: rows 0 to 3 in the even ones, 4 to 7 in the odd ones.
    interleave<std::uint16_t>(c0, c1);
    interleave<std::uint16_t>(c2, c3);
    interleave<std::uint16_t>(c4, c5);
    interleave<std::uint16_t>(c6, c7);
    // Four columns: two rows to a vector.
    interleave<std::uint32_t>(c0, c2);
    interleave<std::uint32_t>(c1, c3);
    interleave<std::uint32_t>(c4, c6);
    interleave<std::uint32_t>(c5, c7);
    // All eight.
    interleave<std::uint64_t>(c0, c4);
    interleave<std::uint64_t>(c2, c6);
    interleave<std::uint64_t>(c1, c5);
    interleave<std::uint64_t>(c3, c7);
    store_widened(c0, to + col);
    store_widened(c4, to + col + t);
    store_widened(c2, to + col + 2 * t);
    store_widened(c6, to + col + 3 * t);
    store_widened(c1, to + col + 4 * t);
    store_widened(c5, to + col + 5 * t);
    store_widened(c3, to + col + 6 * t);
    store_widened(c7, to + col + 7 * t);
  }
}

#endif

}  // namespace holdfast::tensor::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast::tensor {

HWY_EXPORT(magnitude_run);
HWY_EXPORT(mxfp4_run);
HWY_EXPORT(mxfp8_run);
HWY_EXPORT(nvfp4_run);
HWY_EXPORT(e4m3_run);
HWY_EXPORT(range_run);
HWY_EXPORT(int4_run);
HWY_EXPORT(bf16_run);
HWY_EXPORT(f16_run);
HWY_EXPORT(widen_run);
HWY_EXPORT(transpose_run);

std::uint32_t magnitude_bits(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(magnitude_run)(values, count);
}

void encode_mxfp4_run(E8m0Rule rule, const float* values, std::size_t blocks, std::uint8_t* codes,
                      std::uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(mxfp4_run)(rule, values, blocks, codes, scales);
}

void encode_mxfp8_run(E8m0Rule rule, const float* values, std::size_t blocks, std::uint8_t* codes,
                      std::uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(mxfp8_run)(rule, values, blocks, codes, scales);
}

void encode_nvfp4_run(float global, const float* values, std::size_t blocks, std::uint8_t* codes,
                      std::uint8_t* scales) {
  HWY_DYNAMIC_DISPATCH(nvfp4_run)(global, values, blocks, codes, scales);
}

void encode_e4m3_run(float scale, const float* values, std::size_t count, std::uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(e4m3_run)(scale, values, count, codes);
}

ValueRange value_range(const float* values, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(range_run)(values, count);
}

void encode_int4_run(float scale, std::uint8_t zero, const float* values, std::size_t count,
                     std::uint8_t* bytes) {
  HWY_DYNAMIC_DISPATCH(int4_run)(scale, zero, values, count, bytes);
}

void narrow_to_bf16(const float* values, std::size_t count, std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(bf16_run)(values, count, to);
}

void narrow_to_f16(const float* values, std::size_t count, std::uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(f16_run)(values, count, to);
}

void widen_bf16(const std::uint16_t* from, std::size_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(widen_run)(from, count, to);
}

void transpose_bf16_rows(const std::uint16_t* from, Strides strides, std::int64_t cols,
                         float* to) {
  HWY_DYNAMIC_DISPATCH(transpose_run)(from, strides, cols, to);
}

}  // namespace holdfast::tensor
#endif
