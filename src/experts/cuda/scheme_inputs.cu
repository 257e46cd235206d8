// round_inputs (scheme_kernels.h): what experts/round_inputs.cc does to a row, with the same bits.
#include <cuda_fp8.h>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "experts/cuda/scheme_kernels.h"
#include "tensor/codecs.h"
#include "tensor/fp8_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts::cuda {
namespace {

using config::ActivationScheme;
using device::reads;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::wait_for_inputs;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct RoundKernel {
  const float* from;
  const std::int32_t* ids;  // of pairs; null: rows of `from` are rounded
  const float* input_scale;
  const std::int32_t* active_rows;
  float* to;
  std::int64_t experts, experts_per_token, pairs_per_row, length, scheme;
};

__device__ float to_e4m3(float value) {
  const auto code = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// To nearest, ties to the even code, saturating.
__device__ float to_e2m1(float value) {
  const float a = fabsf(value);
  float magnitude = a > 0.25f ? 0.5f : 0.0f;
  if (a >= 0.75f) magnitude = 1.0f;
  if (a > 1.25f) magnitude = 1.5f;
  if (a >= 1.75f) magnitude = 2.0f;
  if (a > 2.5f) magnitude = 3.0f;
  if (a >= 3.5f) magnitude = 4.0f;
  if (a > 5.0f) magnitude = 6.0f;
  return copysignf(magnitude, value);
}

__device__ float round_fp8(float x, float scale, float factor) {
  return __fmul_rn(to_e4m3(__fdiv_rn(x, scale)), factor);
}

// The least e with amax <= 448 * 2^e, within what e8m0 has.
__device__ int mxfp8_exponent(float amax) {
  if (amax == 0.0f) return -127;
  int exponent = ilogbf(amax);
  const float significand = ldexpf(amax, -exponent);
  exponent -= 8;
  if ((__float_as_uint(significand) & 0x7FFFFFu) > 0x600000u) ++exponent;
  return min(max(exponent, -127), 127);
}

// Bits of the largest magnitude; those of an infinity or a NaN are larger than any number's.
constexpr std::uint32_t kInfinity = 0x7F800000u;
__device__ std::uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFu; }

// One value of a group whose largest magnitude's bits are `amax`.
__device__ float round_value(const RoundKernel& a, float x, std::uint32_t bits, float scale) {
  if (bits >= kInfinity) return __uint_as_float(0x7FC00000u);
  const float amax = __uint_as_float(bits);
  switch (static_cast<ActivationScheme>(a.scheme)) {
    case ActivationScheme::kMxfp8: {
      const int exponent = mxfp8_exponent(amax);
      return ldexpf(to_e4m3(ldexpf(x, -exponent)), exponent);
    }
    case ActivationScheme::kFp8Token: {
      const float step = fmaxf(__fdiv_rn(amax, tensor::kF8E4M3Max),
                               1.0f / (tensor::kF8E4M3Max * 512.0f));
      return round_fp8(x, step, step);
    }
    case ActivationScheme::kFp8TokenGroup: {
      const float step = __fmul_rn(fmaxf(amax, 1e-10f), 1.0f / tensor::kF8E4M3Max);
      return round_fp8(x, step, step);
    }
    case ActivationScheme::kNvfp4: {
      const float block = to_e4m3(__fdiv_rn(amax, __fmul_rn(6.0f, scale)));
      const float step = __fmul_rn(block, scale);
      const float steps = step == 0.0f ? copysignf(0.0f, x) : __fdiv_rn(x, step);
      return __fmul_rn(to_e2m1(steps), block);
    }
    case ActivationScheme::kNone:
    case ActivationScheme::kFp8Static: break;
  }
  return x;
}

__device__ int group_of(const RoundKernel& a) {
  switch (static_cast<ActivationScheme>(a.scheme)) {
    case ActivationScheme::kMxfp8: return tensor::kMxBlock;
    case ActivationScheme::kFp8TokenGroup: return tensor::kFp8Block;
    case ActivationScheme::kNvfp4: return tensor::kNvfp4Block;
    default: return 0;  // the row
  }
}

// A warp for each group.
__device__ void round_groups(const RoundKernel& a, const float* from, float* to, float scale) {
  const int group = group_of(a);
  const int lane = threadIdx.x % 32;
  for (std::int64_t begin = std::int64_t{threadIdx.x / 32} * group; begin < a.length;
       begin += std::int64_t{kWarps} * group) {
    const std::int64_t end = begin + group < a.length ? begin + group : a.length;
    std::uint32_t largest = 0;
    for (std::int64_t i = begin + lane; i < end; i += 32) {
      largest = max(largest, magnitude(from[i]));
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    for (std::int64_t i = begin + lane; i < end; i += 32) {
      to[i] = round_value(a, from[i], largest, scale);
    }
  }
}

__global__ void __launch_bounds__(kThreads) round_kernel(RoundKernel a) {
  __shared__ std::uint32_t largest_of[kWarps];
  wait_for_inputs();
  const std::int64_t r = blockIdx.x;
  const std::int64_t rows = *a.active_rows;
  if (r >= (a.ids == nullptr ? rows : rows * a.experts_per_token)) return;
  const float* from = a.from + (a.ids == nullptr ? r : r / a.pairs_per_row) * a.length;
  float* to = a.to + r * a.length;
  float scale = 1.0f;
  if (a.ids != nullptr) {
    const std::int32_t id = a.ids[r];
    if (id < 0 || id >= a.experts) return;
    if (a.input_scale != nullptr) scale = a.input_scale[id];
  }
  if (static_cast<ActivationScheme>(a.scheme) == ActivationScheme::kFp8Static) {
    for (std::int64_t i = threadIdx.x; i < a.length; i += kThreads) {
      to[i] = round_fp8(from[i], scale, 1.0f);
    }
    return;
  }
  if (group_of(a) != 0) return round_groups(a, from, to, scale);
  std::uint32_t largest = 0;
  for (std::int64_t i = threadIdx.x; i < a.length; i += kThreads) {
    largest = max(largest, magnitude(from[i]));
  }
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  if (threadIdx.x % 32 == 0) largest_of[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = max(largest, largest_of[w]);
  for (std::int64_t i = threadIdx.x; i < a.length; i += kThreads) {
    to[i] = round_value(a, from[i], largest, scale);
  }
}

}  // namespace

Result<SchemeInput> round_inputs(device::Stream& stream, const MoeShape& shape,
                                 const ExpertsArgs& args, const RoundInputs& round) {
  if (round.scheme == ActivationScheme::kNone) return round.from;
  // A row's own scales are the same for all of its experts.
  const bool of_rows = round.input_scale.empty() && round.from.pairs_per_row > 1;
  const std::int64_t pairs = shape.n * shape.experts_per_token;
  const TensorView ids = of_rows ? TensorView{} : args.ids;
  const RoundKernel kernel{
      .from = round.from.x.as<const float>(),
      .ids = of_rows ? nullptr : ids.as<const std::int32_t>(),
      .input_scale = round.input_scale.empty() ? nullptr : round.input_scale.as<const float>(),
      .active_rows = args.active_rows.as<const std::int32_t>(),
      .to = round.to.as<float>(),
      .experts = shape.expert_count,
      .experts_per_token = shape.experts_per_token,
      .pairs_per_row = round.from.pairs_per_row,
      .length = round.from.x.shape[1],
      .scheme = static_cast<std::int64_t>(round.scheme)};
  const auto rows = static_cast<unsigned>(of_rows ? shape.n : pairs);
  const Status launched = launch_cuda(
      stream, {"experts.round", {.grid = dim3(rows), .block = dim3(kThreads), .overlaps = true}},
      round_kernel, kernel,
      {reads("from", round.from.x), reads("ids", ids), reads("input_scale", round.input_scale),
       reads("active_rows", args.active_rows), writes("inputs", round.to)});
  if (!launched.ok()) return launched.error();
  return SchemeInput{.x = round.to, .pairs_per_row = of_rows ? round.from.pairs_per_row : 1};
}

}  // namespace holdfast::experts::cuda
