// See cpu_kernels.h and, for the layouts, cpu_packing.h. Computes
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    (semantics.md 3.7)
//   down_out[p]   = down_e activation[p] + bias
//   out[r]        = residual[r] + sum_k weights[r, k] down_out[r, k]
// The products of tiles are in cpu_tiles-inl.h.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experts/cpu_kernels.cc"
#include <algorithm>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "experts/cpu_kernels.h"
#include "experts/cpu_packing.h"
#include "experts/round_inputs.h"
#include "tensor/codecs.h"

#ifndef HF_EXPERTS_CPU_KERNELS_ONCE
#define HF_EXPERTS_CPU_KERNELS_ONCE
namespace holdfast::experts::cpu {

inline constexpr int kMaxTokens = 8;
// How far ahead of a tile's codes or values the second-level cache is filled, so that decoding and
// reading overlap. Measured: 4 to 32 KB are alike. Past the matrix it does nothing.
inline constexpr std::size_t kPrefetchBytes = 8192;
inline bool is_expert(std::int32_t id, const MoeShape& shape) {
  return id >= 0 && id < shape.expert_count;
}

// Tiles of every expert, or rows: [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Some tokens of one expert: where each row of x starts and which pair it belongs to.
struct Tokens {
  const float* x[kMaxTokens];
  std::int64_t pair[kMaxTokens];
  int count = 0;
};

}  // namespace holdfast::experts::cpu
#endif

#include "experts/cpu_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace holdfast::experts::cpu::HWY_NAMESPACE {

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

// Where a tile lies: which expert, and which tile of its matrix of `rows` rows.
struct Place {
  std::int64_t expert = 0;
  std::int64_t tile = 0;
  std::int64_t rows = 0;

  std::int64_t first_row() const { return tile * kTile; }
  std::int64_t rows_here() const { return std::min<std::int64_t>(kTile, rows - first_row()); }
  std::int64_t tiles() const { return (rows + kTile - 1) / kTile; }
};

// sums *= the scales of the rows and of the matrix, then += bias; rows past the matrix are left.
HWY_INLINE void finish_tile(const Matrix& matrix, const Place& place, const Tokens& tokens,
                            float* sums) {
  const std::int64_t rows = place.rows_here();
  if (matrix.row_scales != nullptr) {
    const float* scales =
        matrix.row_scales + (place.expert * place.tiles() + place.tile) * kTile;
    for (int t = 0; t < tokens.count; ++t) {
      for (std::int64_t row = 0; row < rows; ++row) sums[t * kTile + row] *= scales[row];
    }
  }
  if (matrix.alpha != nullptr) {
    const float alpha = matrix.alpha[place.expert];
    for (std::int64_t i = 0; i < tokens.count * kTile; ++i) sums[i] *= alpha;
  }
  if (matrix.bias == nullptr) return;
  const std::uint16_t* bias = matrix.bias + matrix.first_tile +
                              (place.expert * place.rows + place.first_row()) * matrix.tile_step;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float value = tensor::bf16_to_f32(bias[row * matrix.tile_step]);
    for (int t = 0; t < tokens.count; ++t) sums[t * kTile + row] += value;
  }
}

// sums = the tile's rows of matrix x + bias
HWY_INLINE void run_tile(const Matrix& matrix, const Place& place, std::int64_t columns,
                         const Tokens& tokens, float* sums) {
  const std::int64_t tile = place.expert * place.tiles() + place.tile;
  tile_product(matrix, tile * matrix.tile_step + matrix.first_tile, columns, tokens, sums);
  finish_tile(matrix, place, tokens, sums);
}

// One gate tile and its up tile for some tokens of one expert.
HWY_INLINE void gate_up_tile(const GateUpArgs& args, std::int64_t expert, std::int64_t tile,
                             const Tokens& tokens) {
  const std::int64_t intermediate = args.shape.intermediate;
  const Place place{expert, tile, intermediate};
  HWY_ALIGN float gate[kMaxTokens * kTile];
  HWY_ALIGN float up[kMaxTokens * kTile];
  run_tile(args.gate, place, args.shape.hidden, tokens, gate);
  run_tile(args.up, place, args.shape.hidden, tokens, up);
  const Swiglu constants{args.alpha[expert], args.beta[expert], args.limit[expert]};
  for (int t = 0; t < tokens.count; ++t) {
    HWY_ALIGN float values[kTile];
    swiglu_tile(gate + t * kTile, up + t * kTile, constants, values);
    std::copy_n(values, place.rows_here(),
                args.activation + tokens.pair[t] * intermediate + place.first_row());
  }
}

HWY_INLINE void down_tile(const DownArgs& args, std::int64_t expert, std::int64_t tile,
                          const Tokens& tokens) {
  const std::int64_t hidden = args.shape.hidden;
  const Place place{expert, tile, hidden};
  HWY_ALIGN float sums[kMaxTokens * kTile];
  run_tile(args.down, place, args.shape.intermediate, tokens, sums);
  for (int t = 0; t < tokens.count; ++t) {
    std::copy_n(sums + t * kTile, place.rows_here(),
                args.down_out + tokens.pair[t] * hidden + place.first_row());
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
  for_tiles(args.groups, args.shape.expert_count, args.inputs, tiles,
            [&](std::int64_t expert, std::int64_t tile, const Tokens& tokens)
                HWY_ATTR { gate_up_tile(args, expert, tile, tokens); });
}

void down_tiles(const DownArgs& args, Range tiles) {
  for_tiles(args.groups, args.shape.expert_count, args.inputs, tiles,
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

namespace {

void prepare_pair(const PrepareArgs& args, std::int64_t pair) {
  const std::int64_t expert = args.ids[pair];
  const std::int64_t length = args.from.length;
  const float* from = args.from.x + pair / args.from.pairs_per_row * length;
  float* to = args.to + pair * length;
  if (args.order != nullptr) {
    const std::int32_t* order = args.order + expert * length;
    for (std::int64_t k = 0; k < length; ++k) to[k] = from[order[k]];
    from = to;
  }
  const RoundRule rule{.scheme = static_cast<config::ActivationScheme>(args.activations),
                       .input_scale = InputScale::kLeftOut};
  const float scale = args.input_scale == nullptr ? 1.0f : args.input_scale[expert];
  round_row(rule, scale, {from, static_cast<std::size_t>(length)}, to);
}

}  // namespace

void prepare_inputs(const PrepareArgs& args, device::WorkerPool& workers) {
  const std::int64_t pairs =
      active_row_count(args.active_rows, args.shape) * args.shape.experts_per_token;
  workers.parallel_for(pairs, 1, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      if (is_expert(args.ids[pair], args.shape)) prepare_pair(args, pair);
    }
  });
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
