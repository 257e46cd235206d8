// embedding, rms_norm, head_norm, silu_gate, rope, kv_write, gather_rows and router_top_k on all
// cores: rows are the tasks. Against the reference: embedding, kv_write, gather_rows and
// router_top_k give the same bits; rope rounds once less where the machine fuses a multiply and an
// add; the norms add their squares lane by lane (a shorter chain, so a smaller error); silu_gate's
// exp is Highway's, 1 ulp.
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/fast_rows.cc"
#include <cmath>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/kernel_sets.h"

HWY_BEFORE_NAMESPACE();
namespace holdfast::ops::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;

HWY_INLINE VF load_bf16(F32 d, const std::uint16_t* from) {
  const hn::RebindToUnsigned<F32> du32;
  const hn::Rebind<std::uint16_t, F32> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, hn::LoadU(du16, from))));
}

// Calls body(i) for whole vectors of `count` elements and tail(i) for each element after them.
template <typename Body, typename Tail>
HWY_INLINE void for_elements(std::int64_t count, const Body& body, const Tail& tail) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i);
  for (; i < count; ++i) tail(i);
}

HWY_INLINE void decode_row(const std::uint16_t* from, std::int64_t count, float* to) {
  const F32 d;
  for_elements(
      count, [&](std::int64_t i) HWY_ATTR { hn::StoreU(load_bf16(d, from + i), d, to + i); },
      [&](std::int64_t i) { to[i] = tensor::bf16_to_f32(from[i]); });
}

void embedding_rows(const EmbeddingKernel& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t vocab = args.table.shape[0];
  const std::int64_t hidden = args.table.shape[1];
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t id = args.ids.as<const std::int32_t>()[r];
    float* out = args.out.as<float>() + r * hidden;
    if (id < 0 || id >= vocab) {
      std::fill_n(out, hidden, 0.0f);
    } else if (args.table.is_f32 != 0) {
      std::copy_n(args.table.as<const float>() + id * hidden, hidden, out);
    } else {
      decode_row(args.table.as<const std::uint16_t>() + id * hidden, hidden, out);
    }
  }
}

HWY_INLINE float sum_of_squares(const float* x, std::int64_t count) {
  const F32 d;
  VF sum = hn::Zero(d);
  float rest = 0.0f;
  for_elements(
      count,
      [&](std::int64_t i) HWY_ATTR {
        const VF v = hn::LoadU(d, x + i);
        sum = hn::MulAdd(v, v, sum);
      },
      [&](std::int64_t i) { rest += x[i] * x[i]; });
  return hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
}

// out = x * rsqrt(mean(x^2) + eps) * weight
HWY_INLINE void normalise(const float* x, const View& weight, std::int64_t count, double eps,
                          float* out) {
  const F32 d;
  const bool wide = weight.is_f32 != 0;
  const float mean = sum_of_squares(x, count) / static_cast<float>(count);
  const float scale = 1.0f / std::sqrt(mean + static_cast<float>(eps));
  const VF scales = hn::Set(d, scale);
  for_elements(
      count,
      [&](std::int64_t i) HWY_ATTR {
        const VF w = wide ? hn::LoadU(d, weight.as<const float>() + i)
                          : load_bf16(d, weight.as<const std::uint16_t>() + i);
        hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), scales), w), d, out + i);
      },
      [&](std::int64_t i) { out[i] = x[i] * scale * weight_at(weight, i); });
}

void rms_norm_rows(const RmsNormKernel& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t hidden = args.x.shape[1];
  for (std::int64_t r = begin; r < end; ++r) {
    normalise(args.x.as<const float>() + r * hidden, args.weight, hidden, args.eps,
              args.out.as<float>() + r * hidden);
  }
}

void head_norm_rows(const HeadNormKernel& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = args.query_weight.shape[0];
  for (std::int64_t r = begin; r < end; ++r) {
    float* x = args.x.as<float>() + r * args.x.shape[1];
    for (std::int64_t head = 0; head < args.query_heads + args.key_heads; ++head) {
      const View& weight = head < args.query_heads ? args.query_weight : args.key_weight;
      normalise(x + head * dim, weight, dim, args.eps, x + head * dim);
    }
  }
}

// g / (1 + exp(-g)); Highway's exp is good up to 104, where it is infinite already.
HWY_INLINE VF silu(VF gate) {
  const F32 d;
  const VF e = hn::Exp(d, hn::Min(hn::Neg(gate), hn::Set(d, 104.0f)));
  const VF out = hn::Div(gate, hn::Add(hn::Set(d, 1.0f), e));
  return hn::IfThenElse(hn::IsNaN(gate), gate, out);
}

void silu_gate_rows(const SiluGateKernel& args, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const std::int64_t inner = args.out.shape[1];
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t r = begin; r < end; ++r) {
    const float* gate = args.x.as<const float>() + r * 2 * inner;
    const float* up = gate + inner;
    float* out = args.out.as<float>() + r * inner;
    std::int64_t i = 0;
    for (; i + lanes <= inner; i += lanes) {
      hn::StoreU(hn::Mul(silu(hn::LoadU(d, gate + i)), hn::LoadU(d, up + i)), d, out + i);
    }
    if (i == inner) continue;
    // The rest through the same arithmetic, so that an element's bits do not depend on its place.
    HWY_ALIGN float buffer[2][hn::MaxLanes(F32())] = {};
    std::copy(gate + i, gate + inner, buffer[0]);
    std::copy(up + i, up + inner, buffer[1]);
    hn::Store(hn::Mul(silu(hn::Load(d, buffer[0])), hn::Load(d, buffer[1])), d, buffer[0]);
    std::copy_n(buffer[0], inner - i, out + i);
  }
}

void rope_rows(const RopeKernel& args, std::int64_t begin, std::int64_t end) {
  const F32 d;
  const std::int64_t half = args.head_dim / 2;
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t position = args.positions.as<const std::int32_t>()[r];
    if (position < 0 || position >= args.cos_table.shape[0]) continue;
    const float* cosine = args.cos_table.as<const float>() + position * half;
    const float* sine = args.sin_table.as<const float>() + position * half;
    for (std::int64_t head = 0; head < args.head_count; ++head) {
      float* low = args.x.as<float>() + r * args.x.shape[1] + head * args.head_dim;
      float* high = low + half;
      for_elements(
          half,
          [&](std::int64_t i) HWY_ATTR {
            const VF a = hn::LoadU(d, low + i);
            const VF b = hn::LoadU(d, high + i);
            const VF c = hn::LoadU(d, cosine + i);
            const VF s = hn::LoadU(d, sine + i);
            hn::StoreU(hn::MulSub(a, c, hn::Mul(b, s)), d, low + i);
            hn::StoreU(hn::MulAdd(b, c, hn::Mul(a, s)), d, high + i);
          },
          [&](std::int64_t i) {
            const float a = low[i];
            const float b = high[i];
            low[i] = a * cosine[i] - b * sine[i];
            high[i] = b * cosine[i] + a * sine[i];
          });
    }
  }
}

}  // namespace holdfast::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace holdfast::ops::cpu {

HWY_EXPORT(embedding_rows);
HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(head_norm_rows);
HWY_EXPORT(silu_gate_rows);
HWY_EXPORT(rope_rows);

namespace {

// Small rows are not worth waking a worker for.
constexpr std::int64_t kMinTaskElements = 8192;

template <typename Rows, typename Args>
void for_rows(device::WorkerPool& workers, const Args& args, std::int64_t rows,
              std::int64_t row_elements, Rows run) {
  const std::int64_t grain =
      std::max<std::int64_t>(1, kMinTaskElements / std::max<std::int64_t>(1, row_elements));
  workers.parallel_for(rows, grain,
                       [&](std::int64_t begin, std::int64_t end, int) { run(args, begin, end); });
}

}  // namespace

void Fast::embedding(const EmbeddingKernel& args, device::WorkerPool& workers) {
  for_rows(workers, args, active_row_count(args.active_rows, args.ids.shape[0]),
           args.table.shape[1], HWY_DYNAMIC_DISPATCH(embedding_rows));
}

void Fast::rms_norm(const RmsNormKernel& args, device::WorkerPool& workers) {
  for_rows(workers, args, active_row_count(args.active_rows, args.x.shape[0]), args.x.shape[1],
           HWY_DYNAMIC_DISPATCH(rms_norm_rows));
}

void Fast::head_norm(const HeadNormKernel& args, device::WorkerPool& workers) {
  for_rows(workers, args, active_row_count(args.active_rows, args.x.shape[0]), args.x.shape[1],
           HWY_DYNAMIC_DISPATCH(head_norm_rows));
}

void Fast::silu_gate(const SiluGateKernel& args, device::WorkerPool& workers) {
  for_rows(workers, args, active_row_count(args.active_rows, args.x.shape[0]), args.x.shape[1],
           HWY_DYNAMIC_DISPATCH(silu_gate_rows));
}

void Fast::rope(const RopeKernel& args, device::WorkerPool& workers) {
  for_rows(workers, args, active_row_count(args.active_rows, args.x.shape[0]),
           args.head_count * args.head_dim, HWY_DYNAMIC_DISPATCH(rope_rows));
}

// Copies and comparisons: the scalar loops are as fast as memory at the sizes of a step.
void Fast::kv_write(const KvWriteKernel& args, device::WorkerPool& workers) {
  Reference::kv_write(args, workers);
}

void Fast::gather_rows(const GatherRowsKernel& args, device::WorkerPool& workers) {
  Reference::gather_rows(args, workers);
}

void Fast::router_top_k(const RouterTopKKernel& args, device::WorkerPool& workers) {
  Reference::router_top_k(args, workers);
}

}  // namespace holdfast::ops::cpu
#endif
