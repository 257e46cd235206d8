// paged_attention on all cores. With s_j = scale * q . k_j over the visible keys of a row:
//   out = sum_j exp(s_j - m) v_j / (exp(sink - m) + sum_j exp(s_j - m)),  m = max(sink, max_j s_j)
//
// A task is one row and one kv head; the query heads that share it go together, kMaxGroup at a
// time, so that keys and values are read once. Keys are taken kChunk at a time from the row's first
// visible key on, with an online softmax: the chunks, and so the bits, depend on the row's position
// and the window alone, never on the batch, the page size or the prompt's chunking. Scratch: 28 KB
// of stack. exp is Highway's, 1 ulp.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/fast_attention.cc"
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/kernel_sets.h"

#ifndef HF_FAST_ATTENTION_ONCE
#define HF_FAST_ATTENTION_ONCE
namespace holdfast::ops::cpu {

inline constexpr int kChunk = 64;
inline constexpr int kMaxGroup = 8;
inline constexpr std::int64_t kLineFloats = 16;
inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// What one task accumulates for its query heads. Rows are padded to whole vectors with zeros.
struct alignas(64) AttentionState {
  float query[kMaxGroup][kMaxHeadDim];
  float sum[kMaxGroup][kMaxHeadDim];  // of exp(s_j - largest) v_j
  float p[kMaxGroup][kChunk];         // scores of the chunk, then exp(s_j - largest)
  float largest[kMaxGroup];
  float denominator[kMaxGroup];
  const float* keys[kChunk];    // of the task's kv head
  const float* values[kChunk];  // nullptr: a key that cannot be read, and so is not seen
  int group;                    // query heads in use
  std::int64_t dim;
};

}  // namespace holdfast::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace holdfast::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Capped so that kMaxHeadDim and kChunk are whole vectors.
using F32 = hn::CappedTag<float, 16>;
using VF = hn::Vec<F32>;

// Elements [i, dim) of a row of `dim` where less than a vector is left; zeros behind them.
HWY_INLINE VF load_tail(const float* from, std::int64_t count) {
  HWY_ALIGN float buffer[16] = {};
  std::copy_n(from, count, buffer);
  return hn::Load(F32(), buffer);
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void add_lanes_of_four(const VF* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(v[i]);
}
#else
// The sum of the 128-bit blocks of a vector: lane i of the result adds lanes i, i + 4, ...
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> add_blocks(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return add_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// out[i] = the sum of the lanes of v[i], i < 4: a transpose and an addition at once.
HWY_INLINE void add_lanes_of_four(const VF* v, float* out) {
  const F32 d;
  const hn::RepartitionToWide<F32> wide;
  const auto pair = [&](VF a, VF b) HWY_ATTR {
    return hn::BitCast(wide, hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = pair(v[0], v[1]);
  const auto high = pair(v[2], v[3]);
  const VF sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(wide, low, high)),
                          hn::BitCast(d, hn::InterleaveUpper(wide, low, high)));
  hn::StoreU(add_blocks(d, sums), hn::CappedTag<float, 4>(), out);
}
#endif

// scores[g] = query[g] . key
template <int kGroup>
HWY_INLINE void score_key(const AttentionState& state, const float* key, float* scores) {
  const F32 d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF sum[kGroup];
#pragma GCC unroll 8
  for (int g = 0; g < kGroup; ++g) sum[g] = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= state.dim; i += lanes) {
    const VF k = hn::LoadU(d, key + i);
#pragma GCC unroll 8
    for (int g = 0; g < kGroup; ++g) {
      sum[g] = hn::MulAdd(hn::Load(d, state.query[g] + i), k, sum[g]);
    }
  }
  if (i < state.dim) {
    const VF k = load_tail(key + i, state.dim - i);
#pragma GCC unroll 8
    for (int g = 0; g < kGroup; ++g) {
      sum[g] = hn::MulAdd(hn::Load(d, state.query[g] + i), k, sum[g]);
    }
  }
  if constexpr (kGroup % 4 == 0) {
    for (int g = 0; g < kGroup; g += 4) add_lanes_of_four(sum + g, scores + g);
  } else {
    for (int g = 0; g < kGroup; ++g) scores[g] = hn::GetLane(hn::SumOfLanes(d, sum[g]));
  }
}

// p[g][j] = scale * query[g] . keys[j], -inf for a key that is not seen and past the chunk's end
template <int kGroup>
HWY_INLINE void score_chunk(AttentionState& state, int count, float scale) {
  HWY_ALIGN float scores[kChunk][kGroup];
  for (int j = 0; j < count; ++j) {
    if (state.keys[j] != nullptr) {
      score_key<kGroup>(state, state.keys[j], scores[j]);
    } else {
      std::fill_n(scores[j], kGroup, kNegativeInfinity);
    }
  }
  for (int g = 0; g < kGroup; ++g) {
    for (int j = 0; j < count; ++j) state.p[g][j] = scale * scores[j][g];
    std::fill(state.p[g] + count, state.p[g] + kChunk, kNegativeInfinity);
  }
}

// sum[g] = sum[g] * decay[g] + sum_j p[g][j] values[j], j in order, for elements [i, i + lanes)
template <int kGroup, typename Load>
HWY_INLINE void add_value_part(AttentionState& state, int count, const float* decay, std::int64_t i,
                               const Load& load) {
  const F32 d;
  VF sum[kGroup];
#pragma GCC unroll 8
  for (int g = 0; g < kGroup; ++g) {
    sum[g] = hn::Mul(hn::Load(d, state.sum[g] + i), hn::Set(d, decay[g]));
  }
  for (int j = 0; j < count; ++j) {
    if (state.values[j] == nullptr) continue;
    const VF v = load(state.values[j] + i);
#pragma GCC unroll 8
    for (int g = 0; g < kGroup; ++g) {
      sum[g] = hn::MulAdd(hn::Set(d, state.p[g][j]), v, sum[g]);
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < kGroup; ++g) hn::Store(sum[g], d, state.sum[g] + i);
}

template <int kGroup>
HWY_INLINE void add_values(AttentionState& state, int count, const float* decay) {
  const F32 d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= state.dim; i += lanes) {
    add_value_part<kGroup>(state, count, decay, i,
                           [&](const float* from) HWY_ATTR { return hn::LoadU(d, from); });
  }
  if (i < state.dim) {
    const std::int64_t left = state.dim - i;
    add_value_part<kGroup>(state, count, decay, i,
                           [&](const float* from) HWY_ATTR { return load_tail(from, left); });
  }
}

// e^x, 1 ulp for x <= 0; a NaN stays one, so that damaged keys stay visible.
HWY_INLINE VF exp_or_nan(VF x) {
  const F32 d;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

// Turns the chunk's scores of head g into exp(s_j - largest) and updates largest and denominator.
// Returns by what the sums so far must be multiplied. Entries past the chunk's keys hold -inf.
HWY_INLINE float softmax_chunk(AttentionState& state, int g) {
  const F32 d;
  const auto lanes = static_cast<int>(hn::Lanes(d));
  float* p = state.p[g];
  VF most = hn::Set(d, state.largest[g]);
  for (int j = 0; j < kChunk; j += lanes) most = hn::Max(most, hn::Load(d, p + j));
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  if (largest == kNegativeInfinity) {
    std::fill_n(p, kChunk, 0.0f);
    return 1.0f;
  }
  const VF shift = hn::Set(d, largest);
  VF total = hn::Zero(d);
  for (int j = 0; j < kChunk; j += lanes) {
    const VF e = exp_or_nan(hn::Sub(hn::Load(d, p + j), shift));
    hn::Store(e, d, p + j);
    total = hn::Add(total, e);
  }
  const float decay = hn::GetLane(exp_or_nan(hn::Set(d, state.largest[g] - largest)));
  state.denominator[g] = state.denominator[g] * decay + hn::GetLane(hn::SumOfLanes(d, total));
  state.largest[g] = largest;
  return decay;
}

template <int kGroup>
HWY_NOINLINE void attend_chunk(AttentionState& state, int count, float scale) {
  score_chunk<kGroup>(state, count, scale);
  float decay[kGroup];
  for (int g = 0; g < kGroup; ++g) decay[g] = softmax_chunk(state, g);
  add_values<kGroup>(state, count, decay);
}

HWY_INLINE void attend_group(AttentionState& state, int count, float scale) {
  switch (state.group) {
    case 8: return attend_chunk<8>(state, count, scale);
    case 4: return attend_chunk<4>(state, count, scale);
    case 2: return attend_chunk<2>(state, count, scale);
    default: return attend_chunk<1>(state, count, scale);
  }
}

// The first query head of a task's part, and how its kv head lies in the pages.
struct Heads {
  std::int64_t first = 0;
  std::int64_t kv_head = 0;
};

// Keys [first_key, first_key + count) of one kv head.
struct Chunk {
  std::int64_t first_key = 0;
  int count = 0;
  std::int64_t kv_head = 0;
};

void begin_heads(const PagedAttentionKernel& args, AttentionState& state, std::int64_t row,
                 Heads heads) {
  const float* query =
      args.qkv.as<const float>() + row * args.qkv.shape[1] + heads.first * state.dim;
  for (int g = 0; g < state.group; ++g) {
    std::fill_n(state.query[g], kMaxHeadDim, 0.0f);
    std::copy_n(query + g * state.dim, state.dim, state.query[g]);
    std::fill_n(state.sum[g], kMaxHeadDim, 0.0f);
    // The sink is the first logit of the softmax, one without a value.
    state.largest[g] = weight_at(args.sinks, heads.first + g);
    state.denominator[g] = state.largest[g] == kNegativeInfinity ? 0.0f : 1.0f;
  }
}

// Points the chunk at its keys and values and asks for them: a head's keys lie apart, which no
// hardware prefetcher follows.
void find_chunk(const PagedAttentionKernel& args, const PagedKeys& keys, AttentionState& state,
                Chunk chunk) {
  const std::int64_t head_offset = chunk.kv_head * state.dim;
  for (int j = 0; j < chunk.count; ++j) {
    const std::int64_t offset = keys.offset(chunk.first_key + j);
    const bool seen = offset >= 0;
    state.keys[j] = seen ? args.key_pages.as<const float>() + offset + head_offset : nullptr;
    state.values[j] = seen ? args.value_pages.as<const float>() + offset + head_offset : nullptr;
    if (!seen) continue;
    for (std::int64_t i = 0; i < state.dim; i += kLineFloats) {
      hwy::Prefetch(state.keys[j] + i);
      hwy::Prefetch(state.values[j] + i);
    }
  }
}

void attend_heads(const PagedAttentionKernel& args, const PagedKeys& keys, AttentionState& state,
                  std::int64_t row, Heads heads) {
  begin_heads(args, state, row, heads);
  for (std::int64_t j = keys.begin; j < keys.end; j += kChunk) {
    const int count = static_cast<int>(std::min<std::int64_t>(kChunk, keys.end - j));
    find_chunk(args, keys, state, {.first_key = j, .count = count, .kv_head = heads.kv_head});
    attend_group(state, count, static_cast<float>(args.scale));
  }
  float* out = args.out.as<float>() +
               (row * args.sinks.shape[0] + heads.first) * state.dim;
  for (int g = 0; g < state.group; ++g) {
    for (std::int64_t i = 0; i < state.dim; ++i) {
      out[g * state.dim + i] = state.sum[g][i] / state.denominator[g];
    }
  }
}

// Tasks [begin, end) of rows * kv heads.
void attention_tasks(const PagedAttentionKernel& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t kv_heads = args.key_pages.shape[2];
  const std::int64_t group = args.sinks.shape[0] / kv_heads;
  AttentionState state;
  state.dim = args.key_pages.shape[3];
  for (std::int64_t task = begin; task < end; ++task) {
    const std::int64_t row = task / kv_heads;
    const std::int64_t kv_head = task % kv_heads;
    const PagedKeys keys = visible_keys(args, row);
    std::int64_t done = 0;
    while (done < group) {
      const std::int64_t left = group - done;
      state.group = left >= kMaxGroup ? kMaxGroup : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const Heads heads{.first = kv_head * group + done, .kv_head = kv_head};
      if (keys.table == nullptr) {
        std::fill_n(args.out.as<float>() + (row * args.sinks.shape[0] + heads.first) * state.dim,
                    state.group * state.dim, 0.0f);
      } else {
        attend_heads(args, keys, state, row, heads);
      }
      done += state.group;
    }
  }
}

}  // namespace holdfast::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast::ops::cpu {

HWY_EXPORT(attention_tasks);

void Fast::paged_attention(const PagedAttentionKernel& args, device::WorkerPool& workers) {
  const std::int64_t rows = active_row_count(args.active_rows, args.qkv.shape[0]);
  const auto tasks = HWY_DYNAMIC_DISPATCH(attention_tasks);
  workers.parallel_for(rows * args.key_pages.shape[2], 1,
                       [&](std::int64_t begin, std::int64_t end, int) { tasks(args, begin, end); });
}

}  // namespace holdfast::ops::cpu
#endif
