// The ops that work on one row at a time: embedding, rms_norm, rope, kv_write, gather_rows.
// Formulas and contracts are in ops.h. One block a row; blocks of rows that are not active end at
// once. Sums run in a fixed order that does not depend on the row count.
#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda/launchers.h"
#include "ops/cuda/matrix.cuh"

namespace holdfast::ops::cuda {
namespace {

using cuda_kernels::bf16_bits_to_float;
using device::reads;
using device::updates;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::LaunchShape;
using device::cuda::wait_for_inputs;
using cuda_kernels::kThreads;

// Arguments are whole 8-byte words, so that a struct has no padding whose stale bytes the audit
// could take for a pointer.
struct Weights {
  const void* address = nullptr;
  std::int64_t is_f32 = 0;
};
Weights weights_of(const TensorView& view) {
  return {view.address, view.dtype == tensor::DType::kF32 ? 1 : 0};
}
__device__ float weight_at(const Weights& weights, std::int64_t i) {
  if (weights.is_f32 != 0) return static_cast<const float*>(weights.address)[i];
  return bf16_bits_to_float(static_cast<const std::uint16_t*>(weights.address)[i]);
}
__device__ bool is_active(const std::int32_t* active_rows, std::int64_t row) {
  return row < *active_rows;
}

// ------------------------------------------------------------------------------ embedding

struct EmbeddingKernel {
  const std::int32_t* ids;
  Weights table;
  float* out;
  const std::int32_t* active_rows;
  std::int64_t vocab, hidden;
};

__global__ void embedding_kernel(EmbeddingKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (!is_active(a.active_rows, row)) return;
  const std::int64_t id = a.ids[row];
  const bool known = id >= 0 && id < a.vocab;
  for (std::int64_t h = threadIdx.x; h < a.hidden; h += kThreads) {
    a.out[row * a.hidden + h] = known ? weight_at(a.table, id * a.hidden + h) : 0.0f;
  }
}

// ------------------------------------------------------------------------------ rms_norm

struct RmsNormKernel {
  const float* x;
  Weights weight;
  float* out;
  const std::int32_t* active_rows;
  std::int64_t hidden;
  double eps;
};

__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormKernel a) {
  __shared__ float sums[cuda_kernels::kWarps];
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (!is_active(a.active_rows, row)) return;
  const float* x = a.x + row * a.hidden;
  const float sum = cuda_kernels::warp_total(cuda_kernels::square_sum(x, a.hidden));
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float scale = cuda_kernels::norm_scale(sums, a.hidden, static_cast<float>(a.eps));
  float* out = a.out + row * a.hidden;
  for (std::int64_t h = threadIdx.x; h < a.hidden; h += kThreads) {
    out[h] = cuda_kernels::normed(x[h], scale, weight_at(a.weight, h));
  }
}

// ------------------------------------------------------------------------------ rope

struct RopeKernel {
  float* x;
  const std::int32_t* positions;
  const float* cosine;
  const float* sine;
  const std::int32_t* active_rows;
  std::int64_t width, head_count, half, max_positions;
};

__global__ void rope_kernel(RopeKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (!is_active(a.active_rows, row)) return;
  const std::int64_t position = a.positions[row];
  if (position < 0 || position >= a.max_positions) return;
  const float* cosine = a.cosine + position * a.half;
  const float* sine = a.sine + position * a.half;
  for (std::int64_t i = threadIdx.x; i < a.head_count * a.half; i += kThreads) {
    const std::int64_t dim = i % a.half;
    float* x = a.x + row * a.width + i / a.half * 2 * a.half + dim;
    const float low = x[0];
    const float high = x[a.half];
    x[0] = low * cosine[dim] - high * sine[dim];
    x[a.half] = high * cosine[dim] + low * sine[dim];
  }
}

// ------------------------------------------------------------------------------ kv_write

struct KvWriteKernel {
  const float* qkv;
  const std::int32_t* slot_mapping;
  float* key_pages;
  float* value_pages;
  const std::int32_t* active_rows;
  std::int64_t width, kv_width, slot_count;
};

__global__ void kv_write_kernel(KvWriteKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (!is_active(a.active_rows, row)) return;
  const std::int64_t slot = a.slot_mapping[row];
  if (slot < 0 || slot >= a.slot_count) return;
  const float* value = a.qkv + (row + 1) * a.width - a.kv_width;
  const float* key = value - a.kv_width;
  for (std::int64_t i = threadIdx.x; i < a.kv_width; i += kThreads) {
    a.key_pages[slot * a.kv_width + i] = key[i];
    a.value_pages[slot * a.kv_width + i] = value[i];
  }
}

// ------------------------------------------------------------------------------ gather_rows

struct GatherKernel {
  const float* x;
  const std::int32_t* rows;
  float* out;
  const std::int32_t* active_rows;
  std::int64_t source_rows, hidden;
};

__global__ void gather_kernel(GatherKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (!is_active(a.active_rows, row)) return;
  const std::int64_t source = a.rows[row];
  const bool known = source >= 0 && source < a.source_rows;
  for (std::int64_t h = threadIdx.x; h < a.hidden; h += kThreads) {
    a.out[row * a.hidden + h] = known ? a.x[source * a.hidden + h] : 0.0f;
  }
}

LaunchShape one_block_a_row(std::int64_t rows) {
  return {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(kThreads), .overlaps = true};
}
const std::int32_t* count_of(const TensorView& view) { return view.as<const std::int32_t>(); }

}  // namespace

Status embedding(device::Stream& stream, const EmbeddingArgs& a) {
  const EmbeddingKernel kernel{
      a.ids.as<const std::int32_t>(), weights_of(a.table), a.out.as<float>(),
      count_of(a.active_rows),        a.table.shape[0],    a.table.shape[1]};
  return launch_cuda(stream, {"embedding", one_block_a_row(a.ids.shape[0])}, embedding_kernel,
                     kernel,
                     {reads("ids", a.ids), reads("table", a.table),
                      reads("active_rows", a.active_rows), writes("out", a.out)});
}

Status rms_norm(device::Stream& stream, const RmsNormArgs& a) {
  const RmsNormKernel kernel{a.x.as<const float>(),   weights_of(a.weight), a.out.as<float>(),
                             count_of(a.active_rows), a.x.shape[1],         double{a.eps}};
  return launch_cuda(stream, {"rms_norm", one_block_a_row(a.x.shape[0])}, rms_norm_kernel, kernel,
                     {reads("x", a.x), reads("weight", a.weight),
                      reads("active_rows", a.active_rows), writes("out", a.out)});
}

Status rope(device::Stream& stream, const RopeArgs& a) {
  const RopeKernel kernel{a.x.as<float>(),
                          a.positions.as<const std::int32_t>(),
                          a.cos_table.as<const float>(),
                          a.sin_table.as<const float>(),
                          count_of(a.active_rows),
                          a.x.shape[1],
                          a.head_count,
                          a.head_dim / 2,
                          a.cos_table.shape[0]};
  return launch_cuda(
      stream, {"rope", one_block_a_row(a.x.shape[0])}, rope_kernel, kernel,
      {updates("x", a.x), reads("positions", a.positions), reads("cos_table", a.cos_table),
       reads("sin_table", a.sin_table), reads("active_rows", a.active_rows)});
}

Status kv_write(device::Stream& stream, const KvWriteArgs& a) {
  const auto& pages = a.key_pages.shape;
  const KvWriteKernel kernel{a.qkv.as<const float>(), a.slot_mapping.as<const std::int32_t>(),
                             a.key_pages.as<float>(), a.value_pages.as<float>(),
                             count_of(a.active_rows), a.qkv.shape[1],
                             pages[2] * pages[3],     pages[0] * pages[1]};
  return launch_cuda(stream, {"kv_write", one_block_a_row(a.qkv.shape[0])}, kv_write_kernel, kernel,
                     {reads("qkv", a.qkv), reads("slot_mapping", a.slot_mapping),
                      updates("key_pages", a.key_pages), updates("value_pages", a.value_pages),
                      reads("active_rows", a.active_rows)});
}

Status gather_rows(device::Stream& stream, const GatherRowsArgs& a) {
  const GatherKernel kernel{a.x.as<const float>(), a.rows.as<const std::int32_t>(),
                            a.out.as<float>(),     count_of(a.active_rows),
                            a.x.shape[0],          a.x.shape[1]};
  return launch_cuda(stream, {"gather_rows", one_block_a_row(a.rows.shape[0])}, gather_kernel,
                     kernel,
                     {reads("x", a.x), reads("rows", a.rows), reads("active_rows", a.active_rows),
                      writes("out", a.out)});
}

}  // namespace holdfast::ops::cuda
