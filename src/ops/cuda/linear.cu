// linear: out[r, o] = sum_k x[r, k] w[o, k] + bias[o] + residual[r, o] (ops.h).
//
// A block computes 16 * kRowTiles output features (o) for up to 64 rows (r), all of k: its warps
// take the k in turns of 32 and their sums are added in the order of the warps, so that each output
// has one order of additions, whatever the number of rows. Weights come from memory once, straight
// into the lanes that multiply them (16 bytes a lane and weight row); x comes from the cache.
// Needs K a multiple of 8. Shared memory: the warps' sums, [warps][8 columns][64 values].
#include <algorithm>

#include "device/cuda/cuda_stream.h"
#include "ops/cuda/launchers.h"
#include "ops/cuda/mma.cuh"

namespace holdfast::ops::cuda {
namespace {

using cuda_kernels::bf16_bits_to_float;
using cuda_kernels::mma_bf16;
using cuda_kernels::smaller;
using cuda_kernels::split_pair;
using cuda_kernels::SplitPair;
using device::reads;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::LaunchShape;

constexpr int kBlockRows = 64;  // rows of x that one block serves
constexpr int kColumns = 8;     // of one mma

struct LinearKernel {
  const float* x;
  const std::uint16_t* weight;
  const void* bias;
  const float* residual;
  float* out;
  const std::int32_t* active_rows;
  std::int64_t inputs, outputs, rows, bias_is_f32;
};

__device__ float bias_at(const LinearKernel& a, std::int64_t o) {
  if (a.bias == nullptr) return 0.0f;
  if (a.bias_is_f32 != 0) return static_cast<const float*>(a.bias)[o];
  return bf16_bits_to_float(static_cast<const std::uint16_t*>(a.bias)[o]);
}

// 8 neighbouring k of one row of x, split: words 0, 1 feed the first mma, words 2, 3 the second.
struct SplitEight {
  SplitPair pair[4];
};
__device__ SplitEight load_x(const float* x, bool valid) {
  float4 a = make_float4(0, 0, 0, 0);
  float4 b = a;
  if (valid) {
    a = *reinterpret_cast<const float4*>(x);
    b = *reinterpret_cast<const float4*>(x + 4);
  }
  return {{split_pair(a.x, a.y), split_pair(a.z, a.w), split_pair(b.x, b.y), split_pair(b.z, b.w)}};
}
__device__ uint4 load_weights(const std::uint16_t* w, bool valid) {
  return valid ? __ldg(reinterpret_cast<const uint4*>(w)) : make_uint4(0, 0, 0, 0);
}

template <int kWarps, int kRowTiles, int kGroups>
__device__ void multiply(const LinearKernel& a, std::int64_t first_output, std::int64_t first_row,
                         std::int64_t row_end, float (&sums)[kRowTiles][kGroups][4]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int line = lane / 4;
  const std::int64_t steps = (a.inputs + 31) / 32;
#pragma unroll(kGroups == 1 ? 4 : 2)
  for (std::int64_t step = warp; step < steps; step += kWarps) {
    const std::int64_t k = step * 32 + lane % 4 * 8;
    const bool in_range = k < a.inputs;
    uint4 low[kRowTiles];
    uint4 high[kRowTiles];
    for (int t = 0; t < kRowTiles; ++t) {
      const std::int64_t output = first_output + t * 16 + line;
      low[t] = load_weights(a.weight + output * a.inputs + k, in_range && output < a.outputs);
      high[t] =
          load_weights(a.weight + (output + 8) * a.inputs + k, in_range && output + 8 < a.outputs);
    }
    for (int g = 0; g < kGroups; ++g) {
      const std::int64_t row = first_row + g * kColumns + line;
      const SplitEight x = load_x(a.x + row * a.inputs + k, in_range && row < row_end);
      for (int t = 0; t < kRowTiles; ++t) {
        const std::uint32_t first[4] = {low[t].x, high[t].x, low[t].y, high[t].y};
        const std::uint32_t second[4] = {low[t].z, high[t].z, low[t].w, high[t].w};
        mma_bf16(sums[t][g], first, x.pair[0].hi, x.pair[1].hi);
        mma_bf16(sums[t][g], first, x.pair[0].lo, x.pair[1].lo);
        mma_bf16(sums[t][g], second, x.pair[2].hi, x.pair[3].hi);
        mma_bf16(sums[t][g], second, x.pair[2].lo, x.pair[3].lo);
      }
    }
  }
}

// Adds the warps' sums in order, one row tile and group at a time, and stores.
template <int kWarps, int kRowTiles, int kGroups>
__device__ void reduce_and_store(const LinearKernel& a, std::int64_t first_output,
                                 std::int64_t first_row, std::int64_t row_end,
                                 const float (&sums)[kRowTiles][kGroups][4]) {
  __shared__ float partial[kWarps][16][kColumns + 1];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  for (int t = 0; t < kRowTiles; ++t) {
    for (int g = 0; g < kGroups; ++g) {
      __syncthreads();
      for (int i = 0; i < 4; ++i) {
        partial[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sums[t][g][i];
      }
      __syncthreads();
      for (int at = threadIdx.x; at < 16 * kColumns; at += kWarps * 32) {
        const std::int64_t output = first_output + t * 16 + at % 16;
        const std::int64_t row = first_row + g * kColumns + at / 16;
        if (output >= a.outputs || row >= row_end) continue;
        float sum = 0.0f;
        for (int w = 0; w < kWarps; ++w) sum += partial[w][at % 16][at / 16];
        sum += bias_at(a, output);
        if (a.residual != nullptr) sum += a.residual[row * a.outputs + output];
        a.out[row * a.outputs + output] = sum;
      }
    }
  }
}

template <int kWarps, int kRowTiles, int kGroups>
__device__ void run(const LinearKernel& a, std::int64_t first_row, std::int64_t row_end) {
  const std::int64_t first_output = static_cast<std::int64_t>(blockIdx.x) * 16 * kRowTiles;
  float sums[kRowTiles][kGroups][4] = {};
  multiply<kWarps, kRowTiles, kGroups>(a, first_output, first_row, row_end, sums);
  reduce_and_store<kWarps, kRowTiles, kGroups>(a, first_output, first_row, row_end, sums);
}

// `kFew`: there are at most 8 rows, and the registers of more are left to other blocks.
template <int kWarps, int kRowTiles, bool kFew>
__global__ void __launch_bounds__(kWarps * 32) linear_kernel(LinearKernel a) {
  const std::int64_t active = *a.active_rows < a.rows ? *a.active_rows : a.rows;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kBlockRows;
  if (first_row >= active) return;
  const std::int64_t row_end = smaller(active, first_row + kBlockRows);
  const std::int64_t count = row_end - first_row;
  if constexpr (kFew) {
    return run<kWarps, kRowTiles, 1>(a, first_row, row_end);
  }
  if (count <= 8) {
    run<kWarps, kRowTiles, 1>(a, first_row, row_end);
  } else if (count <= 16) {
    run<kWarps, kRowTiles, 2>(a, first_row, row_end);
  } else if (count <= 32) {
    run<kWarps, kRowTiles, 4>(a, first_row, row_end);
  } else {
    run<kWarps, kRowTiles, 8>(a, first_row, row_end);
  }
}

// f32 weights (small ones: a router): a warp for each output, lanes take k in turns.
struct PlainKernel {
  LinearKernel base;
  const float* weight;
};
__global__ void __launch_bounds__(128) plain_linear_kernel(PlainKernel p) {
  const LinearKernel& a = p.base;
  const std::int64_t row = blockIdx.y;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (row >= *a.active_rows || output >= a.outputs) return;
  float sum = 0.0f;
  for (std::int64_t k = threadIdx.x % 32; k < a.inputs; k += 32) {
    sum += a.x[row * a.inputs + k] * p.weight[output * a.inputs + k];
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  }
  if (threadIdx.x % 32 != 0) return;
  sum += bias_at(a, output);
  if (a.residual != nullptr) sum += a.residual[row * a.outputs + output];
  a.out[row * a.outputs + output] = sum;
}

unsigned blocks(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace

// Many outputs are enough blocks for the device with two tiles each, which share the loads of x.
constexpr std::int64_t kManyOutputs = 16384;

Status linear(device::Stream& stream, const LinearArgs& a) {
  const bool f32_weights = a.weight.dtype == tensor::DType::kF32;
  if (!f32_weights && a.weight.shape[1] % 8 != 0) {
    return Error(ErrorCode::kUnsupported,
                 "linear on CUDA needs an input width that is a multiple of 8, not " +
                     std::to_string(a.weight.shape[1]));
  }
  const LinearKernel kernel{a.x.as<const float>(),
                            f32_weights ? nullptr : a.weight.as<const std::uint16_t>(),
                            a.bias.empty() ? nullptr : a.bias.address,
                            a.residual.empty() ? nullptr : a.residual.as<const float>(),
                            a.out.as<float>(),
                            a.active_rows.as<const std::int32_t>(),
                            a.weight.shape[1],
                            a.weight.shape[0],
                            a.x.shape[0],
                            a.bias.dtype == tensor::DType::kF32 ? 1 : 0};
  const std::initializer_list<device::Operand> operands = {reads("x", a.x),
                                                           reads("weight", a.weight),
                                                           reads("bias", a.bias),
                                                           reads("residual", a.residual),
                                                           reads("active_rows", a.active_rows),
                                                           writes("out", a.out)};
  const auto rows = static_cast<unsigned>(kernel.rows);
  if (f32_weights) {
    const PlainKernel plain{kernel, a.weight.as<const float>()};
    return launch_cuda(
        stream, {"linear", {.grid = dim3(blocks(kernel.outputs, 4), rows), .block = dim3(128)}},
        plain_linear_kernel, plain, operands);
  }
  const bool few = kernel.rows <= kColumns;
  const bool many_outputs = kernel.outputs >= kManyOutputs;
  const std::int64_t outputs_of_a_block = many_outputs ? 32 : 16;
  const LaunchShape shape{
      .grid = dim3(blocks(kernel.outputs, outputs_of_a_block), blocks(kernel.rows, kBlockRows)),
      .block = dim3(many_outputs ? 128 : 256)};
  const auto function = many_outputs
                            ? (few ? linear_kernel<4, 2, true> : linear_kernel<4, 2, false>)
                            : (few ? linear_kernel<8, 1, true> : linear_kernel<8, 1, false>);
  return launch_cuda(stream, {"linear", shape}, function, kernel, operands);
}

}  // namespace holdfast::ops::cuda
