// linear on all cores. Computes out[r, o] = x[r] . weight[o] + bias[o] + residual[r, o].
//
// One accumulator vector per (weight row, token), filled in order of k, and its lanes summed at the
// end: the order of additions is the same for every tile size, so a result's bits depend on its own
// row of x and of the weight alone. A tile of kTileRows weight rows is read once from memory, stays
// in the first-level cache (4 rows of 2880 bf16 are 23 KB) and meets the tokens kTileTokens at a
// time.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/fast_linear.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/kernel_sets.h"

#ifndef HF_FAST_LINEAR_ONCE
#define HF_FAST_LINEAR_ONCE
namespace holdfast::ops::cpu {
inline constexpr std::int64_t kTileRows = 4;
inline constexpr std::int64_t kTileTokens = 6;
}  // namespace holdfast::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace holdfast::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;

HWY_INLINE VF load_weights(F32 d, const float* from) { return hn::LoadU(d, from); }
HWY_INLINE VF load_weights(F32 d, const std::uint16_t* from) {
  const hn::RebindToUnsigned<F32> du32;
  const hn::Rebind<std::uint16_t, F32> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, from))));
}

// The last `count` elements of a row, zeros behind them: nothing past the row is read.
template <typename T>
HWY_INLINE VF load_tail(F32 d, const T* from, std::int64_t count) {
  HWY_ALIGN T buffer[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy_n(from, count, buffer);
  return load_weights(d, buffer);
}

// Adds the lanes of one accumulator, after the elements [i, k) that fill no whole vector.
template <typename Weight>
HWY_INLINE float finish_dot(VF sum, const Weight* weight, const float* x, std::int64_t count) {
  const F32 d;
  if (count > 0) sum = hn::MulAdd(load_tail(d, weight, count), load_tail(d, x, count), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// sums[t * kRows + r] = x[t] . weight[r]; both have rows of k elements. The accumulators go through
// memory before they are finished, so that only the loop over k shapes the register allocation.
template <int kRows, int kTokens, typename Weight>
HWY_INLINE void dot_tile(const Weight* HWY_RESTRICT weight, const float* HWY_RESTRICT x,
                         std::int64_t k, float* HWY_RESTRICT sums) {
  const F32 d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN float parts[kTokens * kRows][HWY_MAX_BYTES / sizeof(float)];
  VF sum[kTokens][kRows];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sum[t][r] = hn::Zero(d);
  }
  std::int64_t i = 0;
  for (; i + lanes <= k; i += lanes) {
    VF w[kRows];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      w[r] = load_weights(d, weight + r * k + i);
      // Two tiles ahead, into the second-level cache: rows are too short for a hardware prefetcher
      // to get far, and the tile's own arithmetic must not wait. Past the matrix it does nothing.
      __builtin_prefetch(weight + (r + 2 * kRows) * k + i, 0, 2);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const VF xs = hn::LoadU(d, x + t * k + i);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[t][r] = hn::MulAdd(w[r], xs, sum[t][r]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) hn::Store(sum[t][r], d, parts[t * kRows + r]);
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) {
      sums[t * kRows + r] = finish_dot(hn::Load(d, parts[t * kRows + r]), weight + r * k + i,
                                       x + t * k + i, k - i);
    }
  }
}

struct Tile {
  std::int64_t row = 0;
  std::int64_t token = 0;
};

template <int kRows, int kTokens, typename Weight>
HWY_NOINLINE void compute_tile(const LinearKernel& args, Tile tile) {
  const std::int64_t k = args.weight.shape[1];
  const std::int64_t outputs = args.weight.shape[0];
  float sums[kRows * kTokens];
  dot_tile<kRows, kTokens>(args.weight.as<const Weight>() + tile.row * k,
                           args.x.as<const float>() + tile.token * k, k, sums);
  for (std::int64_t r = 0; r < kRows; ++r) {
    const float bias = args.bias.empty() ? 0.0f : weight_at(args.bias, tile.row + r);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t index = (tile.token + t) * outputs + tile.row + r;
      float value = sums[t * kRows + r];
      if (!args.bias.empty()) value += bias;
      if (!args.residual.empty()) value += args.residual.as<const float>()[index];
      args.out.as<float>()[index] = value;
    }
  }
}

template <int kRows, typename Weight>
HWY_INLINE void compute_tokens(const LinearKernel& args, std::int64_t row, std::int64_t tokens) {
  std::int64_t t = 0;
  for (; t + kTileTokens <= tokens; t += kTileTokens) {
    compute_tile<kRows, kTileTokens, Weight>(args, {row, t});
  }
  for (; t + 4 <= tokens; t += 4) compute_tile<kRows, 4, Weight>(args, {row, t});
  for (; t + 2 <= tokens; t += 2) compute_tile<kRows, 2, Weight>(args, {row, t});
  for (; t < tokens; ++t) compute_tile<kRows, 1, Weight>(args, {row, t});
}

template <typename Weight>
HWY_INLINE void compute_rows(const LinearKernel& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t tokens = active_row_count(args.active_rows, args.x.shape[0]);
  std::int64_t row = begin;
  for (; row + kTileRows <= end; row += kTileRows) {
    compute_tokens<kTileRows, Weight>(args, row, tokens);
  }
  for (; row < end; ++row) compute_tokens<1, Weight>(args, row, tokens);
}

// Rows [begin, end) of the weight for all active tokens.
void linear_rows(const LinearKernel& args, std::int64_t begin, std::int64_t end) {
  if (args.weight.is_f32 != 0) {
    compute_rows<float>(args, begin, end);
  } else {
    compute_rows<std::uint16_t>(args, begin, end);
  }
}

}  // namespace holdfast::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast::ops::cpu {

HWY_EXPORT(linear_rows);

void Fast::linear(const LinearKernel& args, device::WorkerPool& workers) {
  const auto rows = HWY_DYNAMIC_DISPATCH(linear_rows);
  workers.parallel_for(args.weight.shape[0], kTileRows,
                       [&](std::int64_t begin, std::int64_t end, int) { rows(args, begin, end); });
}

}  // namespace holdfast::ops::cpu
#endif
