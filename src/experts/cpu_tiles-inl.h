// The product of one packed tile of 16 rows with some tokens, for each codec; compiled once for
// each instruction set. Included by cpu_kernels.cc alone.
//
// A tile meets up to kMaxTokens of its expert's tokens while its codes are decoded once. Per (row,
// token) the additions have one order, whatever the number of tokens: eight columns are added up
// from a zero start, times the scale of their group where there is one, and then added to the
// row's sum. So a pair's bits depend on its own x and expert alone. Codes and scales decode
// exactly; the sum of eight products before the scale differs from the reference only in rounding.
#if defined(HF_EXPERTS_CPU_TILES) == defined(HWY_TARGET_TOGGLE)
#ifdef HF_EXPERTS_CPU_TILES
#undef HF_EXPERTS_CPU_TILES
#else
#define HF_EXPERTS_CPU_TILES
#endif

#include <algorithm>

#include "experts/cpu_kernels.h"
#include "experts/cpu_packing.h"
#include "hwy/highway.h"
#include "experts/cpu_decoders-inl.h"

HWY_BEFORE_NAMESPACE();
namespace holdfast::experts::cpu::HWY_NAMESPACE {

// A codec has kUnitBytes and columns(): how a tile's rows store `kColumns` columns, and
// decode(unit, zero, w): rows [part, part + lanes) of those columns.
struct Bf16Codec {
  static constexpr int kUnitBytes = 2, kColumns = 1;
  static HWY_INLINE void decode(const std::byte* unit, VF, VF* w) {
    w[0] = load_bf16(reinterpret_cast<const std::uint16_t*>(unit));
  }
};
struct F16Codec {
  static constexpr int kUnitBytes = 2, kColumns = 1;
  static HWY_INLINE void decode(const std::byte* unit, VF, VF* w) {
    w[0] = load_f16(reinterpret_cast<const std::uint16_t*>(unit));
  }
};
struct F32Codec {
  static constexpr int kUnitBytes = 4, kColumns = 1;
  static HWY_INLINE void decode(const std::byte* unit, VF, VF* w) {
    w[0] = hn::LoadU(F32(), reinterpret_cast<const float*>(unit));
  }
};
struct E4m3Codec {
  static constexpr int kUnitBytes = 1, kColumns = 1;
  static HWY_INLINE void decode(const std::byte* unit, VF, VF* w) {
    w[0] = decode_e4m3(reinterpret_cast<const std::uint8_t*>(unit));
  }
};
struct E2m1Codec {
  static constexpr int kUnitBytes = 4, kColumns = 8;
  static HWY_INLINE void decode(const std::byte* unit, VF, VF* w) {
    const VU packed = hn::LoadU(U32(), reinterpret_cast<const std::uint32_t*>(unit));
    w[0] = decode_e2m1(F32(), packed);
    w[1] = decode_e2m1(F32(), hn::ShiftRight<4>(packed));
    w[2] = decode_e2m1(F32(), hn::ShiftRight<8>(packed));
    w[3] = decode_e2m1(F32(), hn::ShiftRight<12>(packed));
    w[4] = decode_e2m1(F32(), hn::ShiftRight<16>(packed));
    w[5] = decode_e2m1(F32(), hn::ShiftRight<20>(packed));
    w[6] = decode_e2m1(F32(), hn::ShiftRight<24>(packed));
    w[7] = decode_e2m1(F32(), hn::ShiftRight<28>(packed));
  }
};
// A code in the low mantissa bits of 2^23 is 2^23 + code; `zero` is 2^23 + zero.
struct Int4Codec {
  static constexpr int kUnitBytes = 4, kColumns = 8;
  static HWY_INLINE VF value(VU shifted, VF zero) {
    const U32 du;
    const VU bits = hn::Or(hn::And(shifted, hn::Set(du, 15u)), hn::Set(du, 0x4B000000u));
    return hn::Sub(hn::BitCast(F32(), bits), zero);
  }
  static HWY_INLINE void decode(const std::byte* unit, VF zero, VF* w) {
    const VU packed = hn::LoadU(U32(), reinterpret_cast<const std::uint32_t*>(unit));
    w[0] = value(packed, zero);
    w[1] = value(hn::ShiftRight<4>(packed), zero);
    w[2] = value(hn::ShiftRight<8>(packed), zero);
    w[3] = value(hn::ShiftRight<12>(packed), zero);
    w[4] = value(hn::ShiftRight<16>(packed), zero);
    w[5] = value(hn::ShiftRight<20>(packed), zero);
    w[6] = value(hn::ShiftRight<24>(packed), zero);
    w[7] = value(hn::ShiftRight<28>(packed), zero);
  }
};

// 2^23 and the zeros of rows [part, part + lanes) of group number `index`.
HWY_INLINE VF load_zero(const Matrix& matrix, std::int64_t index, int part) {
  const F32 df;
  const U32 du;
  const hn::Rebind<std::uint8_t, F32> du8;
  if (matrix.zeros == nullptr) return hn::Set(df, 0x800008p0f);
  const VU zero = hn::PromoteTo(du, hn::LoadU(du8, matrix.zeros + index * kTile + part));
  return hn::BitCast(df, hn::Or(zero, hn::Set(du, 0x4B000000u)));
}

// sums[t * kTile + row] = tile . x[t]
template <class C, int kTokens>
HWY_NOINLINE void tile_times(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                             const Tokens& tokens, float* sums) {
  const F32 df;
  const int lanes = static_cast<int>(hn::Lanes(df));
  constexpr std::int64_t kUnit = kTile * C::kUnitBytes;
  const bool scaled = matrix.group_scale != GroupScale::kNone;
  const std::int64_t group = scaled ? matrix.group : columns;
  const std::int64_t groups = (columns + group - 1) / group;
  for (int part = 0; part < kTile; part += lanes) {
    const std::byte* unit = matrix.weights + tile * (columns / C::kColumns) * kUnit +
                            static_cast<std::int64_t>(part) * C::kUnitBytes;
    VF sum[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) sum[t] = hn::Zero(df);
    for (std::int64_t g = 0, k = 0; g < groups; ++g) {
      const VF scale = load_scale(matrix, tile * groups + g, part);
      const VF zero = load_zero(matrix, tile * groups + g, part);
      const std::int64_t end = std::min(k + group, columns);
      for (; k < end; k += 8) {
        const std::int64_t count = std::min<std::int64_t>(8, end - k);
        VF p[kTokens];
        if (count == 8) {
          VF w[8];
#pragma GCC unroll 8
          for (int i = 0; i < 8; i += C::kColumns) {
            __builtin_prefetch(unit + kPrefetchBytes, 0, 2);
            C::decode(unit, zero, w + i);
            unit += kUnit;
          }
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) {
            const float* x = tokens.x[t] + k;
            p[t] = hn::Mul(w[0], hn::Set(df, x[0]));
#pragma GCC unroll 8
            for (int i = 1; i < 8; ++i) p[t] = hn::MulAdd(w[i], hn::Set(df, x[i]), p[t]);
          }
        } else {
          // Only codecs of one column to a unit have an odd end.
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) p[t] = hn::Zero(df);
          for (std::int64_t i = 0; i < count; ++i) {
            VF w[8];
            C::decode(unit, zero, w);
            unit += kUnit;
#pragma GCC unroll 8
            for (int t = 0; t < kTokens; ++t) {
              p[t] = hn::MulAdd(w[0], hn::Set(df, tokens.x[t][k + i]), p[t]);
            }
          }
        }
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) sum[t] = hn::MulAdd(p[t], scale, sum[t]);
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) hn::StoreU(sum[t], df, sums + t * kTile + part);
  }
}

template <class C>
HWY_INLINE void multiply(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                         const Tokens& tokens, float* sums) {
  switch (tokens.count) {
    case 1: return tile_times<C, 1>(matrix, tile, columns, tokens, sums);
    case 2: return tile_times<C, 2>(matrix, tile, columns, tokens, sums);
    case 3: return tile_times<C, 3>(matrix, tile, columns, tokens, sums);
    case 4: return tile_times<C, 4>(matrix, tile, columns, tokens, sums);
    case 5: return tile_times<C, 5>(matrix, tile, columns, tokens, sums);
    case 6: return tile_times<C, 6>(matrix, tile, columns, tokens, sums);
    case 7: return tile_times<C, 7>(matrix, tile, columns, tokens, sums);
    default: return tile_times<C, 8>(matrix, tile, columns, tokens, sums);
  }
}

// Then the scales of rows and of the matrix. `tile` counts the matrix's own, of all experts.
HWY_INLINE void tile_product(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                             const Tokens& tokens, float* sums) {
  switch (matrix.codec) {
    case Codec::kBF16: return multiply<Bf16Codec>(matrix, tile, columns, tokens, sums);
    case Codec::kF16: return multiply<F16Codec>(matrix, tile, columns, tokens, sums);
    case Codec::kF32: return multiply<F32Codec>(matrix, tile, columns, tokens, sums);
    case Codec::kE4M3: return multiply<E4m3Codec>(matrix, tile, columns, tokens, sums);
    case Codec::kE2M1: return multiply<E2m1Codec>(matrix, tile, columns, tokens, sums);
    case Codec::kInt4: return multiply<Int4Codec>(matrix, tile, columns, tokens, sums);
  }
}

}  // namespace holdfast::experts::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
