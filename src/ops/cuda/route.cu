// route and router_top_k (ops.h): which experts a row goes to. route norms the row, multiplies it
// with the router's weights in f32 (a warp for each expert, lanes take 8 columns in turn), and
// picks the k largest, one block a row; few rows get a cluster of eight blocks each, which share
// the experts out and do the same arithmetic.
#include <cooperative_groups.h>

#include <cmath>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda/launchers.h"
#include "ops/cuda/matrix.cuh"

namespace holdfast::ops::cuda {
namespace {

using cuda_kernels::bf16_bits_to_float;
using cuda_kernels::kThreads;
using cuda_kernels::kWarps;
using device::reads;
using device::writes;
using device::cuda::cluster_began;
using device::cuda::launch_cuda;
using device::cuda::prefetch;
using device::cuda::prefetch_line;
using device::cuda::wait_for_cluster;
using device::cuda::wait_for_inputs;

// ------------------------------------------------------------------------------ the k largest

__device__ float number_or_lowest(float x) { return isnan(x) ? -INFINITY : x; }

// Whether (value, id) goes before (other, other_id): the larger, of equals the lower id.
__device__ bool goes_before(float value, std::int32_t id, float other, std::int32_t other_id) {
  if (other_id < 0) return id >= 0;
  return id >= 0 && (value > other || (value == other && id < other_id));
}

struct TopK {
  std::int32_t* ids;
  float* weights;
  std::int64_t experts, k;
  std::int64_t over_all;  // weights are shares of the sum over all experts
};

// exp(logit - largest), where the largest counts 1 even when it is infinite.
__device__ float share_of(float logit, float largest) {
  const float value = number_or_lowest(logit);
  return value == largest ? 1.0f : expf(value - largest);
}

// By one warp; the k-th largest is what comes right after the (k-1)-th in that order. Lane i keeps
// the i-th of each 32 until their sum is known.
__device__ void pick(const TopK& a, const float* logits, std::int64_t row) {
  const int lane = threadIdx.x % 32;
  std::int32_t* ids = a.ids + row * a.k;
  float* weights = a.weights + row * a.k;
  float largest = 0.0f;
  float sum = 0.0f;
  float last = 0.0f;
  float mine = 0.0f;
  std::int32_t last_id = -1;
  for (std::int64_t i = 0; i < a.k; ++i) {
    float best = 0.0f;
    std::int32_t best_id = -1;
    for (std::int64_t e = lane; e < a.experts; e += 32) {
      const float value = number_or_lowest(logits[e]);
      const auto id = static_cast<std::int32_t>(e);
      const bool taken = last_id >= 0 && !goes_before(last, last_id, value, id);
      if (!taken && goes_before(value, id, best, best_id)) {
        best = value;
        best_id = id;
      }
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, best, distance);
      const std::int32_t other_id = __shfl_xor_sync(0xFFFFFFFFu, best_id, distance);
      if (goes_before(other, other_id, best, best_id)) {
        best = other;
        best_id = other_id;
      }
    }
    if (i == 0) largest = best;
    const float weight = share_of(best, largest);
    sum = __fadd_rn(sum, weight);
    last = best;
    last_id = best_id;
    if (lane == i % 32) {
      ids[i] = best_id;
      mine = weight;
      if (a.k > 32) weights[i] = weight;
    }
  }
  if (a.over_all != 0) {
    float shares = 0.0f;
    for (std::int64_t e = lane; e < a.experts; e += 32) {
      shares = __fadd_rn(shares, share_of(logits[e], largest));
    }
    sum = cuda_kernels::warp_total(shares);
  }
  for (std::int64_t i = lane; i < a.k; i += 32) {
    weights[i] = (a.k > 32 ? weights[i] : mine) / sum;
  }
}

struct TopKKernel {
  const float* logits;
  const std::int32_t* active_rows;
  TopK top_k;
};
__global__ void __launch_bounds__(32) top_k_kernel(TopKKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  pick(a.top_k, a.logits + row * a.top_k.experts, row);
}

// ------------------------------------------------------------------------------ route

struct RouteKernel {
  const float* x;
  const void* norm;
  float* normed;
  const std::uint16_t* weight;
  const void* bias;
  const std::int32_t* active_rows;
  TopK top_k;
  std::int64_t norm_is_f32, bias_is_f32, columns;
  double eps;
};

__device__ float value_at(const void* values, std::int64_t is_f32, std::int64_t i) {
  if (values == nullptr) return 0.0f;
  if (is_f32 != 0) return static_cast<const float*>(values)[i];
  return bf16_bits_to_float(static_cast<const std::uint16_t*>(values)[i]);
}

constexpr int kHeld = 12;  // chunks of 8 columns that a lane holds of its warp's first expert

__device__ float add_chunk(const uint4& w, const float* x, float sum) {
  const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(x[2 * i], __uint_as_float(words[i] << 16), sum);
    sum = fmaf(x[2 * i + 1], __uint_as_float(words[i] & 0xFFFF0000u), sum);
  }
  return sum;
}

__device__ void store_eight(float* to, const cuda_kernels::Eight& x) {
  const float* v = x.value;
  reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Norms the block's row into shared memory, and, by the first block of a row, into a.normed.
__device__ void norm_row(const RouteKernel& a, std::int64_t row, bool stores, float* to) {
  __shared__ float sums[kWarps];
  const float* x = a.x + row * a.columns;
  const float sum = cuda_kernels::warp_total(cuda_kernels::square_sum(x, a.columns));
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float scale = cuda_kernels::norm_scale(sums, a.columns, static_cast<float>(a.eps));
  for (int h = threadIdx.x * 8; h < a.columns; h += kThreads * 8) {
    const cuda_kernels::Eight values =
        cuda_kernels::normed(cuda_kernels::load_eight(x + h), scale,
                             cuda_kernels::load_weights(a.norm, a.norm_is_f32, h));
    store_eight(to + h, values);
    if (stores) store_eight(a.normed + row * a.columns + h, values);
  }
  __syncthreads();
}

// Shared memory, f32: the row, then the logits. kShare blocks work on a row.
template <int kShare>
__global__ void __launch_bounds__(kThreads) route_kernel(RouteKernel a) {
  namespace cg = cooperative_groups;
  extern __shared__ float4 shared_words[];
  float* x = reinterpret_cast<float*>(shared_words);
  float* logits = x + a.columns;
  const int lane = threadIdx.x % 32;
  const int rank = kShare == 1 ? 0 : static_cast<int>(blockIdx.x) % kShare;
  const auto chunks = static_cast<int>(a.columns / 8);
  const int first = rank + static_cast<int>(threadIdx.x) / 32 * kShare;
  const auto* weights = reinterpret_cast<const uint4*>(a.weight);
  uint4 held[kHeld];  // asked for before the kernels before this one have ended
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const bool there = first < a.top_k.experts && lane + 32 * i < chunks;
    held[i] = there ? __ldg(weights + static_cast<std::int64_t>(first) * chunks + lane + 32 * i)
                    : make_uint4(0, 0, 0, 0);
  }
  if (threadIdx.x == 0) {
    prefetch(a.norm, static_cast<unsigned>(a.columns) * (a.norm_is_f32 != 0 ? 4 : 2));
    prefetch_line(a.bias);
  }
  const std::int64_t row = blockIdx.x / kShare;
  const bool is_active = row < *a.active_rows;  // which the host wrote before the step
  wait_for_inputs();
  if (!is_active) return;  // the whole cluster
  if constexpr (kShare > 1) cluster_began();
  norm_row(a, row, rank == 0, x);
  if constexpr (kShare > 1) wait_for_cluster();
  for (int e = first; e < a.top_k.experts; e += kShare * kWarps) {
    const uint4* from = weights + static_cast<std::int64_t>(e) * chunks;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int chunk = lane + 32 * i;
      if (chunk >= chunks) break;
      sum = add_chunk(e == first ? held[i] : __ldg(from + chunk), x + chunk * 8, sum);
    }
    for (int chunk = lane + 32 * kHeld; chunk < chunks; chunk += 32) {
      sum = add_chunk(__ldg(from + chunk), x + chunk * 8, sum);
    }
    sum = __fadd_rn(cuda_kernels::warp_total(sum), value_at(a.bias, a.bias_is_f32, e));
    if (lane != 0) continue;
    if constexpr (kShare == 1) {
      logits[e] = sum;
    } else {
      *cg::this_cluster().map_shared_rank(logits + e, 0) = sum;
    }
  }
  if constexpr (kShare == 1) {
    __syncthreads();
  } else {
    cg::this_cluster().sync();
  }
  if (rank == 0 && threadIdx.x < 32) pick(a.top_k, logits, row);
}

constexpr int kShared = 8;
constexpr std::int64_t kSharedRows = 64;

}  // namespace

Status router_top_k(device::Stream& stream, const RouterTopKArgs& a) {
  const TopKKernel kernel{a.logits.as<const float>(),
                          a.active_rows.as<const std::int32_t>(),
                          {a.ids.as<std::int32_t>(), a.weights.as<float>(), a.logits.shape[1],
                           a.ids.shape[1], a.over_all ? 1 : 0}};
  return launch_cuda(stream,
                     {"router_top_k",
                      {.grid = dim3(static_cast<unsigned>(a.logits.shape[0])),
                       .block = dim3(32),
                       .overlaps = true}},
                     top_k_kernel, kernel,
                     {reads("logits", a.logits), reads("active_rows", a.active_rows),
                      writes("ids", a.ids), writes("weights", a.weights)});
}

Status route(device::Stream& stream, const RouteArgs& a, bool& done) {
  done = a.linear.weight.dtype == tensor::DType::kBF16 && a.linear.residual.empty() &&
         a.norm.x.shape[1] % 8 == 0;
  if (!done) return {};
  const RouteKernel kernel{
      .x = a.norm.x.as<const float>(),
      .norm = a.norm.weight.address,
      .normed = a.norm.out.as<float>(),
      .weight = a.linear.weight.as<const std::uint16_t>(),
      .bias = a.linear.bias.empty() ? nullptr : a.linear.bias.address,
      .active_rows = a.norm.active_rows.as<const std::int32_t>(),
      .top_k = {a.top_k.ids.as<std::int32_t>(), a.top_k.weights.as<float>(),
                a.linear.weight.shape[0], a.top_k.ids.shape[1], a.top_k.over_all ? 1 : 0},
      .norm_is_f32 = a.norm.weight.dtype == tensor::DType::kF32 ? 1 : 0,
      .bias_is_f32 = a.linear.bias.dtype == tensor::DType::kF32 ? 1 : 0,
      .columns = a.norm.x.shape[1],
      .eps = double{a.norm.eps}};
  const std::int64_t rows = a.norm.x.shape[0];
  const bool shared = rows <= kSharedRows;
  const device::cuda::LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(shared ? rows * kShared : rows)),
      .block = dim3(kThreads),
      .shared_bytes = sizeof(float) * static_cast<std::size_t>(kernel.columns +
                                                               kernel.top_k.experts),
      .cluster = shared ? kShared : 1u,
      .overlaps = true};
  return launch_cuda(stream, {"route", shape}, shared ? route_kernel<kShared> : route_kernel<1>,
                     kernel,
                     {reads("x", a.norm.x), reads("norm", a.norm.weight),
                      reads("weight", a.linear.weight), reads("bias", a.linear.bias),
                      reads("active_rows", a.norm.active_rows), writes("normed", a.norm.out),
                      writes("ids", a.top_k.ids), writes("weights", a.top_k.weights)});
}

}  // namespace holdfast::ops::cuda
