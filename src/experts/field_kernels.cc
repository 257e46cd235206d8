// See field_kernels.h. A stretch of a row is decoded once for all pairs of its expert, scales
// included, and then multiplied with each. Per (row, pair) the additions have one order, whatever
// the number of pairs: the lanes of a stretch, then the stretches.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/field_kernels.cc"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "experts/field_kernels.h"
#include "experts/round_inputs.h"
#include "tensor/int4_codecs.h"

#ifndef HF_EXPERTS_FIELD_KERNELS_ONCE
#define HF_EXPERTS_FIELD_KERNELS_ONCE
namespace holdfast::experts::field {

inline constexpr int kOctet = 8;
// Columns that are decoded at a time: they stay in the first-level cache.
inline constexpr std::int64_t kStretch = 2048;

// Columns [begin, begin + count) of a row; both are multiples of 64, count is at most kStretch.
struct Stretch {
  std::int64_t expert = 0;
  std::int64_t row = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

inline constexpr int kMaxPairs = 64;

// Some pairs of one expert, and where each one's inputs are.
struct Pairs {
  const float* x[kMaxPairs];
  std::int64_t pair[kMaxPairs];
  int count = 0;
};

}  // namespace holdfast::experts::field
#endif

#include "experts/cpu_decoders-inl.h"

HWY_BEFORE_NAMESPACE();
namespace holdfast::experts::field::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace decoders = cpu::HWY_NAMESPACE;
using decoders::F32;
using decoders::VF;
using F32x8 = hn::CappedTag<float, kOctet>;

// `count` units of the row from number `first` on, in their order: where they lie, or in `buffer`.
template <class T>
HWY_INLINE const T* units_of(const Matrix& m, const Stretch& at, std::int64_t first,
                             std::int64_t count, T* buffer) {
  const FieldLayout& layout = m.layout;
  const T* from = reinterpret_cast<const T*>(m.weights) + at.expert * layout.rows * layout.units;
  if (layout.keeps_rows_together()) return from + layout.place(at.row, first);
  constexpr std::int64_t kPeriod = FieldLayout::kPeriod;
  std::int64_t places[kPeriod];
  for (std::int64_t i = 0; i < kPeriod; ++i) places[i] = layout.place(at.row, i);
  const std::int64_t step = layout.period_step();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t unit = first + i;
    buffer[i] = from[unit / kPeriod * step + places[unit % kPeriod]];
  }
  return buffer;
}

// Codecs of one column to a unit; load(from) is a vector of them.
template <class T, class Load>
HWY_INLINE void decode_each(const Matrix& m, const Stretch& at, const Load& load, float* w) {
  const F32 df;
  HWY_ALIGN T buffer[kStretch];
  const T* units = units_of(m, at, at.begin, at.count, buffer);
  for (std::int64_t i = 0; i < at.count; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    hn::StoreU(load(units + i), df, w + i);
  }
}

// Codecs of eight columns to a word: value(codes) is a vector of them.
template <class Value>
HWY_INLINE void decode_words(const Matrix& m, const Stretch& at, const Value& value, float* w) {
  const F32x8 df;
  const hn::RebindToUnsigned<F32x8> du;
  HWY_ALIGN std::uint32_t buffer[kStretch / kOctet];
  const std::int64_t count = at.count / kOctet;
  const std::uint32_t* words = units_of(m, at, at.begin / kOctet, count, buffer);
  HWY_ALIGN std::uint32_t shifts[kOctet];
  for (int i = 0; i < kOctet; ++i) {
    shifts[i] = static_cast<std::uint32_t>(4 * nibble_place(m.layout.order, i));
  }
  for (std::size_t part = 0; part < kOctet; part += hn::Lanes(df)) {
    const auto shift = hn::Load(du, shifts + part);
    for (std::int64_t v = 0; v < count; ++v) {
      const auto codes = hn::And(hn::Shr(hn::Set(du, words[v]), shift), hn::Set(du, 15u));
      hn::StoreU(value(codes), df, w + v * kOctet + static_cast<std::int64_t>(part));
    }
  }
}

// w[i] = the code of column i as a number, before its zero and its scale.
HWY_INLINE void decode_codes(const Matrix& m, const Stretch& at, float* w) {
  using Codes = hn::Vec<hn::RebindToUnsigned<F32x8>>;
  switch (m.codec) {
    case cpu::Codec::kBF16:
      return decode_each<std::uint16_t>(
          m, at, [](const std::uint16_t* from) HWY_ATTR { return decoders::load_bf16(from); }, w);
    case cpu::Codec::kF16:
      return decode_each<std::uint16_t>(
          m, at, [](const std::uint16_t* from) HWY_ATTR { return decoders::load_f16(from); }, w);
    case cpu::Codec::kF32:
      return decode_each<float>(
          m, at, [](const float* from) HWY_ATTR { return hn::LoadU(F32(), from); }, w);
    case cpu::Codec::kE4M3:
      return decode_each<std::uint8_t>(
          m, at, [](const std::uint8_t* from) HWY_ATTR { return decoders::decode_e4m3(from); }, w);
    case cpu::Codec::kE2M1:
      return decode_words(
          m, at, [](Codes codes) HWY_ATTR { return decoders::decode_e2m1(F32x8(), codes); }, w);
    case cpu::Codec::kInt4:
      return decode_words(
          m, at,
          [](Codes codes) HWY_ATTR {
            const hn::RebindToSigned<F32x8> di;
            return hn::ConvertTo(F32x8(), hn::BitCast(di, codes));
          },
          w);
  }
}

// scales[i] = the scale of group first + i of the row.
template <class T, class Load>
HWY_INLINE void load_each_scale(const Matrix& m, const Stretch& at, const Load& load,
                                float* scales) {
  const F32 df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  const FieldScaleLayout& layout = m.scale_layout;
  const T* from = reinterpret_cast<const T*>(m.scales) + at.expert * layout.rows * layout.groups;
  for (std::int64_t i = 0; i < at.count; i += lanes) {
    HWY_ALIGN T some[16] = {};
    for (std::int64_t j = 0; j < std::min(lanes, at.count - i); ++j) {
      some[j] = from[layout.place(at.row, at.begin + i + j)];
    }
    hn::StoreU(load(some), df, scales + i);
  }
}

// Here a stretch is one of groups. `scales` has room for a vector more.
HWY_INLINE void load_scales(const Matrix& m, const Stretch& at, float* scales) {
  switch (m.group_scale) {
    case cpu::GroupScale::kNone: return;
    case cpu::GroupScale::kE8M0:
      return load_each_scale<std::uint8_t>(
          m, at, [](const std::uint8_t* from) HWY_ATTR { return decoders::decode_e8m0(from); },
          scales);
    case cpu::GroupScale::kE4M3:
      return load_each_scale<std::uint8_t>(
          m, at, [](const std::uint8_t* from) HWY_ATTR { return decoders::decode_e4m3(from); },
          scales);
    case cpu::GroupScale::kF16:
      return load_each_scale<std::uint16_t>(
          m, at, [](const std::uint16_t* from) HWY_ATTR { return decoders::load_f16(from); },
          scales);
    case cpu::GroupScale::kBF16:
      return load_each_scale<std::uint16_t>(
          m, at, [](const std::uint16_t* from) HWY_ATTR { return decoders::load_bf16(from); },
          scales);
    case cpu::GroupScale::kF32:
    case cpu::GroupScale::kF32Tile:
      return load_each_scale<float>(
          m, at, [](const float* from) HWY_ATTR { return hn::LoadU(F32(), from); }, scales);
  }
}

// w = the weights of the stretch: (code - zero) * scale, where there are any.
void decode_stretch(const Matrix& m, const Stretch& at, float* w) {
  decode_codes(m, at, w);
  if (m.group_scale == cpu::GroupScale::kNone) return;
  const F32x8 df;
  const std::int64_t end = at.begin + at.count;
  const std::int64_t first = at.begin / m.group;
  HWY_ALIGN float scales[kStretch / kOctet + 16];
  load_scales(m, {at.expert, at.row, first, (end - 1) / m.group + 1 - first}, scales);
  const std::uint8_t* zeros =
      m.zeros == nullptr
          ? nullptr
          : m.zeros + (at.expert * m.layout.rows + at.row) * m.scale_layout.groups + first;
  const float symmetric = m.codec == cpu::Codec::kInt4 ? tensor::kInt4SymmetricZero : 0.0f;
  for (std::int64_t k = at.begin, g = 0; k < end; ++g) {
    const auto scale = hn::Set(df, scales[g]);
    const auto zero = hn::Set(df, zeros == nullptr ? symmetric : static_cast<float>(zeros[g]));
    for (const std::int64_t next = std::min(end, (first + g + 1) * m.group); k < next;
         k += static_cast<std::int64_t>(hn::Lanes(df))) {
      float* to = w + (k - at.begin);
      hn::StoreU(hn::Mul(hn::Sub(hn::LoadU(df, to), zero), scale), df, to);
    }
  }
}

// sums[t] += w . x[t]
template <int kCount>
HWY_INLINE void add_products(const float* w, std::int64_t count, const float* const* x,
                             std::int64_t begin, float* sums) {
  const F32 df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(df));
  VF even[kCount], odd[kCount];
#pragma GCC unroll 4
  for (int t = 0; t < kCount; ++t) even[t] = odd[t] = hn::Zero(df);
  for (std::int64_t k = 0; k < count; k += 2 * lanes) {
    const VF w0 = hn::LoadU(df, w + k);
    const VF w1 = hn::LoadU(df, w + k + lanes);
#pragma GCC unroll 4
    for (int t = 0; t < kCount; ++t) {
      even[t] = hn::MulAdd(w0, hn::LoadU(df, x[t] + begin + k), even[t]);
      odd[t] = hn::MulAdd(w1, hn::LoadU(df, x[t] + begin + k + lanes), odd[t]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kCount; ++t) {
    sums[t] += hn::GetLane(hn::SumOfLanes(df, hn::Add(even[t], odd[t])));
  }
}

// sums[t] += the stretch, decoded in w, times x[t], for `count` pairs.
void multiply_stretch(const Stretch& at, const float* w, const Pairs& pairs, float* sums) {
  int t = 0;
  for (; t + 4 <= pairs.count; t += 4) {
    add_products<4>(w, at.count, pairs.x + t, at.begin, sums + t);
  }
  for (; t < pairs.count; ++t) add_products<1>(w, at.count, pairs.x + t, at.begin, sums + t);
}

}  // namespace holdfast::experts::field::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast::experts::field {

HWY_EXPORT(decode_stretch);
HWY_EXPORT(multiply_stretch);

namespace {

bool is_expert(std::int32_t id, const cpu::MoeShape& shape) {
  return id >= 0 && id < shape.expert_count;
}

struct RowOf {
  std::int64_t expert = 0;
  std::int64_t row = 0;
  std::int64_t begin = 0;
};

// Of the groups' entries [begin, end), the first kMaxPairs.
template <typename Args>
Pairs take_pairs(const Args& args, std::int64_t begin, std::int64_t end) {
  Pairs pairs;
  pairs.count = static_cast<int>(std::min<std::int64_t>(kMaxPairs, end - begin));
  for (int t = 0; t < pairs.count; ++t) {
    pairs.pair[t] = args.groups.pairs[begin + t];
    pairs.x[t] = args.inputs + pairs.pair[t] * args.matrix.columns;
  }
  return pairs;
}

// The row times each pair's x over columns [begin, columns): the accumulators, before alpha and
// bias.
void row_times(const Matrix& m, const RowOf& row, const Pairs& pairs, float* sums) {
  const auto decode = HWY_DYNAMIC_DISPATCH(decode_stretch);
  const auto multiply = HWY_DYNAMIC_DISPATCH(multiply_stretch);
  HWY_ALIGN float w[kStretch];
  std::fill_n(sums, pairs.count, 0.0f);
  for (std::int64_t k = row.begin; k < m.columns; k += kStretch) {
    const Stretch at{row.expert, row.row, k, std::min(kStretch, m.columns - k)};
    decode(m, at, w);
    multiply(at, w, pairs, sums);
  }
  if (m.row_scales == nullptr) return;
  const float scale = m.row_scales[row.expert * m.layout.rows + row.row];
  for (int t = 0; t < pairs.count; ++t) sums[t] *= scale;
}

float factor(const float* values, std::int64_t expert) {
  return values == nullptr ? 1.0f : values[expert];
}
float bias(const Matrix& m, std::int64_t expert, std::int64_t row) {
  return m.bias == nullptr ? 0.0f : m.bias[expert * m.layout.rows + row];
}

// Where the sums of a tile begin: what its lock says is done already.
std::int64_t take_turns(std::int32_t* locks, std::int64_t tile, std::int64_t columns) {
  if (locks == nullptr) return 0;
  const std::int32_t turn = locks[tile];
  if (turn != 0) return turn == 1 ? columns / 2 / kOctet * kOctet : columns;
  locks[tile] = 2;
  return 0;
}
void release(std::int32_t* locks, std::int64_t tile, std::int64_t begin) {
  if (locks != nullptr && begin == 0) locks[tile] = 0;
}

float gated(const GateUpArgs& args, std::int64_t expert, float gate, float up) {
  const float gate_alpha = factor(args.gate_alpha, expert);
  const float up_alpha = factor(args.up_alpha, expert);
  const float gate_limit = args.gate_limit[expert];
  const float up_limit = args.up_limit[expert];
  if (args.raw_limits == 0) {
    gate *= gate_alpha;
    up *= up_alpha;
  }
  gate = gate > gate_limit ? gate_limit : gate;
  up = up > up_limit ? up_limit : (up < -up_limit ? -up_limit : up);
  up += args.beta[expert];
  if (args.raw_limits != 0) {
    gate *= gate_alpha;
    up *= up_alpha;
  }
  return gate / (1.0f + std::exp(-args.swiglu_alpha[expert] * gate)) * up;
}

// Rows [begin, end) of gate and up, with the sums from column `first` on.
struct TileRows {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t first = 0;
};

void gate_up_rows(const GateUpArgs& args, const TileRows& rows, std::int64_t e,
                  const Pairs& pairs) {
  const Matrix& m = args.matrix;
  const std::int64_t inner = m.layout.rows / 2;
  const float scale = factor(args.input_factor, e);
  float gate[kMaxPairs];
  float up[kMaxPairs];
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    const std::int64_t gate_at = gate_row(args.halves, m.layout.rows, i);
    const std::int64_t up_at = up_row(args.halves, m.layout.rows, i);
    row_times(m, {e, gate_at, rows.first}, pairs, gate);
    row_times(m, {e, up_at, rows.first}, pairs, up);
    for (int t = 0; t < pairs.count; ++t) {
      // A format has an alpha or biases, not both: what is added here is of the accumulator.
      args.activation[pairs.pair[t] * inner + i] = gated(
          args, e, gate[t] * scale + bias(m, e, gate_at), up[t] * scale + bias(m, e, up_at));
    }
  }
}

void down_rows(const DownArgs& args, const TileRows& rows, std::int64_t e, const Pairs& pairs) {
  const Matrix& m = args.matrix;
  float sums[kMaxPairs];
  for (std::int64_t h = rows.begin; h < rows.end; ++h) {
    row_times(m, {e, h, rows.first}, pairs, sums);
    for (int t = 0; t < pairs.count; ++t) {
      const float sum = sums[t] * factor(args.input_factor, e) * factor(args.alpha, e);
      args.down_out[pairs.pair[t] * args.shape.hidden + h] = sum + bias(m, e, h);
    }
  }
}

// Calls run(rows, expert, pairs) for rows [0, count) of every expert that has pairs, kMaxPairs of
// them at a time; a tile of rows belongs to a worker.
template <typename Args, typename Run>
void for_tiles(const Args& args, std::int64_t count, device::WorkerPool& workers, const Run& run) {
  const std::int64_t columns = args.matrix.columns;
  const std::int64_t tiles = (count + kLockRows - 1) / kLockRows;
  workers.parallel_for(tiles, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const std::int64_t first = take_turns(args.locks, tile, columns);
      const TileRows rows{tile * kLockRows, std::min(count, (tile + 1) * kLockRows), first};
      for (std::int64_t e = 0; e < args.shape.expert_count; ++e) {
        for (std::int64_t g = args.groups.begin[e]; g < args.groups.begin[e + 1]; g += kMaxPairs) {
          run(rows, e, take_pairs(args, g, args.groups.begin[e + 1]));
        }
      }
      release(args.locks, tile, first);
    }
  });
}

void prepare_pair(const PrepareArgs& args, std::int64_t pair) {
  const std::int64_t expert = args.ids[pair];
  const float* from =
      args.from.x + pair / args.from.pairs_per_row * args.from.length;
  float* to = args.to + pair * args.padded;
  const float reciprocal = factor(args.reciprocal, expert);
  for (std::int64_t k = 0; k < args.columns; ++k) {
    const std::int64_t source = args.order == nullptr ? k : args.order[expert * args.columns + k];
    to[k] = from[source] * reciprocal;
  }
  std::copy(from + args.columns, from + args.from.length, to + args.columns);
  std::fill(to + args.from.length, to + args.padded, 0.0f);
  const RoundRule rule{.scheme = static_cast<config::ActivationScheme>(args.activations),
                       .input_scale = InputScale::kLeftOut};
  const auto count = static_cast<std::size_t>(args.columns);
  round_row(rule, factor(args.input_scale, expert), {to, count}, to);
}

}  // namespace

void prepare(const PrepareArgs& args, device::WorkerPool& workers) {
  const std::int64_t rows = std::clamp<std::int64_t>(*args.active_rows, 0, args.shape.n);
  workers.parallel_for(rows * args.shape.experts_per_token, 1,
                       [&](std::int64_t begin, std::int64_t end, int) {
                         for (std::int64_t pair = begin; pair < end; ++pair) {
                           if (is_expert(args.ids[pair], args.shape)) prepare_pair(args, pair);
                         }
                       });
}

void gate_up(const GateUpArgs& args, device::WorkerPool& workers) {
  for_tiles(args, args.matrix.layout.rows / 2, workers,
            [&](const TileRows& rows, std::int64_t expert, const Pairs& pairs) {
              gate_up_rows(args, rows, expert, pairs);
            });
}

void down(const DownArgs& args, device::WorkerPool& workers) {
  for_tiles(args, args.shape.hidden, workers,
            [&](const TileRows& rows, std::int64_t expert, const Pairs& pairs) {
              down_rows(args, rows, expert, pairs);
            });
}

}  // namespace holdfast::experts::field
#endif
