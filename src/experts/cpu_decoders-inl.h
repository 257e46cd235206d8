// Codes and scales of a packed tile's rows to float32 vectors, exactly; compiled once for each
// instruction set. Included by cpu_tiles-inl.h and field_kernels.cc.
#if defined(HF_EXPERTS_CPU_DECODERS) == defined(HWY_TARGET_TOGGLE)
#ifdef HF_EXPERTS_CPU_DECODERS
#undef HF_EXPERTS_CPU_DECODERS
#else
#define HF_EXPERTS_CPU_DECODERS
#endif

#include "experts/cpu_kernels.h"
#include "experts/cpu_packing.h"
#include "hwy/highway.h"

#ifndef HF_EXPERTS_CPU_DECODERS_ONCE
#define HF_EXPERTS_CPU_DECODERS_ONCE
namespace holdfast::experts::cpu {

inline constexpr int kTile = static_cast<int>(kTileRows);
// Magnitudes of E2M1 with the sign bit's eight after them.
alignas(64) inline constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace holdfast::experts::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace holdfast::experts::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most one tile wide; narrower vectors take the tile in parts.
using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;

// The value of the lowest nibble of each lane; the bits above it are ignored.
template <class D>
HWY_INLINE hn::Vec<D> decode_e2m1(D df, hn::Vec<hn::RebindToUnsigned<D>> lanes) {
  const hn::RebindToUnsigned<D> du;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  const auto table = hn::Load(df, kE2M1);
  // The hardware ignores index bits above the table; Highway's debug checks do not.
  const auto index = HWY_IS_DEBUG_BUILD ? hn::And(lanes, hn::Set(du, MaxLanes(df) - 1)) : lanes;
  const auto value = hn::TableLookupLanes(table, hn::IndicesFromVec(df, index));
  if (MaxLanes(df) == 16) return value;
  // Eight lanes hold the magnitudes alone.
  const auto sign = hn::ShiftLeft<28>(hn::And(lanes, hn::Set(du, 8u)));
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), sign));
#else
  // From code 2 on a magnitude is the float32 whose exponent and top mantissa bit it holds.
  const hn::RebindToSigned<D> di;
  const auto code = hn::And(lanes, hn::Set(du, 7u));
  const auto large = hn::BitCast(df, hn::Add(hn::ShiftLeft<22>(code), hn::Set(du, 0x3F000000u)));
  const auto small = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, code)), hn::Set(df, 0.5f));
  const auto is_large = hn::Gt(hn::BitCast(di, code), hn::Set(di, 1));
  const auto value = hn::IfThenElse(hn::RebindMask(df, is_large), large, small);
  const auto sign = hn::ShiftLeft<28>(hn::And(lanes, hn::Set(du, 8u)));
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), sign));
#endif
}

// e8m0: 2^(b - 127) exactly, 2^-127 (subnormal) for 0, NaN for 255.
HWY_INLINE VF decode_e8m0(const std::uint8_t* from) {
  const F32 df;
  const U32 du;
  const hn::Rebind<std::uint8_t, F32> du8;
  const VU b = hn::PromoteTo(du, hn::LoadU(du8, from));
  const VU power = hn::Max(hn::ShiftLeft<23>(b), hn::Set(du, 0x00400000u));
  const VU nan_bit = hn::ShiftRight<8>(hn::Add(b, hn::Set(du, 1u)));
  return hn::BitCast(df, hn::Or(power, nan_bit));
}

// The bits of an e4m3 moved to where an f16 has them are its value / 256, subnormals included; 7F
// is its only NaN.
HWY_INLINE VF decode_e4m3(const std::uint8_t* from) {
  const F32 df;
  const hn::Rebind<std::uint8_t, F32> du8;
  const hn::Rebind<std::uint16_t, F32> du16;
  const hn::Rebind<hwy::float16_t, F32> df16;
  const auto b = hn::PromoteTo(du16, hn::LoadU(du8, from));
  const auto magnitude = hn::And(b, hn::Set(du16, std::uint16_t{0x7F}));
  const auto sign = hn::ShiftLeft<8>(hn::And(b, hn::Set(du16, std::uint16_t{0x80})));
  const auto nan = hn::VecFromMask(du16, hn::Eq(magnitude, hn::Set(du16, std::uint16_t{0x7F})));
  const auto bits = hn::Or(hn::Or(hn::ShiftLeft<7>(magnitude), sign),
                           hn::And(nan, hn::Set(du16, std::uint16_t{0x7E00})));
  return hn::Mul(hn::PromoteTo(df, hn::BitCast(df16, bits)), hn::Set(df, 256.0f));
}

HWY_INLINE VF load_bf16(const std::uint16_t* from) {
  const U32 du;
  const hn::Rebind<std::uint16_t, F32> du16;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, from))));
}

HWY_INLINE VF load_f16(const std::uint16_t* from) {
  const hn::Rebind<std::uint16_t, F32> du16;
  const hn::Rebind<hwy::float16_t, F32> df16;
  return hn::PromoteTo(F32(), hn::BitCast(df16, hn::LoadU(du16, from)));
}

// Of rows [part, part + lanes) of scale number `index`, which is tile * groups + group.
HWY_INLINE VF load_scale(const Matrix& matrix, std::int64_t index, int part) {
  const F32 df;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(matrix.scales);
  const auto* words = reinterpret_cast<const std::uint16_t*>(matrix.scales);
  const auto* floats = reinterpret_cast<const float*>(matrix.scales);
  const std::int64_t at = index * kTile + part;
  switch (matrix.group_scale) {
    case GroupScale::kNone: break;
    case GroupScale::kE8M0: return decode_e8m0(bytes + at);
    case GroupScale::kE4M3: return decode_e4m3(bytes + at);
    case GroupScale::kF16: return load_f16(words + at);
    case GroupScale::kBF16: return load_bf16(words + at);
    case GroupScale::kF32: return hn::LoadU(df, floats + at);
    case GroupScale::kF32Tile: return hn::Set(df, floats[index]);
  }
  return hn::Set(df, 1.0f);
}

}  // namespace holdfast::experts::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
