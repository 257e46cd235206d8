// A grouped GEMM over experts from CuTe's building blocks (contract in experts.h):
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    for pair p = (row, slot), e = ids[p]
//   down_out[p]   = down_e activation[p] + bias
//
// One atom does all of it: wgmma m64n32k16, weights from registers, inputs from shared memory. Its
// 64 rows are weights', decoded from MXFP4 to bf16 exactly (a code times a power of two) by the
// threads whose fragments they are. Its 32 columns are 16 pairs twice: the upper bf16 half of each
// f32 input, and the bf16 of what that leaves out, so that a product keeps about f32's precision.
// More pairs of an expert (up to 64) are more atoms beside each other, which share the decoding.
//
// Two warpgroups of a block take a fixed half of the columns each; their sums are added in order,
// then the halves' sums. So an element has one order of additions, however many pairs there are.
#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>

#include <algorithm>
#include <array>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "experts/cuda/cutlass/fragments.cuh"
#include "experts/cuda/cutlass/grouped_gemm.h"
#include "experts/cuda/walk_pairs.cuh"

namespace holdfast::experts::grouped {
namespace {

using cute::bfloat16_t;
using cute::Int;
using device::reads;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::LaunchShape;
using device::cuda::wait_for_inputs;

constexpr int kAtomPairs = 16;
constexpr int kAtomColumns = 32;
constexpr int kGroupThreads = 128;  // a warpgroup
constexpr int kThreads = 2 * kGroupThreads;
constexpr int kAhead = 3;           // tiles of codes under way, in registers

// The upper bits of a value, and the nearest bf16 to what they leave out.
struct Halves {
  bfloat16_t high, low;
};
__device__ Halves split(float value) {
  const float high = __uint_as_float(__float_as_uint(value) & 0xFFFF0000u);
  return {bfloat16_t(high), bfloat16_t(value - high)};
}

// ------------------------------------------------------------------------------ prepare

struct PrepareKernel {
  const float* x;
  const std::int32_t* ids;
  const std::int32_t* active_rows;
  int4* items;
  std::int32_t* group_pairs;
  bfloat16_t* inputs;
  Shape shape;
  std::int64_t item_pairs;
  std::int64_t item_count;
};

constexpr int kPrepareThreads = 512;

__device__ std::int32_t active_rows(const PrepareKernel& a) {
  return min(max(*a.active_rows, 0), static_cast<std::int32_t>(a.shape.n));
}

// Each warp walks all pairs in order for its experts, first to count and then to write. `begin`:
// where each expert's pairs begin, [E + 1].
__device__ void group(const PrepareKernel& a, std::int32_t* begin) {
  const std::int64_t pairs = active_rows(a) * a.shape.experts_per_token;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const auto experts = static_cast<int>(a.shape.expert_count);
  for (int e = warp; e < experts; e += kPrepareThreads / 32) {
    const std::int32_t count = cuda::walk_pairs(a.ids, pairs, e, 0, nullptr);
    if (lane == 0) begin[e + 1] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto most = static_cast<std::int32_t>(a.item_pairs);
    std::int64_t item = 0;
    begin[0] = 0;
    for (int e = 0; e < experts; ++e) {
      begin[e + 1] += begin[e];
      for (std::int32_t at = begin[e]; at < begin[e + 1]; at += most) {
        a.items[item++] = make_int4(e, at, min(at + most, begin[e + 1]), 0);
      }
    }
    for (; item < a.item_count; ++item) a.items[item] = make_int4(-1, 0, 0, 0);
  }
  __syncthreads();
  for (int e = warp; e < experts; e += kPrepareThreads / 32) {
    cuda::walk_pairs(a.ids, pairs, e, begin[e], a.group_pairs);
  }
}

// Block 0 groups; each other takes a row.
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(PrepareKernel a) {
  extern __shared__ std::int32_t begin[];
  wait_for_inputs();
  if (blockIdx.x == 0) {
    group(a, begin);
    return;
  }
  const std::int64_t row = blockIdx.x - 1;
  if (row >= active_rows(a)) return;
  const float* x = a.x + row * a.shape.hidden;
  bfloat16_t* to = a.inputs + row * 2 * a.shape.padded_hidden;
  for (std::int64_t k = threadIdx.x; k < a.shape.padded_hidden; k += kPrepareThreads) {
    const std::int64_t column = k / kTileColumns * kTileColumns + column_at(k % kTileColumns);
    const Halves halves = split(column < a.shape.hidden ? x[column] : 0.0f);
    to[k] = halves.high;
    to[a.shape.padded_hidden + k] = halves.low;
  }
}

// ------------------------------------------------------------------------------ the products

struct Product {
  PackedMatrix matrix;
  const float* bias;         // or null
  const bfloat16_t* inputs;  // [rows, 2, 128 tiles]
  const int4* items;
  const std::int32_t* group_pairs;
  std::int32_t pairs_per_row;  // of the inputs
  std::int32_t outputs;        // of the second product that are no padding; else 0
};

using Atom = cute::SM90_64x32x16_F32BF16BF16_RS<cute::GMMA::Major::K, cute::GMMA::Major::K>;

// kAtoms: 1, 2 or 4, of 16 pairs each.
template <int kAtoms>
struct Config {
  static constexpr int kStages = kAtoms == 1 ? 4 : 3;  // kStages - 2 are under way
  static constexpr int kColumns = kAtoms * kAtomColumns;
  using Inputs = decltype(cute::tile_to_shape(
      cute::GMMA::Layout_K_SW128_Atom<bfloat16_t>{},
      cute::Shape<Int<kColumns>, Int<kTileColumns>, Int<kStages>>{}));
  static constexpr int kInputBytes = kColumns * kTileColumns * 2 * kStages;
  static constexpr int kSums = kAtoms * 16;  // of a thread
  static constexpr int kSharedBytes = 2 * kInputBytes + kColumns * 4 + 1024;
  static constexpr int kExchangeRow = 64 + 1;
  static_assert(kSums * kGroupThreads * 4 <= kInputBytes);
  static_assert(kAtoms * kAtomPairs * kExchangeRow * 4 <= kInputBytes);
};

// A block's shared memory, aligned for the swizzle.
template <int kAtoms>
struct Shared {
  std::byte* base;
  __device__ Shared() {
    extern __shared__ std::byte raw[];
    base = raw + (1024 - cute::cast_smem_ptr_to_uint(raw) % 1024) % 1024;
  }
  __device__ bfloat16_t* inputs(int group) const {
    return reinterpret_cast<bfloat16_t*>(base + group * Config<kAtoms>::kInputBytes);
  }
  // By column of the atoms: the element of `inputs` at which it begins, or -1.
  __device__ std::int32_t* offsets() const {
    return reinterpret_cast<std::int32_t*>(base + 2 * Config<kAtoms>::kInputBytes);
  }
  __device__ float* sums() const { return reinterpret_cast<float*>(inputs(1)); }
  __device__ float* exchange() const { return reinterpret_cast<float*>(inputs(0)); }
};

// One warpgroup's inputs: columns without a pair stay zero.
template <int kAtoms>
struct InputLoader {
  using C = Config<kAtoms>;
  const bfloat16_t* from;
  const std::int32_t* offsets;
  bfloat16_t* to;

  __device__ auto tensor() const {
    return cute::make_tensor(cute::make_smem_ptr(to), typename C::Inputs{});
  }
  __device__ void clear() const {
    for (int i = threadIdx.x % kGroupThreads; i < C::kInputBytes / 16; i += kGroupThreads) {
      reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
    }
  }
  __device__ void load(int tile, int stage) const {
    auto inputs = tensor();
    const int chunk = static_cast<int>(threadIdx.x) % 16 * 8;
#pragma unroll
    for (int i = 0; i < C::kColumns / 8; ++i) {
      const int column = i * 8 + static_cast<int>(threadIdx.x) % kGroupThreads / 16;
      const std::int32_t offset = offsets[column];
      if (offset < 0) continue;
      const bfloat16_t* source = from + offset + tile * kTileColumns + chunk;
      cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>::copy(
          *reinterpret_cast<const cute::uint128_t*>(source),
          *reinterpret_cast<cute::uint128_t*>(&inputs(column, chunk, stage)));
    }
  }
};

__device__ void group_barrier(int group) {
  cutlass::arch::NamedBarrier::sync(kGroupThreads, static_cast<std::uint32_t>(1 + group));
}

// What a block multiplies: an item's pairs and the blocks of 8 rows of this thread's warp.
struct Share {
  int4 item;
  int low, high;
};

// The sums of a warpgroup's half of the columns.
template <int kAtoms>
__device__ auto multiply(const Product& a, const Share& share, const Shared<kAtoms>& shared) {
  using C = Config<kAtoms>;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int half = (a.matrix.tiles + 1) / 2;
  const int first = group * half;
  const int count = min(half, a.matrix.tiles - first);
  const InputLoader<kAtoms> inputs{a.inputs, shared.offsets(), shared.inputs(group)};
  const Lines lines(a.matrix, share.item.x, share.low, share.high);

  auto mma = cute::make_tiled_mma(Atom{});
  auto thread_mma = mma.get_slice(threadIdx.x % kGroupThreads);
  auto fragments = thread_mma.make_fragment_B(thread_mma.partition_B(inputs.tensor()));
  auto sums = cute::partition_fragment_C(mma, cute::Shape<Int<64>, Int<C::kColumns>>{});
  cute::clear(sums);
  Weights weights[2];

  Codes ring[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < count) ring[i] = lines.load(first + i);
  }
  inputs.clear();
  group_barrier(group);
#pragma unroll
  for (int i = 0; i < C::kStages - 2; ++i) {
    if (i < count) inputs.load(first + i, i);
    cute::cp_async_fence();
  }
  const auto multiply_half = [&](const Weights& half_weights, int stage, int step) {
    cute::warpgroup_fence_operand(sums);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      cute::gemm(mma, half_weights(cute::_, cute::_, k),
                 fragments(cute::_, cute::_, step + k, stage), sums);
    }
    cute::warpgroup_commit_batch();
    cute::warpgroup_fence_operand(sums);
  };
#pragma unroll 1
  for (int t = 0, stage = 0; t < count; ++t) {
    const Codes codes = ring[0];
#pragma unroll
    for (int i = 0; i + 1 < kAhead; ++i) ring[i] = ring[i + 1];
    if (t + kAhead < count) ring[kAhead - 1] = lines.load(first + t + kAhead);
    cute::warpgroup_wait<1>();  // the first half's weights of the tile before have been read
    decode<0>(codes, weights[0]);
    cute::cp_async_wait<C::kStages - 3>();
    cutlass::arch::fence_view_async_shared();
    group_barrier(group);  // all have this tile's inputs, and are through with the last but one's
    const int ahead = t + C::kStages - 2;
    if (ahead < count) inputs.load(first + ahead, ahead % C::kStages);
    cute::cp_async_fence();
    multiply_half(weights[0], stage, 0);
    cute::warpgroup_wait<1>();
    decode<1>(codes, weights[1]);
    multiply_half(weights[1], stage, 4);
    stage = stage + 1 == C::kStages ? 0 : stage + 1;
  }
  cute::warpgroup_wait<0>();
  cute::warpgroup_fence_operand(sums);
  return sums;
}

// Calls store(sums) in the first warpgroup, with the sums of all columns; then the block meets.
template <int kAtoms, typename Store>
__device__ void run(const Product& a, const Share& share, const Shared<kAtoms>& shared,
                    const Store& store) {
  using C = Config<kAtoms>;
  for (int i = threadIdx.x; i < C::kColumns; i += kThreads) {
    const int pair = i / kAtomColumns * kAtomPairs + i % kAtomPairs;
    const int part = i % kAtomColumns / kAtomPairs;
    const int at = share.item.y + pair;
    shared.offsets()[i] =
        at < share.item.z
            ? (a.group_pairs[at] / a.pairs_per_row * 2 + part) * a.matrix.tiles * kTileColumns
            : -1;
  }
  __syncthreads();
  auto sums = multiply<kAtoms>(a, share, shared);
  const int thread = threadIdx.x % kGroupThreads;
  __syncthreads();  // no input is read any more
  if (threadIdx.x >= kGroupThreads) {
#pragma unroll
    for (int i = 0; i < C::kSums; ++i) shared.sums()[i * kGroupThreads + thread] = sums(i);
  }
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
#pragma unroll
    for (int i = 0; i < C::kSums; ++i) sums(i) += shared.sums()[i * kGroupThreads + thread];
    store(sums);
  }
  __syncthreads();
}

__device__ float bias_of(const Product& a, int expert, int row) {
  return a.bias == nullptr ? 0.0f : a.bias[expert * a.matrix.rows + row];
}

// (u + beta) g / (1 + exp(-alpha g)), g and u clamped; a NaN stays one.
__device__ float swiglu(float g, float u, float alpha, float beta, float limit) {
  g = g > limit ? limit : g;
  u = u > limit ? limit : u < -limit ? -limit : u;
  const float power = __fmul_rn(-alpha, g);
  const float divisor = __fadd_rn(1.0f, expf(power < 88.0f ? power : 88.0f));
  return __fmul_rn(g / divisor, __fadd_rn(u, beta));
}

// Of the sums of a thread, that of a row half and of pair (atom, eight, i): its two parts.
template <typename Sums>
__device__ float sum_of(const Sums& sums, int half, int atom, int eight, int i) {
  return sums(cute::make_coord(i, half, eight), 0, atom) +
         sums(cute::make_coord(i, half, eight + 2), 0, atom);
}

struct GateUpKernel {
  Product product;
  const float* alpha;
  const float* beta;
  const float* limit;
  bfloat16_t* activation;
};

// A block's 32 columns of the activation are one run of places of a tile of 128: word `run` of each
// lane's four. Warp v has the columns from 32 v + 8 run on, up in the atom's rows 0 to 7, gate in 8
// to 15.
template <int kAtoms>
__device__ void gate_up(const GateUpKernel& k, int4 item) {
  const Product& a = k.product;
  const int warp = threadIdx.x % kGroupThreads / 32;
  const int lane = threadIdx.x % 32;
  const int tile = static_cast<int>(blockIdx.x) / 4;
  const int run_of_tile = static_cast<int>(blockIdx.x) % 4;
  const int half_rows = a.matrix.rows / 2;
  const int eight_rows = tile * 16 + warp * 4 + run_of_tile;
  const Shared<kAtoms> shared;
  float* exchange = shared.exchange();
  constexpr int kRow = 32 + 1;
  run<kAtoms>(a, {item, eight_rows, half_rows / 8 + eight_rows}, shared, [&](const auto& sums) {
    const int column = eight_rows * 8 + lane / 4;
    const float up_bias = bias_of(a, item.x, column);
    const float gate_bias = bias_of(a, item.x, half_rows + column);
    const float alpha = k.alpha[item.x];
    const float beta = k.beta[item.x];
    const float limit = k.limit[item.x];
    const int place = place_of(column % kTileColumns) % 32;
#pragma unroll
    for (int i = 0; i < kAtoms * 4; ++i) {
      const int atom = i / 4;
      const int eight = i / 2 % 2;
      const float up = __fadd_rn(sum_of(sums, 0, atom, eight, i % 2), up_bias);
      const float gate = __fadd_rn(sum_of(sums, 1, atom, eight, i % 2), gate_bias);
      exchange[(atom * kAtomPairs + eight * 8 + lane % 4 * 2 + i % 2) * kRow + place] =
          swiglu(gate, up, alpha, beta, limit);
    }
  });
  // Eight places of a half at a time.
  for (int i = threadIdx.x; i < (item.z - item.y) * 8; i += kThreads) {
    const float* from = exchange + i / 8 * kRow + i % 4 * 8;
    alignas(16) bfloat16_t eight[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const Halves halves = split(from[j]);
      eight[j] = i % 8 < 4 ? halves.high : halves.low;
    }
    const std::int64_t pair = a.group_pairs[item.y + i / 8];
    bfloat16_t* to = k.activation + (pair * 2 + i % 8 / 4) * half_rows + tile * kTileColumns +
                     run_of_tile * 32 + i % 4 * 8;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(eight);
  }
}

struct DownKernel {
  Product product;
  float* down_out;
};

template <int kAtoms>
__device__ void down(const DownKernel& k, int4 item) {
  const Product& a = k.product;
  const int warp = threadIdx.x % kGroupThreads / 32;
  const int lane = threadIdx.x % 32;
  const int first = static_cast<int>(blockIdx.x) * 64;
  const int eight_rows = first / 8 + warp * 2;
  const Shared<kAtoms> shared;
  float* exchange = shared.exchange();
  constexpr int kRow = Config<kAtoms>::kExchangeRow;
  run<kAtoms>(a, {item, eight_rows, eight_rows + 1}, shared, [&](const auto& sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + half * 8 + lane / 4;
      const float bias = bias_of(a, item.x, first + row);
#pragma unroll
      for (int i = 0; i < kAtoms * 4; ++i) {
        const int atom = i / 4;
        const int eight = i / 2 % 2;
        exchange[(atom * kAtomPairs + eight * 8 + lane % 4 * 2 + i % 2) * kRow + row] =
            __fadd_rn(sum_of(sums, half, atom, eight, i % 2), bias);
      }
    }
  });
  for (int i = threadIdx.x; i < (item.z - item.y) * 64; i += kThreads) {
    if (first + i % 64 >= a.outputs) continue;
    const std::int64_t pair = a.group_pairs[item.y + i / 64];
    k.down_out[pair * a.outputs + first + i % 64] = exchange[i / 64 * kRow + i % 64];
  }
}

// kMost: as many atoms as an item of this launch can need.
template <int kMost>
__global__ void __launch_bounds__(kThreads, kMost == 4 ? 1 : 2) gate_up_kernel(GateUpKernel k) {
  wait_for_inputs();
  const int4 item = k.product.items[blockIdx.y];
  if (item.x < 0) return;
  const int count = item.z - item.y;
  if (count <= kAtomPairs) {
    gate_up<1>(k, item);
  } else if (kMost == 2 || (kMost > 2 && count <= 2 * kAtomPairs)) {
    if constexpr (kMost >= 2) gate_up<2>(k, item);
  } else {
    if constexpr (kMost == 4) gate_up<4>(k, item);
  }
}
template <int kMost>
__global__ void __launch_bounds__(kThreads, kMost == 4 ? 1 : 2) down_kernel(DownKernel k) {
  wait_for_inputs();
  const int4 item = k.product.items[blockIdx.y];
  if (item.x < 0) return;
  const int count = item.z - item.y;
  if (count <= kAtomPairs) {
    down<1>(k, item);
  } else if (kMost == 2 || (kMost > 2 && count <= 2 * kAtomPairs)) {
    if constexpr (kMost >= 2) down<2>(k, item);
  } else {
    if constexpr (kMost == 4) down<4>(k, item);
  }
}

// ------------------------------------------------------------------------------ launches

// Pairs of an item: a row goes to an expert once, so no expert has more than n. Items of 64 leave a
// multiprocessor one block, which pays once experts are full.
constexpr std::int64_t kFewRows = kAtomPairs;
constexpr std::int64_t kManyRows = 128;
std::int64_t item_pairs(std::int64_t n) {
  if (n <= kFewRows) return kAtomPairs;
  return n <= kManyRows ? 2 * kAtomPairs : 4 * kAtomPairs;
}
std::int64_t item_count(const Shape& shape) {
  const std::int64_t pairs = shape.n * shape.experts_per_token;
  return std::min(pairs, shape.expert_count + pairs / item_pairs(shape.n));
}

Product product(const MatrixViews& matrix, const TensorView& inputs, const Workspace& workspace) {
  return {{matrix.codes.as<const uint4>(), matrix.scales.as<const std::uint8_t>(),
           static_cast<std::int32_t>(matrix.codes.shape[1]),
           static_cast<std::int32_t>(matrix.codes.shape[2] * 2 / kTileColumns)},
          matrix.bias.empty() ? nullptr : matrix.bias.as<const float>(),
          inputs.as<const bfloat16_t>(),
          workspace.items.as<const int4>(),
          workspace.group_pairs.as<const std::int32_t>(),
          1,
          0};
}

// The kernels for items of 16, 32 and 64 pairs, and blocks of an item.
template <typename Kernel>
struct ProductLaunch {
  const char* name;
  std::array<void (*)(Kernel), 3> kernels;
  std::int64_t blocks;
};
template <typename Kernel>
Status launch_product(device::Stream& stream, const ProductLaunch<Kernel>& product,
                      const Shape& shape, const Kernel& kernel,
                      std::initializer_list<device::Operand> operands) {
  constexpr std::size_t kBytes[] = {Config<1>::kSharedBytes, Config<2>::kSharedBytes,
                                    Config<4>::kSharedBytes};
  const std::size_t size = item_pairs(shape.n) == kAtomPairs ? 0
                           : item_pairs(shape.n) == 2 * kAtomPairs ? 1
                                                                   : 2;
  const LaunchShape launch{.grid = dim3(static_cast<unsigned>(product.blocks),
                                        static_cast<unsigned>(item_count(shape))),
                           .block = dim3(kThreads),
                           .shared_bytes = kBytes[size],
                           .overlaps = true};
  return launch_cuda(stream, {product.name, launch}, product.kernels[size], kernel, operands);
}

}  // namespace

std::int64_t item_capacity(const ExpertsShape& shape) {
  return shape.expert_count + shape.max_rows * shape.experts_per_token / kAtomPairs;
}

Status prepare(device::Stream& stream, const Shape& shape, const ExpertsArgs& args,
               const Workspace& workspace) {
  const PrepareKernel kernel{args.x.as<const float>(),
                             args.ids.as<const std::int32_t>(),
                             args.active_rows.as<const std::int32_t>(),
                             workspace.items.as<int4>(),
                             workspace.group_pairs.as<std::int32_t>(),
                             workspace.inputs.as<bfloat16_t>(),
                             shape,
                             item_pairs(shape.n),
                             item_count(shape)};
  return launch_cuda(
      stream,
      {"experts.prepare",
       {.grid = dim3(static_cast<unsigned>(1 + shape.n)),
        .block = dim3(kPrepareThreads),
        .shared_bytes = sizeof(std::int32_t) * static_cast<std::size_t>(shape.expert_count + 1),
        .overlaps = true}},
      prepare_kernel, kernel,
      {reads("x", args.x), reads("ids", args.ids), reads("active_rows", args.active_rows),
       writes("items", workspace.items), writes("group_pairs", workspace.group_pairs),
       writes("inputs", workspace.inputs)});
}

Status gate_up(device::Stream& stream, const Shape& shape, const GateUpViews& views,
               const Workspace& workspace) {
  const auto& [matrix, swiglu] = views;
  GateUpKernel kernel{product(matrix, workspace.inputs, workspace), swiglu.alpha.as<const float>(),
                      swiglu.beta.as<const float>(), swiglu.limit.as<const float>(),
                      workspace.activation.as<bfloat16_t>()};
  kernel.product.pairs_per_row = static_cast<std::int32_t>(shape.experts_per_token);
  return launch_product<GateUpKernel>(
      stream,
      {"experts.gate_up", {&gate_up_kernel<1>, &gate_up_kernel<2>, &gate_up_kernel<4>},
       shape.padded_intermediate / 32},
      shape, kernel,
      {reads("gate_up_codes", matrix.codes), reads("gate_up_scales", matrix.scales),
       reads("gate_up_bias", matrix.bias), reads("inputs", workspace.inputs),
       reads("items", workspace.items), reads("group_pairs", workspace.group_pairs),
       reads("alpha", swiglu.alpha), reads("beta", swiglu.beta), reads("limit", swiglu.limit),
       writes("activation", workspace.activation)});
}

Status down(device::Stream& stream, const Shape& shape, const MatrixViews& matrix,
            const Workspace& workspace) {
  DownKernel kernel{product(matrix, workspace.activation, workspace),
                    workspace.down_out.as<float>()};
  kernel.product.outputs = static_cast<std::int32_t>(shape.hidden);
  return launch_product<DownKernel>(
      stream,
      {"experts.down", {&down_kernel<1>, &down_kernel<2>, &down_kernel<4>},
       shape.padded_hidden / 64},
      shape, kernel,
      {reads("down_codes", matrix.codes), reads("down_scales", matrix.scales),
       reads("down_bias", matrix.bias), reads("activation", workspace.activation),
       reads("items", workspace.items), reads("group_pairs", workspace.group_pairs),
       writes("down_out", workspace.down_out)});
}

}  // namespace holdfast::experts::grouped
