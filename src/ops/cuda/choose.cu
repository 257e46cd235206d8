// choose (ops.h): a token of each row of logits, so that a few bytes of a row leave the device,
// with choose_math.h's arithmetic. Chunks of logits go to blocks, a leaf to a thread: the largest
// of each chunk, then sums of weights relative to the row's largest, then one block a row adds the
// chunks in order and finds the token.
#include <cmath>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "ops/choose_math.h"
#include "ops/cuda/launchers.h"

namespace holdfast::ops::cuda {
namespace {

using device::reads;
using device::updates;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::wait_for_inputs;

constexpr int kThreads = 256;
constexpr int kEach = static_cast<int>(kChooseLeaf);
static_assert(kThreads == kChooseLeaves && kChooseRun == 32);

// Of one chunk; 8 words.
struct Part {
  float largest;
  std::int32_t id;      // its
  std::int32_t broken;  // the first that is not finite, or kNone
  std::int32_t zero;
  double total, scaled;  // of weights, and of those at the row's temperature
};
constexpr std::int32_t kNone = 0x7FFFFFFF;
constexpr Part kNothing = {-INFINITY, kNone, kNone, 0, 0.0, 0.0};
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

__device__ void join(Part& best, float value, std::int32_t id, std::int32_t broken) {
  best.broken = min(best.broken, broken);
  if (!goes_before(value, id, best.largest, best.id)) return;
  best.largest = value;
  best.id = id;
}
__device__ void join_lanes(Part& best) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const float value = __shfl_xor_sync(0xFFFFFFFFu, best.largest, distance);
    const std::int32_t id = __shfl_xor_sync(0xFFFFFFFFu, best.id, distance);
    join(best, value, id, __shfl_xor_sync(0xFFFFFFFFu, best.broken, distance));
  }
}

__global__ void __launch_bounds__(kThreads) largest_kernel(ChooseKernel a) {
  __shared__ Part parts[kThreads / 32];
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  if (row >= *a.active_rows) return;
  const float* logits = a.logits + row * a.vocab;
  Part best = kNothing;
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
  join_lanes(best);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) {
    join(best, parts[w].largest, parts[w].id, parts[w].broken);
  }
  a.parts[row * a.chunks + blockIdx.x] = best;
}

// Of a row: the largest, and the first that is broken. By one warp, for all of its lanes.
__device__ Part row_best(const ChooseKernel& a, std::int64_t row) {
  const Part* parts = a.parts + row * a.chunks;
  Part best = kNothing;
  for (std::int64_t c = threadIdx.x % 32; c < a.chunks; c += 32) {
    join(best, parts[c].largest, parts[c].id, parts[c].broken);
  }
  join_lanes(best);
  return best;
}

// Sum over the block, of a leaf of each thread.
__device__ double block_sum(double value, double* warps) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = exact_sum(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0.0;
  for (int w = 0; w < kThreads / 32; ++w) sum = exact_sum(sum, warps[w]);
  __syncthreads();
  return sum;
}

// A thread's leaf of a chunk.
struct Leaf {
  const float* logits;
  int count;
  std::int64_t first_id;

  __device__ Leaf(const ChooseKernel& a, std::int64_t row, std::int64_t chunk)
      : first_id(chunk * kChooseChunk + threadIdx.x * kEach) {
    logits = a.logits + row * a.vocab + first_id;
    count = static_cast<int>(max(min(a.vocab - first_id, kChooseLeaf), std::int64_t{0}));
  }
  __device__ double sum(float largest, double temperature) const {
    double sum = 0.0;
    for (int i = 0; i < count; ++i) {
      sum = exact_sum(sum, choose_weight(logits[i], largest, temperature));
    }
    return sum;
  }
};

__global__ void __launch_bounds__(kThreads) sums_kernel(ChooseKernel a) {
  __shared__ double warps[kThreads / 32];
  __shared__ float largest;
  wait_for_inputs();
  const std::int64_t row = blockIdx.y;
  if (row >= *a.active_rows) return;
  if (threadIdx.x < 32) {
    const Part best = row_best(a, row);
    if (threadIdx.x == 0) largest = best.largest;
  }
  __syncthreads();
  const Leaf leaf(a, row, blockIdx.x);
  const auto temperature = static_cast<double>(a.temperatures[row]);
  const double total = block_sum(leaf.sum(largest, 1.0), warps);
  double scaled = total;
  if (temperature > 0 && temperature != 1.0) {
    scaled = block_sum(leaf.sum(largest, temperature), warps);
  }
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
  const Leaf leaf(a, row, search.chunk);
  sums[threadIdx.x] = leaf.sum(largest, temperature);
  if (threadIdx.x == 0) {
    found = static_cast<std::int32_t>(min(a.vocab, (search.chunk + 1) * kChooseChunk) - 1);
  }
  __syncthreads();
  double reached = search.reached;
  for (int t = 0; t < static_cast<int>(threadIdx.x); ++t) reached = exact_sum(reached, sums[t]);
  for (int i = 0; i < leaf.count; ++i) {
    reached = exact_sum(reached, choose_weight(leaf.logits[i], largest, temperature));
    if (reached <= search.target) continue;
    atomicMin(&found, static_cast<std::int32_t>(leaf.first_id + i));
    break;
  }
  __syncthreads();
  return found;
}

// The chunk in which a draw ends, and the row's sum; by one warp, whose lanes bring the chunks'
// sums 32 at a time, so that adding them in order waits for no memory. For all of its lanes.
__device__ Search find_chunk(const ChooseKernel& a, std::int64_t row, double& total) {
  const Part* parts = a.parts + row * a.chunks;
  const int lane = threadIdx.x % 32;
  const auto each = [&](const auto& visit) {
    for (std::int64_t first = 0; first < a.chunks; first += 32) {
      const std::int64_t mine = first + lane;
      const bool there = mine < a.chunks;
      const double of_total = there ? parts[mine].total : 0.0;
      const double of_scaled = there ? parts[mine].scaled : 0.0;
      const int count = static_cast<int>(min(a.chunks - first, std::int64_t{32}));
      for (int c = 0; c < count; ++c) {
        visit(first + c, __shfl_sync(0xFFFFFFFFu, of_total, c),
              __shfl_sync(0xFFFFFFFFu, of_scaled, c));
      }
    }
  };
  double scaled = 0.0;
  total = 0.0;
  each([&](std::int64_t, double of_total, double of_scaled) {
    total = exact_sum(total, of_total);
    scaled = exact_sum(scaled, of_scaled);
  });
  Search search{.chunk = 0, .reached = 0.0, .target = exact_product(a.draws[row], scaled)};
  bool found = false;
  each([&](std::int64_t chunk, double, double of_scaled) {
    const double next = exact_sum(search.reached, of_scaled);
    found = found || chunk + 1 == a.chunks || next > search.target;
    if (found) return;
    search.reached = next;
    search.chunk = chunk + 1;
  });
  return search;
}

__global__ void __launch_bounds__(kThreads) choose_kernel(ChooseKernel a) {
  __shared__ Part best;
  __shared__ Search search;
  __shared__ double total;
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  const bool draws = a.temperatures[row] > 0.0f;
  if (threadIdx.x < 32) {
    const Part found = row_best(a, row);
    if (threadIdx.x == 0) best = found;
  } else if (threadIdx.x < 64) {
    double sum = 0.0;
    const Search found = find_chunk(a, row, sum);
    if (threadIdx.x == 32) {
      search = found;
      total = sum;
    }
  }
  __syncthreads();
  const bool is_broken = best.broken != kNone;
  const std::int32_t id = draws && !is_broken ? find(a, row, best.largest, search) : best.id;
  if (threadIdx.x != 0) return;
  a.choices[row] = {.id = id,
                    .broken = is_broken ? best.broken : -1,
                    .logit = a.logits[row * a.vocab + (is_broken ? best.broken : id)],
                    .largest = best.largest,
                    .total = total,
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
