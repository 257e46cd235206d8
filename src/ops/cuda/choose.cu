// choose (ops.h): a token of each row of logits, so that a few bytes of a row leave the device.
// Chunks of 4096 logits go to blocks: the largest of each, then sums of exponentials in float64
// relative to the row's largest, then one block a row adds the chunks in order and finds the token.
// No order of additions depends on other rows.
#include <cmath>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda/launchers.h"

namespace holdfast::ops::cuda {
namespace {

using device::reads;
using device::updates;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::wait_for_inputs;

constexpr int kThreads = 256;
constexpr int kEach = 16;  // logits of a thread
static_assert(kThreads * kEach == kChooseChunk);

// Of one chunk; 8 words.
struct Part {
  float largest;
  std::int32_t id;      // its
  std::int32_t broken;  // the first that is not finite, or -1
  std::int32_t zero;
  double total, scaled;  // sums of exp(l - row's largest), and of the same over the temperature
};
static_assert(sizeof(Part) == 4 * kChooseWords);
static_assert(sizeof(Choice) == 4 * kChooseWords);

struct ChooseKernel {
  const float* logits;
  const float* temperatures;
  const double* draws;
  const std::int32_t* active_rows;
  Part* parts;
  Choice* choices;
  std::int64_t vocab, chunks;
};

__device__ bool goes_before(float value, std::int32_t id, float other, std::int32_t other_id) {
  return value > other || (value == other && id < other_id);
}

__global__ void __launch_bounds__(kThreads) largest_kernel(ChooseKernel a) {
  __shared__ Part parts[kThreads / 32];
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  if (row >= *a.active_rows) return;
  const float* logits = a.logits + row * a.vocab;
  Part best{-INFINITY, 0x7FFFFFFF, 0x7FFFFFFF, 0, 0.0, 0.0};
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t id = static_cast<std::int64_t>(blockIdx.x) * kChooseChunk + i * kThreads +
                            threadIdx.x;
    if (id >= a.vocab) break;
    const float value = logits[id];
    if (!isfinite(value)) best.broken = min(best.broken, static_cast<std::int32_t>(id));
    if (goes_before(value, static_cast<std::int32_t>(id), best.largest, best.id)) {
      best.largest = value;
      best.id = static_cast<std::int32_t>(id);
    }
  }
  const auto join = [&best](float value, std::int32_t id, std::int32_t broken) {
    best.broken = min(best.broken, broken);
    if (!goes_before(value, id, best.largest, best.id)) return;
    best.largest = value;
    best.id = id;
  };
  for (int distance = 16; distance > 0; distance /= 2) {
    const float value = __shfl_xor_sync(0xFFFFFFFFu, best.largest, distance);
    const std::int32_t id = __shfl_xor_sync(0xFFFFFFFFu, best.id, distance);
    join(value, id, __shfl_xor_sync(0xFFFFFFFFu, best.broken, distance));
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) join(parts[w].largest, parts[w].id, parts[w].broken);
  if (best.broken == 0x7FFFFFFF) best.broken = -1;
  a.parts[row * a.chunks + blockIdx.x] = best;
}

// Of a row: the largest, and the first that is broken.
__device__ Part row_best(const ChooseKernel& a, std::int64_t row) {
  Part best = a.parts[row * a.chunks];
  for (std::int64_t c = 1; c < a.chunks; ++c) {
    const Part& part = a.parts[row * a.chunks + c];
    if (best.broken < 0) best.broken = part.broken;
    if (!goes_before(part.largest, part.id, best.largest, best.id)) continue;
    best.largest = part.largest;
    best.id = part.id;
  }
  return best;
}

// Sum over the block: within each warp by halving distances, then the warps in order. For thread 0.
__device__ double block_sum(double value, double* warps) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  for (int w = 0; w < kThreads / 32; ++w) sum += warps[w];
  __syncthreads();
  return sum;
}

__device__ double weight(float logit, float largest, double temperature) {
  return exp((static_cast<double>(logit) - static_cast<double>(largest)) / temperature);
}

__global__ void __launch_bounds__(kThreads) sums_kernel(ChooseKernel a) {
  __shared__ double warps[kThreads / 32];
  __shared__ float largest;
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  if (row >= *a.active_rows) return;
  if (threadIdx.x == 0) largest = row_best(a, row).largest;
  __syncthreads();
  const float* logits = a.logits + row * a.vocab;
  const auto temperature = static_cast<double>(a.temperatures[row]);
  double total = 0.0;
  double scaled = 0.0;
  for (int i = 0; i < kEach; ++i) {
    const std::int64_t id = static_cast<std::int64_t>(blockIdx.x) * kChooseChunk + i * kThreads +
                            threadIdx.x;
    if (id >= a.vocab) break;
    total += weight(logits[id], largest, 1.0);
    if (temperature > 0) scaled += weight(logits[id], largest, temperature);
  }
  total = block_sum(total, warps);
  scaled = block_sum(scaled, warps);
  if (threadIdx.x != 0) return;
  Part& part = a.parts[row * a.chunks + blockIdx.x];
  part.total = total;
  part.scaled = scaled;
}

// The first id of chunk `chunk` at which the running sum of weights, from `reached` on, is above
// `target`; the chunk's last one when rounding leaves none. For every thread.
struct Search {
  std::int64_t chunk = 0;
  double reached = 0, target = 0;
};
__device__ std::int32_t find(const ChooseKernel& a, std::int64_t row, float largest,
                             const Search& search) {
  __shared__ double sums[kThreads];
  __shared__ std::int32_t found;
  const auto temperature = static_cast<double>(a.temperatures[row]);
  const float* logits = a.logits + row * a.vocab;
  const std::int64_t begin = search.chunk * kChooseChunk;
  const std::int64_t end = min(a.vocab, begin + kChooseChunk);
  const std::int64_t mine = begin + threadIdx.x * kEach;
  double sum = 0.0;
  for (std::int64_t id = mine; id < min(end, mine + kEach); ++id) {
    sum += weight(logits[id], largest, temperature);
  }
  sums[threadIdx.x] = sum;
  if (threadIdx.x == 0) found = static_cast<std::int32_t>(end - 1);
  __syncthreads();
  double before = search.reached;
  for (int t = 0; t < static_cast<int>(threadIdx.x); ++t) before += sums[t];
  double reached = before;
  for (std::int64_t id = mine; id < min(end, mine + kEach); ++id) {
    reached += weight(logits[id], largest, temperature);
    if (reached <= search.target) continue;
    atomicMin(&found, static_cast<std::int32_t>(id));
    break;
  }
  __syncthreads();
  return found;
}

__global__ void __launch_bounds__(kThreads) choose_kernel(ChooseKernel a) {
  __shared__ Part best;
  __shared__ Search search;
  __shared__ double total;
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  const Part* parts = a.parts + row * a.chunks;
  const bool draws = a.temperatures[row] > 0.0f;
  if (threadIdx.x == 0) {
    best = row_best(a, row);
    double scaled = 0.0;
    total = 0.0;
    for (std::int64_t c = 0; c < a.chunks; ++c) {
      total += parts[c].total;
      scaled += parts[c].scaled;
    }
    search = {.chunk = 0, .reached = 0.0, .target = a.draws[row] * scaled};
    while (search.chunk + 1 < a.chunks &&
           search.reached + parts[search.chunk].scaled <= search.target) {
      search.reached += parts[search.chunk++].scaled;
    }
  }
  __syncthreads();
  const std::int32_t id =
      draws && best.broken < 0 ? find(a, row, best.largest, search) : best.id;
  if (threadIdx.x != 0) return;
  a.choices[row] = {.id = id,
                    .broken = best.broken,
                    .logit = a.logits[row * a.vocab + id],
                    .largest = best.largest,
                    .log_total = log(total),
                    .zero = 0};
}

}  // namespace

Status choose(device::Stream& stream, const ChooseArgs& a) {
  const std::int64_t vocab = a.logits.shape[1];
  const std::int64_t chunks = choose_chunks(vocab);
  const ChooseKernel kernel{
      a.logits.as<const float>(),
      a.temperatures.as<const float>(),
      reinterpret_cast<const double*>(a.draws.address),
      a.active_rows.as<const std::int32_t>(),
      reinterpret_cast<Part*>(a.scratch.address),
      reinterpret_cast<Choice*>(a.choices.address),
      vocab,
      chunks};
  const auto rows = static_cast<unsigned>(a.logits.shape[0]);
  const std::initializer_list<device::Operand> operands = {
      reads("logits", a.logits),           reads("temperatures", a.temperatures),
      reads("draws", a.draws),             reads("active_rows", a.active_rows),
      updates("scratch", a.scratch),       writes("choices", a.choices)};
  const device::cuda::LaunchShape of_chunks{.grid = dim3(static_cast<unsigned>(chunks), rows),
                                            .block = dim3(kThreads),
                                            .overlaps = true};
  HF_TRY(launch_cuda(stream, {"choose.largest", of_chunks}, largest_kernel, kernel, operands));
  HF_TRY(launch_cuda(stream, {"choose.sums", of_chunks}, sums_kernel, kernel, operands));
  return launch_cuda(
      stream, {"choose", {.grid = dim3(rows), .block = dim3(kThreads), .overlaps = true}},
      choose_kernel, kernel, operands);
}

}  // namespace holdfast::ops::cuda
