// MXFP4 experts on tensor cores (contract in experts.h, formulas in semantics.md 2.2, 3.7, 4.5):
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    for pair p = (row, slot), e = ids[p]
//   down_out[p]   = down_e activation[p] + bias
//   out[r]        = residual[r] + sum over k, in order, of weights[r, k] down_out[r, k]
//
// A block computes 16 rows of one expert's matrix for up to 64 of its pairs, with all of K: its
// warps take K in turns of 128 columns, and their sums are added in the order of the warps, so that
// each value has one order of additions, whatever the number of pairs. A lane reads a whole block
// of 32 codes (16 bytes) of its two rows, decodes them to bf16 exactly (a code times a power of
// two), and feeds 8 mma. Codes are read once for 64 pairs. Only experts that have pairs get blocks
// that work; the grid is as large as the most there can be.
#include <cuda_bf16.h>

#include "device/cuda/cuda_stream.h"
#include "experts/cuda/moe_kernels.h"
#include "ops/cuda/mma.cuh"

namespace holdfast::experts::cuda {
namespace {

using cuda_kernels::bf16_bits_to_float;
using cuda_kernels::mma_bf16;
using cuda_kernels::smaller;
using device::reads;
using device::writes;
using device::cuda::launch_cuda;

constexpr int kWarps = 4;
constexpr int kBlockPairs = 64;
constexpr int kColumns = 8;  // of one mma

// ------------------------------------------------------------------------------ group, split

struct GroupKernel {
  const std::int32_t* ids;
  const std::int32_t* active_rows;
  const float* x;
  std::int32_t* group_begin;
  std::int32_t* group_pairs;
  std::int32_t* active;
  std::uint16_t* x_split;
  MoeShape shape;
};

constexpr int kGroupThreads = 1024;

// Where column c of a row lies in the split form: its upper half; the lower one is 8 further on.
__device__ std::int64_t split_at(std::int64_t c) { return c / 8 * 16 + (c % 4) * 2 + c % 8 / 4; }
__device__ void store_split(std::uint16_t* row, std::int64_t c, float value) {
  const std::uint32_t bits = __float_as_uint(value);
  const float rest = value - __uint_as_float(bits & 0xFFFF0000u);
  const __nv_bfloat16 low = __float2bfloat16_rn(rest);
  const std::int64_t at = split_at(c);
  row[at] = static_cast<std::uint16_t>(bits >> 16);
  row[at + 8] = *reinterpret_cast<const std::uint16_t*>(&low);
}

// Block 0: each warp walks all pairs in order for its experts, first to count and then to write.
// Shared memory: where each expert's pairs begin, [E + 1].
__device__ void group(const GroupKernel& a, std::int64_t pairs, std::int32_t* begin) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const std::int64_t experts = a.shape.expert_count;
  const auto walk = [&](std::int64_t expert, std::int32_t at, bool write) {
    for (std::int64_t base = 0; base < pairs; base += 32) {
      const std::int64_t pair = base + lane;
      const bool mine = pair < pairs && a.ids[pair] == expert;
      const std::uint32_t votes = __ballot_sync(0xFFFFFFFFu, mine);
      if (write && mine) {
        a.group_pairs[at + __popc(votes & ((1u << lane) - 1))] = static_cast<std::int32_t>(pair);
      }
      at += __popc(votes);
    }
    return at;
  };
  for (std::int64_t e = warp; e < experts; e += kGroupThreads / 32) {
    const std::int32_t count = walk(e, 0, false);
    if (lane == 0) begin[e + 1] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    std::int32_t active = 0;
    begin[0] = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (begin[e + 1] > 0) a.active[1 + active++] = static_cast<std::int32_t>(e);
      begin[e + 1] += begin[e];
    }
    a.active[0] = active;
  }
  __syncthreads();
  for (std::int64_t e = threadIdx.x; e <= experts; e += kGroupThreads) a.group_begin[e] = begin[e];
  for (std::int64_t e = warp; e < experts; e += kGroupThreads / 32) walk(e, begin[e], true);
}

__global__ void __launch_bounds__(kGroupThreads) group_kernel(GroupKernel a) {
  const std::int64_t active = smaller(max(*a.active_rows, 0), a.shape.n);
  extern __shared__ std::int32_t begin[];
  if (blockIdx.x == 0) return group(a, active * a.shape.experts_per_token, begin);
  const std::int64_t row = blockIdx.x - 1;
  if (row >= active) return;
  std::uint16_t* to = a.x_split + row * 2 * a.shape.hidden;
  for (std::int64_t c = threadIdx.x; c < a.shape.hidden; c += kGroupThreads) {
    store_split(to, c, a.x[row * a.shape.hidden + c]);
  }
}

// ------------------------------------------------------------------------------ the products

struct MatrixKernel {
  const uint4* codes;
  const std::uint8_t* scales;
  const std::uint16_t* bias;
  const std::uint16_t* input;  // split rows
  const std::int32_t* group_begin;
  const std::int32_t* group_pairs;
  const std::int32_t* active;
  std::int64_t rows, blocks;   // of the matrix: rows, K / 32
  std::int64_t pairs_per_row;  // of the input: experts_per_token, or 1 where a pair has a row
};

// Which matrix rows and which pairs a block works on.
struct Work {
  std::int64_t expert = -1;  // none
  std::int64_t first_row = 0;
  std::int64_t first = 0, end = 0;  // into group_pairs
};
__device__ Work work_of(const MatrixKernel& a) {
  Work work;
  if (static_cast<std::int32_t>(blockIdx.y) >= a.active[0]) return work;
  const std::int64_t expert = a.active[1 + blockIdx.y];
  work.first = a.group_begin[expert] + static_cast<std::int64_t>(blockIdx.z) * kBlockPairs;
  work.end = a.group_begin[expert + 1];
  if (work.first >= work.end) return work;
  work.end = smaller(work.end, work.first + kBlockPairs);
  work.expert = expert;
  work.first_row = static_cast<std::int64_t>(blockIdx.x) * 16;
  return work;
}

// A block's scale, 2^(s - 127), as two factors: a code's bits taken for a bf16 are its value times
// 2^-126, so the first is 2^(min(s, 128) - 1); the second, for larger scales only, the rest.
struct Scale {
  std::uint32_t first, rest;
};
__device__ Scale scale_of(std::uint32_t s) {
  const std::uint32_t capped = min(s, 128u);
  const std::uint32_t first = (capped + 126u) << 7;
  const std::uint32_t rest = (s - capped + 127u) << 7;
  return {first | first << 16, rest | rest << 16};
}
__device__ std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}
// Codes j and j + 4 of a word of eight, as a pair of bf16. e2m1 (sign, 2 exponent bits, 1 mantissa
// bit) lies in a bf16's upper bits as it is, subnormals included.
__device__ std::uint32_t decode(std::uint32_t word, int j, const Scale& scale, bool large) {
  const std::uint32_t codes = word >> (4 * j);
  const std::uint32_t bits = (codes & 0x00080008u) << 12 | (codes & 0x00070007u) << 6;
  const std::uint32_t value = multiply_pairs(bits, scale.first);
  return large ? multiply_pairs(value, scale.rest) : value;
}

template <int kGroups>
__device__ void multiply(const MatrixKernel& a, const Work& work, float (&sums)[kGroups][4]) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int line = lane / 4;
  const std::int64_t low_row = work.first_row + line;
  const std::int64_t matrix = work.expert * a.rows;
  const bool has_low = low_row < a.rows;
  const bool has_high = low_row + 8 < a.rows;
  const std::int64_t width = a.blocks * 64;  // of a split row, in bf16
  const std::uint16_t* input[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    const std::int64_t at = work.first + g * kColumns + line;
    const std::int64_t pair = at < work.end ? a.group_pairs[at] : a.group_pairs[work.first];
    input[g] = a.input + pair / a.pairs_per_row * width;
  }
  const std::int64_t steps = (a.blocks + 3) / 4;
#pragma unroll(kGroups == 1 ? 4 : 2)
  for (std::int64_t step = warp; step < steps; step += kWarps) {
    const std::int64_t block = step * 4 + lane % 4;
    const bool in_range = block < a.blocks;
    uint4 low = make_uint4(0, 0, 0, 0);
    uint4 high = low;
    std::uint32_t low_scale = 127;
    std::uint32_t high_scale = 127;
    if (in_range && has_low) {
      const std::int64_t at = (matrix + low_row) * a.blocks + block;
      low = __ldg(a.codes + at);
      low_scale = __ldg(a.scales + at);
    }
    if (in_range && has_high) {
      const std::int64_t at = (matrix + low_row + 8) * a.blocks + block;
      high = __ldg(a.codes + at);
      high_scale = __ldg(a.scales + at);
    }
    const bool large = __any_sync(0xFFFFFFFFu, max(low_scale, high_scale) > 128);
    const Scale low_factor = scale_of(low_scale);
    const Scale high_factor = scale_of(high_scale);
    const std::uint32_t low_words[4] = {low.x, low.y, low.z, low.w};
    const std::uint32_t high_words[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      std::uint32_t weights[2][4];
      for (int half = 0; half < 2; ++half) {
        weights[half][0] = decode(low_words[w], half * 2, low_factor, large);
        weights[half][1] = decode(high_words[w], half * 2, high_factor, large);
        weights[half][2] = decode(low_words[w], half * 2 + 1, low_factor, large);
        weights[half][3] = decode(high_words[w], half * 2 + 1, high_factor, large);
      }
      for (int g = 0; g < kGroups; ++g) {
        uint4 hi = make_uint4(0, 0, 0, 0);
        uint4 lo = hi;
        if (in_range) {
          const auto* at = reinterpret_cast<const uint4*>(input[g] + (block * 4 + w) * 16);
          hi = at[0];
          lo = at[1];
        }
        mma_bf16(sums[g], weights[0], hi.x, hi.y);
        mma_bf16(sums[g], weights[0], lo.x, lo.y);
        mma_bf16(sums[g], weights[1], hi.z, hi.w);
        mma_bf16(sums[g], weights[1], lo.z, lo.w);
      }
    }
  }
}

// The warps' sums of one group of 8 pairs, added in order: totals[row][pair] with the bias.
struct Totals {
  float warp[kWarps][16][kColumns + 1];
  float sum[16][kColumns + 1];
};
__device__ void add_up(const MatrixKernel& a, const Work& work, const float (&sums)[4],
                       Totals& totals) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  __syncthreads();
  for (int i = 0; i < 4; ++i) {
    totals.warp[warp][lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sums[i];
  }
  __syncthreads();
  const int row = threadIdx.x % 16;
  const int column = threadIdx.x / 16;
  float sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += totals.warp[w][row][column];
  const std::int64_t at = work.first_row + row;
  if (at < a.rows) sum += bf16_bits_to_float(a.bias[work.expert * a.rows + at]);
  totals.sum[row][column] = sum;
  __syncthreads();
}
static_assert(kWarps * 32 == 16 * kColumns, "a thread for each value of a group");

// Calls store(pair, totals, column) with a whole block for each group of pairs.
template <int kGroups, typename Store>
__device__ void run(const MatrixKernel& a, const Work& work, Totals& totals, const Store& store) {
  float sums[kGroups][4] = {};
  multiply<kGroups>(a, work, sums);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    add_up(a, work, sums[g], totals);
    store(g);
  }
}
// `kFew`: an expert has at most 8 pairs, and the registers of more are left to other blocks.
template <bool kFew, typename Store>
__device__ void run_any(const MatrixKernel& a, const Work& work, Totals& totals,
                        const Store& store) {
  const std::int64_t count = work.end - work.first;
  if constexpr (kFew) {
    return run<1>(a, work, totals, store);
  }
  if (count <= 8) {
    run<1>(a, work, totals, store);
  } else if (count <= 16) {
    run<2>(a, work, totals, store);
  } else if (count <= 32) {
    run<4>(a, work, totals, store);
  } else {
    run<8>(a, work, totals, store);
  }
}

struct GateUpKernel {
  MatrixKernel matrix;
  const float* alpha;
  const float* beta;
  const float* limit;
  std::uint16_t* activation;
};

// (u + beta) g / (1 + exp(-alpha g)), g and u clamped; a NaN stays one.
__device__ float swiglu(float g, float u, float alpha, float beta, float limit) {
  g = g > limit ? limit : g;
  u = u > limit ? limit : u < -limit ? -limit : u;
  const float power = -alpha * g;
  return g / (1.0f + expf(power < 88.0f ? power : 88.0f)) * (u + beta);
}

// Matrix rows alternate gate, up: a tile of 16 holds 8 columns of the activation.
template <bool kFew>
__global__ void __launch_bounds__(kWarps * 32) gate_up_kernel(GateUpKernel a) {
  __shared__ Totals totals;
  const Work work = work_of(a.matrix);
  if (work.expert < 0) return;
  const float alpha = a.alpha[work.expert];
  const float beta = a.beta[work.expert];
  const float limit = a.limit[work.expert];
  run_any<kFew>(a.matrix, work, totals, [&](int g) {
    const int column = threadIdx.x % 8;
    const int pair_index = threadIdx.x / 8;
    const std::int64_t at = work.first + g * kColumns + pair_index;
    const std::int64_t row = work.first_row + 2 * column;
    if (pair_index >= kColumns || at >= work.end || row + 1 >= a.matrix.rows) return;
    const float value = swiglu(totals.sum[2 * column][pair_index],
                               totals.sum[2 * column + 1][pair_index], alpha, beta, limit);
    const std::int64_t pair = a.matrix.group_pairs[at];
    store_split(a.activation + pair * a.matrix.rows, row / 2, value);
  });
}

struct DownKernel {
  MatrixKernel matrix;
  float* down_out;
};

template <bool kFew>
__global__ void __launch_bounds__(kWarps * 32) down_kernel(DownKernel a) {
  __shared__ Totals totals;
  const Work work = work_of(a.matrix);
  if (work.expert < 0) return;
  run_any<kFew>(a.matrix, work, totals, [&](int g) {
    const std::int64_t row = work.first_row + threadIdx.x % 16;
    const int column = threadIdx.x / 16;
    const std::int64_t at = work.first + g * kColumns + column;
    if (at >= work.end || row >= a.matrix.rows) return;
    const std::int64_t pair = a.matrix.group_pairs[at];
    a.down_out[pair * a.matrix.rows + row] = totals.sum[threadIdx.x % 16][column];
  });
}

// ------------------------------------------------------------------------------ combine

struct CombineKernel {
  const float* down_out;
  const std::int32_t* ids;
  const float* weights;
  const float* residual;
  const std::int32_t* active_rows;
  float* out;
  MoeShape shape;
};

__global__ void combine_kernel(CombineKernel a) {
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  const std::int64_t k = a.shape.experts_per_token;
  for (std::int64_t h = threadIdx.x; h < a.shape.hidden; h += blockDim.x) {
    float sum = a.residual[row * a.shape.hidden + h];
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t pair = row * k + i;
      const std::int32_t id = a.ids[pair];
      if (id < 0 || id >= a.shape.expert_count) continue;
      sum += a.weights[pair] * a.down_out[pair * a.shape.hidden + h];
    }
    a.out[row * a.shape.hidden + h] = sum;
  }
}

MatrixKernel matrix_kernel(const MatrixViews& matrix, const TensorView& input,
                           std::int64_t pairs_per_row, const Workspace& workspace) {
  return {matrix.codes.as<const uint4>(),
          matrix.scales.as<const std::uint8_t>(),
          matrix.bias.as<const std::uint16_t>(),
          input.as<const std::uint16_t>(),
          workspace.group_begin.as<const std::int32_t>(),
          workspace.group_pairs.as<const std::int32_t>(),
          workspace.active.as<const std::int32_t>(),
          matrix.codes.shape[1],
          matrix.codes.shape[2],
          pairs_per_row};
}

// A row goes to an expert once.
bool is_few(const MoeShape& shape) { return shape.n <= kColumns; }

// Every expert that can have pairs, and for each as many groups of 64 as one expert can have.
device::cuda::LaunchShape matrix_shape(const MoeShape& shape, std::int64_t rows) {
  const std::int64_t pairs = shape.n * shape.experts_per_token;
  const std::int64_t experts = pairs < shape.expert_count ? pairs : shape.expert_count;
  return {.grid = dim3(static_cast<unsigned>((rows + 15) / 16), static_cast<unsigned>(experts),
                       static_cast<unsigned>((shape.n + kBlockPairs - 1) / kBlockPairs)),
          .block = dim3(kWarps * 32)};
}

}  // namespace

Status group_and_split(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
                       const Workspace& workspace) {
  const GroupKernel kernel{args.ids.as<const std::int32_t>(),
                           args.active_rows.as<const std::int32_t>(),
                           args.x.as<const float>(),
                           workspace.group_begin.as<std::int32_t>(),
                           workspace.group_pairs.as<std::int32_t>(),
                           workspace.active.as<std::int32_t>(),
                           workspace.x_split.as<std::uint16_t>(),
                           shape};
  return launch_cuda(
      stream,
      {"experts.group",
       {.grid = dim3(static_cast<unsigned>(shape.n) + 1),
        .block = dim3(kGroupThreads),
        .shared_bytes = sizeof(std::int32_t) * static_cast<std::size_t>(shape.expert_count + 1)}},
      group_kernel, kernel,
      {reads("ids", args.ids), reads("active_rows", args.active_rows), reads("x", args.x),
       writes("group_begin", workspace.group_begin), writes("group_pairs", workspace.group_pairs),
       writes("active", workspace.active), writes("x_split", workspace.x_split)});
}

Status gate_up(device::Stream& stream, const MoeShape& shape, const MatrixViews& matrix,
               const Swiglu& swiglu, const Workspace& workspace) {
  const GateUpKernel kernel{
      matrix_kernel(matrix, workspace.x_split, shape.experts_per_token, workspace),
      swiglu.alpha.as<const float>(), swiglu.beta.as<const float>(), swiglu.limit.as<const float>(),
      workspace.activation.as<std::uint16_t>()};
  return launch_cuda(
      stream, {"experts.gate_up", matrix_shape(shape, matrix.codes.shape[1])},
      is_few(shape) ? gate_up_kernel<true> : gate_up_kernel<false>, kernel,
      {reads("gate_up_codes", matrix.codes), reads("gate_up_scales", matrix.scales),
       reads("gate_up_bias", matrix.bias), reads("x_split", workspace.x_split),
       reads("group_begin", workspace.group_begin), reads("group_pairs", workspace.group_pairs),
       reads("active", workspace.active), reads("swiglu_alpha", swiglu.alpha),
       reads("swiglu_beta", swiglu.beta), reads("swiglu_limit", swiglu.limit),
       writes("activation", workspace.activation)});
}

Status down(device::Stream& stream, const MoeShape& shape, const MatrixViews& matrix,
            const Workspace& workspace) {
  const DownKernel kernel{matrix_kernel(matrix, workspace.activation, 1, workspace),
                          workspace.down_out.as<float>()};
  return launch_cuda(
      stream, {"experts.down", matrix_shape(shape, matrix.codes.shape[1])},
      is_few(shape) ? down_kernel<true> : down_kernel<false>, kernel,
      {reads("down_codes", matrix.codes), reads("down_scales", matrix.scales),
       reads("down_bias", matrix.bias), reads("activation", workspace.activation),
       reads("group_begin", workspace.group_begin), reads("group_pairs", workspace.group_pairs),
       reads("active", workspace.active), writes("down_out", workspace.down_out)});
}

Status combine(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const Workspace& workspace) {
  const CombineKernel kernel{workspace.down_out.as<const float>(),
                             args.ids.as<const std::int32_t>(),
                             args.weights.as<const float>(),
                             args.residual.as<const float>(),
                             args.active_rows.as<const std::int32_t>(),
                             args.out.as<float>(),
                             shape};
  return launch_cuda(
      stream,
      {"experts.combine", {.grid = dim3(static_cast<unsigned>(shape.n)), .block = dim3(256)}},
      combine_kernel, kernel,
      {reads("down_out", workspace.down_out), reads("ids", args.ids),
       reads("weights", args.weights), reads("residual", args.residual),
       reads("active_rows", args.active_rows), writes("out", args.out)});
}

}  // namespace holdfast::experts::cuda
