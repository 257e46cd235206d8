// See cpu_kernels.h and, for the layouts, cpu_packing.h. Computes
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    (semantics.md 3.7)
//   down_out[p]   = down_e activation[p] + bias
//   out[r]        = residual[r] + sum_k weights[r, k] down_out[r, k]
//
// A tile of 16 rows meets up to kMaxTokens of its expert's tokens while its codes are decoded once.
// Per (row, token) the additions have one order, whatever the number of tokens: eight columns are
// added up from a zero start, times the block's scale for MXFP4, and then added to the row's sum.
// So a pair's bits depend on its own x and expert alone. Codes and scales decode exactly; the sum
// of eight products before the scale differs from the reference only in rounding.
#include "ops/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/cpu_kernels.cc"
#include <algorithm>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "experts/cpu_kernels.h"
#include "experts/cpu_packing.h"
#include "tensor/codecs.h"

#ifndef HF_EXPERTS_CPU_KERNELS_ONCE
#define HF_EXPERTS_CPU_KERNELS_ONCE
namespace holdfast::experts::cpu {

inline constexpr int kMaxTokens = 8;
inline constexpr int kTile = static_cast<int>(kTileRows);
// How far ahead of a tile's codes or values the second-level cache is filled, so that decoding and
// reading overlap. Measured: 4 to 32 KB are alike. Past the matrix it does nothing.
inline constexpr std::size_t kPrefetchBytes = 8192;
// Magnitudes of E2M1 with the sign bit's eight after them.
alignas(64) inline constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                -2.0f, -3.0f, -4.0f, -6.0f};

inline bool is_expert(std::int32_t id, const MoeShape& shape) {
  return id >= 0 && id < shape.expert_count;
}

// Tiles of every expert, or rows: [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Where a kernel finds the input row of a pair: row pair / pairs_per_row of x.
struct Inputs {
  const float* x = nullptr;
  std::int64_t length = 0;
  std::int64_t pairs_per_row = 1;
};

// Some tokens of one expert: where each row of x starts and which pair it belongs to.
struct Tokens {
  const float* x[kMaxTokens];
  std::int64_t pair[kMaxTokens];
  int count = 0;
};

}  // namespace holdfast::experts::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace holdfast::experts::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most one tile wide; narrower vectors take the tile in parts.
using F32 = hn::CappedTag<float, 16>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;
using VU = hn::Vec<U32>;

// The value of the lowest nibble of each lane; the bits above it are ignored.
HWY_INLINE VF decode_nibble(VU lanes) {
  const F32 df;
  const U32 du;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
  const VF table = hn::Load(df, kE2M1);
  // The hardware ignores index bits above the table; Highway's debug checks do not.
  const VU index = HWY_IS_DEBUG_BUILD ? hn::And(lanes, hn::Set(du, MaxLanes(df) - 1)) : lanes;
  const VF value = hn::TableLookupLanes(table, hn::IndicesFromVec(df, index));
  if (MaxLanes(df) == 16) return value;
  // Eight lanes hold the magnitudes alone.
  const VU sign = hn::ShiftLeft<28>(hn::And(lanes, hn::Set(du, 8u)));
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), sign));
#else
  // From code 2 on a magnitude is the float32 whose exponent and top mantissa bit it holds.
  const hn::RebindToSigned<F32> di;
  const VU code = hn::And(lanes, hn::Set(du, 7u));
  const VF large = hn::BitCast(df, hn::Add(hn::ShiftLeft<22>(code), hn::Set(du, 0x3F000000u)));
  const VF small = hn::Mul(hn::ConvertTo(df, hn::BitCast(di, code)), hn::Set(df, 0.5f));
  const auto is_large = hn::Gt(hn::BitCast(di, code), hn::Set(di, 1));
  const VF value = hn::IfThenElse(hn::RebindMask(df, is_large), large, small);
  const VU sign = hn::ShiftLeft<28>(hn::And(lanes, hn::Set(du, 8u)));
  return hn::BitCast(df, hn::Or(hn::BitCast(du, value), sign));
#endif
}

// e8m0: 2^(b - 127) exactly, 2^-127 (subnormal) for 0, NaN for 255.
HWY_INLINE VF decode_scales(const std::uint8_t* from) {
  const F32 df;
  const U32 du;
  const hn::Rebind<std::uint8_t, F32> du8;
  const VU b = hn::PromoteTo(du, hn::LoadU(du8, from));
  const VU power = hn::Max(hn::ShiftLeft<23>(b), hn::Set(du, 0x00400000u));
  const VU nan_bit = hn::ShiftRight<8>(hn::Add(b, hn::Set(du, 1u)));
  return hn::BitCast(df, hn::Or(power, nan_bit));
}

// sums[t * kTile + row] = tile . x[t], for an MXFP4 tile of `columns`.
struct Mxfp4Tile {
  template <int kTokens>
  static HWY_INLINE void times(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                               const Tokens& tokens, float* sums) {
    const F32 df;
    const U32 du;
    const int lanes = static_cast<int>(hn::Lanes(df));
    const std::int64_t blocks = columns / tensor::kMxBlock;
    const auto* codes = reinterpret_cast<const std::uint32_t*>(matrix.weights) +
                        tile * blocks * (kBlockCodeBytes / 4);
    const std::uint8_t* scales = matrix.scales + tile * blocks * kTileRows;
    for (int part = 0; part < kTile; part += lanes) {
      VF sum[kTokens];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) sum[t] = hn::Zero(df);
      for (std::int64_t b = 0; b < blocks; ++b) {
        const VF scale = decode_scales(scales + b * kTileRows + part);
        for (int v = 0; v < 4; ++v) {
          const std::uint32_t* group = codes + (b * 4 + v) * kTile + part;
          __builtin_prefetch(group + kPrefetchBytes / sizeof(*group), 0, 2);
          const VU packed = hn::LoadU(du, group);
          const VF w0 = decode_nibble(packed);
          const VF w1 = decode_nibble(hn::ShiftRight<4>(packed));
          const VF w2 = decode_nibble(hn::ShiftRight<8>(packed));
          const VF w3 = decode_nibble(hn::ShiftRight<12>(packed));
          const VF w4 = decode_nibble(hn::ShiftRight<16>(packed));
          const VF w5 = decode_nibble(hn::ShiftRight<20>(packed));
          const VF w6 = decode_nibble(hn::ShiftRight<24>(packed));
          const VF w7 = decode_nibble(hn::ShiftRight<28>(packed));
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) {
            const float* x = tokens.x[t] + b * tensor::kMxBlock + v * 8;
            VF p = hn::Mul(w0, hn::Set(df, x[0]));
            p = hn::MulAdd(w1, hn::Set(df, x[1]), p);
            p = hn::MulAdd(w2, hn::Set(df, x[2]), p);
            p = hn::MulAdd(w3, hn::Set(df, x[3]), p);
            p = hn::MulAdd(w4, hn::Set(df, x[4]), p);
            p = hn::MulAdd(w5, hn::Set(df, x[5]), p);
            p = hn::MulAdd(w6, hn::Set(df, x[6]), p);
            p = hn::MulAdd(w7, hn::Set(df, x[7]), p);
            sum[t] = hn::MulAdd(p, scale, sum[t]);
          }
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) hn::StoreU(sum[t], df, sums + t * kTile + part);
    }
  }
};

HWY_INLINE VF load_bf16(const std::uint16_t* from) {
  const U32 du;
  const hn::Rebind<std::uint16_t, F32> du16;
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, from))));
}

// As Mxfp4Tile, for a bf16 tile.
struct Bf16Tile {
  template <int kTokens>
  static HWY_INLINE void times(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                               const Tokens& tokens, float* sums) {
    const F32 df;
    const int lanes = static_cast<int>(hn::Lanes(df));
    const auto* weights =
        reinterpret_cast<const std::uint16_t*>(matrix.weights) + tile * columns * kTile;
    for (int part = 0; part < kTile; part += lanes) {
      VF sum[kTokens];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) sum[t] = hn::Zero(df);
      for (std::int64_t first = 0; first < columns; first += 8) {
        const std::int64_t end = std::min<std::int64_t>(first + 8, columns);
        VF p[kTokens];
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) p[t] = hn::Zero(df);
        for (std::int64_t k = first; k < end; ++k) {
          const std::uint16_t* column = weights + k * kTile + part;
          __builtin_prefetch(column + kPrefetchBytes / sizeof(*column), 0, 2);
          const VF w = load_bf16(column);
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) {
            p[t] = hn::MulAdd(w, hn::Set(df, tokens.x[t][k]), p[t]);
          }
        }
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) sum[t] = hn::Add(sum[t], p[t]);
      }
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) hn::StoreU(sum[t], df, sums + t * kTile + part);
    }
  }
};

// One function per token count: each decodes the tile once for all of its tokens.
template <class Tile, int kTokens>
HWY_NOINLINE void tile_times(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                             const Tokens& tokens, float* sums) {
  Tile::template times<kTokens>(matrix, tile, columns, tokens, sums);
}

template <class Tile>
HWY_INLINE void multiply(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                         const Tokens& tokens, float* sums) {
  switch (tokens.count) {
    case 1: return tile_times<Tile, 1>(matrix, tile, columns, tokens, sums);
    case 2: return tile_times<Tile, 2>(matrix, tile, columns, tokens, sums);
    case 3: return tile_times<Tile, 3>(matrix, tile, columns, tokens, sums);
    case 4: return tile_times<Tile, 4>(matrix, tile, columns, tokens, sums);
    case 5: return tile_times<Tile, 5>(matrix, tile, columns, tokens, sums);
    case 6: return tile_times<Tile, 6>(matrix, tile, columns, tokens, sums);
    case 7: return tile_times<Tile, 7>(matrix, tile, columns, tokens, sums);
    default: return tile_times<Tile, 8>(matrix, tile, columns, tokens, sums);
  }
}

HWY_INLINE void tile_product(const Matrix& matrix, std::int64_t tile, std::int64_t columns,
                             const Tokens& tokens, float* sums) {
  if (matrix.scales != nullptr) {
    multiply<Mxfp4Tile>(matrix, tile, columns, tokens, sums);
  } else {
    multiply<Bf16Tile>(matrix, tile, columns, tokens, sums);
  }
}

// The constants of one expert.
struct Swiglu {
  float alpha = 0.0f, beta = 0.0f, limit = 0.0f;
};

// out[i] = g / (1 + exp(-alpha g)) * (u + beta) for a whole tile, g and u clamped. A NaN stays one.
HWY_INLINE void swiglu_tile(const float* gate, const float* up, Swiglu constants, float* out) {
  const F32 df;
  const VF limit = hn::Set(df, constants.limit);
  const VF lowest = hn::Neg(limit);
  const VF one = hn::Set(df, 1.0f);
  for (int i = 0; i < kTile; i += static_cast<int>(hn::Lanes(df))) {
    VF g = hn::LoadU(df, gate + i);
    VF u = hn::LoadU(df, up + i);
    g = hn::IfThenElse(hn::Gt(g, limit), limit, g);
    u = hn::IfThenElse(hn::Gt(u, limit), limit, u);
    u = hn::IfThenElse(hn::Lt(u, lowest), lowest, u);
    // Beyond 88 exp leaves float32; the quotient is below 1e-35 there either way.
    const VF power = hn::Min(hn::Mul(hn::Set(df, -constants.alpha), g), hn::Set(df, 88.0f));
    const VF gated = hn::Div(g, hn::Add(one, hn::Exp(df, power)));
    hn::StoreU(hn::Mul(gated, hn::Add(u, hn::Set(df, constants.beta))), df, out + i);
  }
}

// sums[t * kTile + row] += bias[row * stride], rows past the matrix left alone.
HWY_INLINE void add_bias(const std::uint16_t* bias, std::int64_t stride, std::int64_t rows,
                         const Tokens& tokens, float* sums) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float value = tensor::bf16_to_f32(bias[row * stride]);
    for (int t = 0; t < tokens.count; ++t) sums[t * kTile + row] += value;
  }
}

// One gate tile and its up tile for some tokens of one expert.
HWY_INLINE void gate_up_tile(const GateUpArgs& args, std::int64_t expert, std::int64_t tile,
                             const Tokens& tokens) {
  const std::int64_t intermediate = args.shape.intermediate;
  const std::int64_t tiles = (intermediate + kTile - 1) / kTile;
  const std::int64_t first = tile * kTile;
  const std::int64_t rows = std::min<std::int64_t>(kTile, intermediate - first);
  const std::uint16_t* bias = args.gate_up.bias + (expert * intermediate + first) * 2;
  HWY_ALIGN float gate[kMaxTokens * kTile];
  HWY_ALIGN float up[kMaxTokens * kTile];
  const std::int64_t packed_tile = (expert * tiles + tile) * 2;
  tile_product(args.gate_up, packed_tile, args.shape.hidden, tokens, gate);
  tile_product(args.gate_up, packed_tile + 1, args.shape.hidden, tokens, up);
  add_bias(bias, 2, rows, tokens, gate);
  add_bias(bias + 1, 2, rows, tokens, up);
  const Swiglu constants{args.alpha[expert], args.beta[expert], args.limit[expert]};
  for (int t = 0; t < tokens.count; ++t) {
    HWY_ALIGN float values[kTile];
    swiglu_tile(gate + t * kTile, up + t * kTile, constants, values);
    std::copy_n(values, rows, args.activation + tokens.pair[t] * intermediate + first);
  }
}

HWY_INLINE void down_tile(const DownArgs& args, std::int64_t expert, std::int64_t tile,
                          const Tokens& tokens) {
  const std::int64_t hidden = args.shape.hidden;
  const std::int64_t tiles = (hidden + kTile - 1) / kTile;
  const std::int64_t first = tile * kTile;
  const std::int64_t rows = std::min<std::int64_t>(kTile, hidden - first);
  HWY_ALIGN float sums[kMaxTokens * kTile];
  tile_product(args.down, expert * tiles + tile, args.shape.intermediate, tokens, sums);
  add_bias(args.down.bias + expert * hidden + first, 1, rows, tokens, sums);
  for (int t = 0; t < tokens.count; ++t) {
    std::copy_n(sums + t * kTile, rows, args.down_out + tokens.pair[t] * hidden + first);
  }
}

// Pairs [begin, end) of the groups, kMaxTokens at most.
HWY_INLINE Tokens take_tokens(const Groups& groups, const Inputs& inputs, std::int64_t begin,
                              std::int64_t end) {
  Tokens tokens;
  tokens.count = static_cast<int>(std::min<std::int64_t>(kMaxTokens, end - begin));
  for (int t = 0; t < tokens.count; ++t) {
    const std::int64_t pair = groups.pairs[begin + t];
    tokens.pair[t] = pair;
    tokens.x[t] = inputs.x + pair / inputs.pairs_per_row * inputs.length;
  }
  return tokens;
}

// Tiles [begin, end) of every expert that has tokens: a worker reads one stretch of each expert. A
// tile stays in the first-level cache for all of its tokens.
template <typename Run>
HWY_INLINE void for_tiles(const Groups& groups, std::int64_t expert_count, const Inputs& inputs,
                          Range tiles, const Run& run) {
  for (std::int64_t expert = 0; expert < expert_count; ++expert) {
    const std::int64_t first = groups.begin[expert];
    const std::int64_t last = groups.begin[expert + 1];
    if (first == last) continue;
    for (std::int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
      for (std::int64_t i = first; i < last; i += kMaxTokens) {
        run(expert, tile, take_tokens(groups, inputs, i, last));
      }
    }
  }
}

void gate_up_tiles(const GateUpArgs& args, Range tiles) {
  const Inputs inputs{args.x, args.shape.hidden, args.shape.experts_per_token};
  for_tiles(args.groups, args.shape.expert_count, inputs, tiles,
            [&](std::int64_t expert, std::int64_t tile, const Tokens& tokens)
                HWY_ATTR { gate_up_tile(args, expert, tile, tokens); });
}

void down_tiles(const DownArgs& args, Range tiles) {
  const Inputs inputs{args.activation, args.shape.intermediate, 1};
  for_tiles(args.groups, args.shape.expert_count, inputs, tiles,
            [&](std::int64_t expert, std::int64_t tile, const Tokens& tokens)
                HWY_ATTR { down_tile(args, expert, tile, tokens); });
}

// out[h] = residual[h] + sum_k weights[k] down_out[k, h] for one row, k in order.
HWY_INLINE void combine_row(const CombineArgs& args, std::int64_t row) {
  const F32 df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const std::int64_t hidden = args.shape.hidden;
  const std::int64_t first = row * args.shape.experts_per_token;
  const std::int64_t last = first + args.shape.experts_per_token;
  const float* residual = args.residual + row * hidden;
  float* out = args.out + row * hidden;
  std::int64_t h = 0;
  for (; h + lanes <= hidden; h += lanes) {
    VF sum = hn::Zero(df);
    for (std::int64_t p = first; p < last; ++p) {
      if (!is_expert(args.ids[p], args.shape)) continue;
      const VF y = hn::LoadU(df, args.down_out + p * hidden + h);
      sum = hn::Add(sum, hn::Mul(hn::Set(df, args.weights[p]), y));
    }
    hn::StoreU(hn::Add(hn::LoadU(df, residual + h), sum), df, out + h);
  }
  for (; h < hidden; ++h) {
    float sum = 0.0f;
    for (std::int64_t p = first; p < last; ++p) {
      if (is_expert(args.ids[p], args.shape)) {
        sum += args.weights[p] * args.down_out[p * hidden + h];
      }
    }
    out[h] = residual[h] + sum;
  }
}

void combine_rows(const CombineArgs& args, Range rows) {
  for (std::int64_t r = rows.begin; r < rows.end; ++r) combine_row(args, r);
}

}  // namespace holdfast::experts::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast::experts::cpu {

HWY_EXPORT(gate_up_tiles);
HWY_EXPORT(down_tiles);
HWY_EXPORT(combine_rows);

namespace {

std::int64_t active_row_count(const std::int32_t* active_rows, const MoeShape& shape) {
  return std::clamp<std::int64_t>(*active_rows, 0, shape.n);
}

}  // namespace

// A counting sort: stable, so an expert's pairs ascend. Pairs of no expert are left out.
void group_pairs(const GroupArgs& args, device::WorkerPool&) {
  const MoeShape& shape = args.shape;
  const std::int64_t pairs = active_row_count(args.active_rows, shape) * shape.experts_per_token;
  std::int32_t* begin = args.group_begin;
  std::fill_n(begin, shape.expert_count + 1, 0);
  for (std::int64_t p = 0; p < pairs; ++p) {
    if (is_expert(args.ids[p], shape)) ++begin[args.ids[p] + 1];
  }
  for (std::int64_t e = 0; e < shape.expert_count; ++e) begin[e + 1] += begin[e];
  for (std::int64_t p = 0; p < pairs; ++p) {
    if (is_expert(args.ids[p], shape)) {
      args.group_pairs[begin[args.ids[p]]++] = static_cast<std::int32_t>(p);
    }
  }
  // Every begin has moved to its group's end, which is the next group's begin.
  for (std::int64_t e = shape.expert_count; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
}

void gate_up(const GateUpArgs& args, device::WorkerPool& workers) {
  const auto run = HWY_DYNAMIC_DISPATCH(gate_up_tiles);
  workers.parallel_for((args.shape.intermediate + kTile - 1) / kTile, 1,
                       [&](std::int64_t begin, std::int64_t end, int) { run(args, {begin, end}); });
}

void down(const DownArgs& args, device::WorkerPool& workers) {
  const auto run = HWY_DYNAMIC_DISPATCH(down_tiles);
  workers.parallel_for((args.shape.hidden + kTile - 1) / kTile, 1,
                       [&](std::int64_t begin, std::int64_t end, int) { run(args, {begin, end}); });
}

void combine(const CombineArgs& args, device::WorkerPool& workers) {
  const auto run = HWY_DYNAMIC_DISPATCH(combine_rows);
  workers.parallel_for(active_row_count(args.active_rows, args.shape), 1,
                       [&](std::int64_t begin, std::int64_t end, int) { run(args, {begin, end}); });
}

}  // namespace holdfast::experts::cpu
#endif
