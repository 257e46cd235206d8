// head_norm and silu_gate (ops.h). Sums run in a fixed order that looks at one head alone: a warp
// for each head, lanes take every 32nd element.
#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda/launchers.h"
#include "ops/cuda/matrix.cuh"

namespace holdfast::ops::cuda {
namespace {

using cuda_kernels::kThreads;
using cuda_kernels::kWarps;
using device::reads;
using device::updates;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::wait_for_inputs;

// Whole words, so that the struct has no padding whose stale bytes the audit could take for a
// pointer.
struct HeadNormKernel {
  float* x;
  const void* query_weight;
  const void* key_weight;
  const std::int32_t* active_rows;
  std::int64_t query_is_f32, key_is_f32, width, dim, query_heads, heads;
  double eps;
};

__device__ float weight_at(const void* weights, std::int64_t is_f32, std::int64_t i) {
  if (is_f32 != 0) return static_cast<const float*>(weights)[i];
  return cuda_kernels::bf16_bits_to_float(static_cast<const std::uint16_t*>(weights)[i]);
}

__global__ void __launch_bounds__(kThreads) head_norm_kernel(HeadNormKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  const int lane = threadIdx.x % 32;
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (head >= a.heads) return;
  float* x = a.x + row * a.width + head * a.dim;
  float squares = 0.0f;
  for (std::int64_t i = lane; i < a.dim; i += 32) squares = fmaf(x[i], x[i], squares);
  const float mean = cuda_kernels::warp_total(squares) / static_cast<float>(a.dim);
  const float scale = 1.0f / sqrtf(__fadd_rn(mean, static_cast<float>(a.eps)));
  const bool is_query = head < a.query_heads;
  const void* weight = is_query ? a.query_weight : a.key_weight;
  const std::int64_t is_f32 = is_query ? a.query_is_f32 : a.key_is_f32;
  for (std::int64_t i = lane; i < a.dim; i += 32) {
    x[i] = cuda_kernels::normed(x[i], scale, weight_at(weight, is_f32, i));
  }
}

struct SiluGateKernel {
  const float* x;
  float* out;
  const std::int32_t* active_rows;
  std::int64_t inner;
};

__global__ void __launch_bounds__(kThreads) silu_gate_kernel(SiluGateKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= a.inner) return;
  const float* gate = a.x + row * 2 * a.inner + i;
  const float g = gate[0];
  a.out[row * a.inner + i] = __fmul_rn(g / __fadd_rn(1.0f, expf(-g)), gate[a.inner]);
}

unsigned blocks(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}
std::int64_t is_f32(const TensorView& view) { return view.dtype == tensor::DType::kF32 ? 1 : 0; }

}  // namespace

Status head_norm(device::Stream& stream, const HeadNormArgs& a) {
  const std::int64_t heads = a.query_head_count + a.key_head_count;
  if (heads == 0) return {};
  const HeadNormKernel kernel{a.x.as<float>(),
                              a.query_weight.address,
                              a.key_weight.address,
                              a.active_rows.as<const std::int32_t>(),
                              is_f32(a.query_weight),
                              is_f32(a.key_weight),
                              a.x.shape[1],
                              a.query_weight.shape[0],
                              a.query_head_count,
                              heads,
                              double{a.eps}};
  return launch_cuda(stream,
                     {"head_norm",
                      {.grid = dim3(static_cast<unsigned>(a.x.shape[0]), blocks(heads, kWarps)),
                       .block = dim3(kThreads),
                       .overlaps = true}},
                     head_norm_kernel, kernel,
                     {updates("x", a.x), reads("query_weight", a.query_weight),
                      reads("key_weight", a.key_weight), reads("active_rows", a.active_rows)});
}

Status silu_gate(device::Stream& stream, const SiluGateArgs& a) {
  const SiluGateKernel kernel{a.x.as<const float>(), a.out.as<float>(),
                              a.active_rows.as<const std::int32_t>(), a.out.shape[1]};
  return launch_cuda(stream,
                     {"silu_gate",
                      {.grid = dim3(static_cast<unsigned>(a.x.shape[0]),
                                    blocks(kernel.inner, kThreads)),
                       .block = dim3(kThreads),
                       .overlaps = true}},
                     silu_gate_kernel, kernel,
                     {reads("x", a.x), reads("active_rows", a.active_rows), writes("out", a.out)});
}

}  // namespace holdfast::ops::cuda
