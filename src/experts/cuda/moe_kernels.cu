// MXFP4 experts on tensor cores (contract in experts.h, formulas in semantics.md 2.2, 3.7, 4.5):
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    for pair p = (row, slot), e = ids[p]
//   down_out[p]   = down_e activation[p] + bias
//   out[r]        = residual[r] + sum over k, in order, of weights[r, k] down_out[r, k]
//
// How a product is shared out, and its one order of additions: ops/cuda/matrix.cuh. A lane reads a
// whole block of 32 codes (16 bytes) of its two rows and decodes them to bf16 exactly (a code times
// a power of two). Codes are read once for up to 64 pairs of an expert. Only experts that have
// pairs get blocks that work; the grid is as large as the most there can be. One row has kernels of
// its own (one_row_experts.cuh), which leave nothing to combine. With more than 8 rows the products
// read inputs that are split already (staged_rows.cuh): x is split beside grouping, the activation
// where it is made.
#include <algorithm>
#include <string>
#include <type_traits>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "experts/cuda/moe_kernels.h"
#include "experts/cuda/moe_one_row.h"
#include "experts/cuda/mxfp4_matrix.cuh"
#include "experts/cuda/one_row_experts.cuh"
#include "experts/cuda/staged_rows.cuh"
#include "experts/cuda/walk_pairs.cuh"
#include "ops/cuda/few_rows.cuh"
#include "ops/cuda/tile_store.cuh"

namespace holdfast::experts::cuda {
namespace {

using namespace cuda_kernels;  // what matrix.cuh is made of
using device::reads;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::LaunchShape;
using device::cuda::prefetch_line;
using device::cuda::wait_for_inputs;
using device::cuda::wait_then_let_next_begin;

// ------------------------------------------------------------------------------ group

struct GroupKernel {
  const std::int32_t* ids;
  const std::int32_t* active_rows;
  int4* work;
  std::int32_t* group_pairs;
  MoeShape shape;
  std::int64_t entries, pairs_of_entry;  // of work
  const float* x;
  std::byte* split;
};

constexpr int kGroupThreads = 1024;

// The chunks of x that the blocks after the first split.
__device__ void split_rows(const GroupKernel& a) {
  const int stages = stages_of(a.shape.hidden);
  const std::int64_t i =
      (blockIdx.x - std::int64_t{1}) * kGroupThreads + static_cast<std::int64_t>(threadIdx.x);
  const auto chunks = static_cast<unsigned>(stages) * 16;
  const std::int64_t row = static_cast<unsigned>(i) / chunks;
  const auto chunk = static_cast<int>(static_cast<unsigned>(i) % chunks);
  if (row >= smaller(*a.active_rows, a.shape.n) || chunk * 8 >= a.shape.hidden) return;
  store_split<Mxfp4Order>(a.split + row * stages * kSplitStageBytes, chunk,
                          load_eight(a.x + row * a.shape.hidden + chunk * 8));
}

// The first block: each warp walks all pairs in order for its experts, first to count and then to
// write. Shared memory: where each expert's pairs begin, [E + 1].
__global__ void __launch_bounds__(kGroupThreads) group_kernel(GroupKernel a) {
  extern __shared__ std::int32_t begin[];
  wait_for_inputs();
  if (blockIdx.x > 0) return split_rows(a);
  const std::int64_t pairs =
      smaller(max(*a.active_rows, 0), a.shape.n) * a.shape.experts_per_token;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const auto experts = static_cast<int>(a.shape.expert_count);
  for (int e = warp; e < experts; e += kGroupThreads / 32) {
    const std::int32_t count = walk_pairs(a.ids, pairs, e, 0, nullptr);
    if (lane == 0) begin[e + 1] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int active = 0;
    begin[0] = 0;
    for (int e = 0; e < experts; ++e) {
      const auto each = static_cast<int>(a.pairs_of_entry);
      const int end = begin[e + 1] += begin[e];
      for (int first = begin[e]; first < end; first += each) {
        a.work[active++] = make_int4(e, first, min(first + each, end), 0);
      }
    }
    for (; active < a.entries; ++active) a.work[active] = make_int4(-1, 0, 0, 0);
  }
  __syncthreads();
  for (int e = warp; e < experts; e += kGroupThreads / 32) {
    walk_pairs(a.ids, pairs, e, begin[e], a.group_pairs);
  }
}

// ------------------------------------------------------------------------------ the products

struct GateUpKernel {
  MatrixKernel matrix;
  const float* alpha;
  const float* beta;
  const float* limit;
  float* activation;
};

// (u + beta) g / (1 + exp(-alpha g)), g and u clamped; a NaN stays one. No sum is contracted into a
// neighbour's product, so that every kernel has the same bits.
__device__ float swiglu(float g, float u, float alpha, float beta, float limit) {
  g = g > limit ? limit : g;
  u = u > limit ? limit : u < -limit ? -limit : u;
  const float power = __fmul_rn(-alpha, g);
  const float divisor = __fadd_rn(1.0f, expf(power < 88.0f ? power : 88.0f));
  return __fmul_rn(g / divisor, __fadd_rn(u, beta));
}

// Where a product's sums go (tile_rows.cuh): the pair of each column.
struct PairColumn {
  std::int64_t pair = -1;  // -1: there is none
};
__device__ PairColumn pair_column(const MatrixKernel& a, int4 work, int column) {
  return {work.y + column < work.z ? pair_at(a, work.y + column) : -1};
}
struct NoExtra {};

// Matrix rows alternate gate, up: a tile of 16 holds 8 columns of the activation.
struct GateUpFinish {
  static constexpr int kPartner = 1;
  struct Row {
    std::int64_t column = -1;  // of the activation; -1: of an up
    float gate_bias = 0, up_bias = 0;
  };
  const GateUpKernel& a;
  int4 work;
  float alpha, beta, limit;

  __device__ GateUpFinish(const GateUpKernel& kernel, int4 of)
      : a(kernel), work(of), alpha(a.alpha[of.x]), beta(a.beta[of.x]), limit(a.limit[of.x]) {}
  __device__ Row row(int tile, int i) const {
    const std::int64_t row = static_cast<std::int64_t>(tile) * 16 + i;
    if (i % 2 != 0 || row + 1 >= a.matrix.rows) return {};
    const std::uint16_t* bias = a.matrix.bias + work.x * a.matrix.rows + row;
    return {row / 2, bf16_bits_to_float(bias[0]), bf16_bits_to_float(bias[1])};
  }
  __device__ PairColumn column(int at) const { return pair_column(a.matrix, work, at); }
  __device__ float activation(const Row& row, float gate, float up) const {
    return swiglu(__fadd_rn(gate, row.gate_bias), __fadd_rn(up, row.up_bias), alpha, beta, limit);
  }
  __device__ void store(const Row& row, const PairColumn& to, NoExtra, float gate, float up) const {
    if (row.column < 0 || to.pair < 0) return;
    a.activation[to.pair * (a.matrix.rows / 2) + row.column] = activation(row, gate, up);
  }
  __device__ void operator()(int tile, int i, int at, float gate, float up) const {
    store(row(tile, i), column(at), {}, gate, up);
  }
};

// From the sums of a warp's tile to the activation, split (matrix.cuh), a row for each of
// group_pairs. A tile's columns are a chunk; a lane has one of them, for a quarter of the pairs.
template <int kGroups>
__device__ void store_gated(const GateUpFinish& gated, int tile, const float (&sums)[kGroups][4],
                            TileSums<kGroups>& exchange) {
  const MatrixKernel& a = gated.a.matrix;
  const int lane = threadIdx.x % 32;
  const int column = lane % 8;
  const GateUpFinish::Row row = gated.row(tile, column * 2);
  const std::int64_t row_bytes = stages_of(a.rows / 2) * std::int64_t{kSplitStageBytes};
  std::byte* to = reinterpret_cast<std::byte*>(gated.a.activation) + gated.work.y * row_bytes +
                  tile / 16 * kSplitStageBytes +
                  split_offset<Mxfp4Order>(tile % 16, column % 4) + column / 4 * 16;
  __syncwarp();
  exchange.put(sums);
  __syncwarp();
#pragma unroll 1
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = group * kColumns + i * 4 + lane / 8;
      const float2 both =
          *reinterpret_cast<const float2*>(&exchange.value[threadIdx.x / 32][at][column * 2]);
      const SplitPair split = split_pair(gated.activation(row, both.x, both.y), 0.0f);
      const std::uint32_t mine = split.hi | split.lo << 16;
      const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, mine, 4);  // of column ^ 4
      if (row.column < 0 || gated.work.y + at >= gated.work.z) continue;
      *reinterpret_cast<std::uint32_t*>(to + at * row_bytes) =
          column < 4 ? __byte_perm(mine, other, 0x5410) : __byte_perm(other, mine, 0x7632);
    }
  }
}

struct DownKernel {
  MatrixKernel matrix;
  float* down_out;
};
struct DownFinish {
  static constexpr int kPartner = 0;
  struct Row {
    std::int64_t row = -1;
    float bias = 0;
  };
  const DownKernel& a;
  int4 work;

  __device__ DownFinish(const DownKernel& kernel, int4 of) : a(kernel), work(of) {}
  __device__ Row row(int tile, int i) const {
    const std::int64_t row = static_cast<std::int64_t>(tile) * 16 + i;
    if (row >= a.matrix.rows) return {};
    return {row, bf16_bits_to_float(a.matrix.bias[work.x * a.matrix.rows + row])};
  }
  __device__ PairColumn column(int at) const { return pair_column(a.matrix, work, at); }
  __device__ static NoExtra extra(const Row&, const PairColumn&) { return {}; }
  __device__ void store(const Row& row, const PairColumn& to, NoExtra, float sum, float) const {
    if (row.row < 0 || to.pair < 0) return;
    a.down_out[to.pair * a.matrix.rows + row.row] = __fadd_rn(sum, row.bias);
  }
  __device__ void operator()(int tile, int i, int at, float sum, float other) const {
    store(row(tile, i), column(at), {}, sum, other);
  }
};

// The biases of `tiles` tiles, which are needed at the end.
__device__ void prefetch_bias(const MatrixKernel& a, int expert, int first_tile, int tiles) {
  const std::int64_t row = (first_tile + static_cast<int>(threadIdx.x)) * std::int64_t{16};
  if (threadIdx.x < tiles && row < a.rows) prefetch_line(a.bias + expert * a.rows + row);
}

extern __shared__ __align__(128) uint4 shared_words[];
__device__ std::byte* shared_bytes() { return reinterpret_cast<std::byte*>(shared_words); }

__device__ const float* input_row(const MatrixKernel& a, int at) {
  const auto pair = static_cast<unsigned>(pair_at(a, at));
  return a.input + pair / static_cast<unsigned>(a.pairs_per_row) * (a.blocks * 32);
}

// Up to 8 rows, so that an expert has at most 8 pairs: x = their rows in shared memory.
template <typename Kernel, typename Finish>
__global__ void __launch_bounds__(kThreads, 3) few_kernel(Kernel k) {
  __shared__ FewSums sums;
  const MatrixKernel& a = k.matrix;
  wait_for_inputs();
  const int4 work = work_of(a);
  if (work.x < 0) return;
  const Mxfp4Matrix matrix(a, work.x);
  const int tiles = (matrix.rows + 15) / 16;
  const int first = static_cast<int>(blockIdx.x * a.tiles_of_block);
  FewRows<Mxfp4Matrix, 3> rows(matrix, first,
                               min(first + static_cast<int>(a.tiles_of_block), tiles));
  prefetch_bias(a, work.x, first, static_cast<int>(a.tiles_of_block));
  const int stages = matrix.stages();
  const int count = work.z - work.y;
#pragma unroll 1
  for (int r = 0; r < count; ++r) {
    const float* x = input_row(a, work.y + r);
#pragma unroll 2
    for (int chunk = threadIdx.x; chunk < stages * 16; chunk += kThreads) {
      const int column = chunk * 8;
      store_chunk<Mxfp4Order>(shared_bytes() + r * Mxfp4Order::row_bytes(stages) +
                                  chunk / 16 * Mxfp4Order::kStageBytes +
                                  Mxfp4Order::chunk_offset(chunk % 16),
                              column < matrix.columns() ? load_eight(x + column) : Eight{});
    }
  }
  __syncthreads();
  rows.template run<Finish::kPartner>(shared_bytes(), count, sums, Finish(k, work));
}

// The split rows of a product: of gate_up those of x, of down those of the activation.
template <bool kFirst>
__device__ const std::byte* split_row(const MatrixKernel& a, int at) {
  const unsigned row = kFirst ? static_cast<unsigned>(a.group_pairs[at]) /
                                    static_cast<unsigned>(a.pairs_per_row)
                              : static_cast<unsigned>(at);
  const auto row_bytes = static_cast<unsigned>(stages_of(a.blocks * 32)) * kSplitStageBytes;
  return reinterpret_cast<const std::byte*>(a.input) + static_cast<std::uint64_t>(row) * row_bytes;
}

__device__ void store(const GateUpFinish& finish, int tile, const auto& sums, auto& exchange) {
  store_gated(finish, tile, sums, exchange);
}
__device__ void store(const DownFinish& finish, int tile, const auto& sums, auto& exchange) {
  store_tile(finish, tile, sums, exchange);
}

// Pairs [work.y, work.z) of an expert, up to 8 kGroups of them.
template <int kRowTiles, int kGroups, int kAhead, typename Kernel, typename Finish>
__device__ void run_tiles(const Kernel& k, int4 work, const Finish& finish) {
  constexpr bool kFirst = std::is_same_v<Finish, GateUpFinish>;  // of the two products
  const MatrixKernel& a = k.matrix;
  const Mxfp4Matrix matrix(a, work.x);
  const auto block = static_cast<int>(blockIdx.x);
  StagedRows<Mxfp4Matrix, kRowTiles, kGroups, kAhead> tile(matrix, block, shared_bytes());
  prefetch_bias(a, work.x, block * kWarps * kRowTiles, kWarps * kRowTiles);
  if constexpr (!kFirst) wait_for_inputs();
  tile.run([&](int i) { return split_row<kFirst>(a, min(work.y + i, work.z - 1)); });
  const int first = (block * kWarps + static_cast<int>(threadIdx.x) / 32) * kRowTiles;
  auto& exchange = *reinterpret_cast<TileSums<kGroups>*>(shared_bytes());
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) store(finish, first + t, tile.acc[t], exchange);
}

template <int kRowTiles, int kMaxGroups, int kAhead, typename Kernel, typename Finish>
__device__ void run_work(const Kernel& k, int4 work, const Finish& finish) {
  const int count = work.z - work.y;
  if (count <= 8) {
    run_tiles<kRowTiles, 1, kAhead>(k, work, finish);
  } else if (kMaxGroups == 2 || count <= 16) {
    run_tiles<kRowTiles, 2, kAhead>(k, work, finish);
  } else if (kMaxGroups == 4 || count <= 32) {
    run_tiles<kRowTiles, 4, kAhead>(k, work, finish);
  } else {
    run_tiles<kRowTiles, kMaxGroups, kAhead>(k, work, finish);
  }
}

// More than 8 rows. What the weights' copies need of down is there before its inputs are.
template <int kRowTiles, int kMaxGroups, int kBlocks, int kAhead>
__global__ void __launch_bounds__(kThreads, kBlocks) gate_up_tiles(GateUpKernel k) {
  wait_then_let_next_begin();
  const int4 work = k.matrix.work[blockIdx.y];
  if (work.x < 0) return;
  run_work<kRowTiles, kMaxGroups, kAhead>(k, work, GateUpFinish(k, work));
}
template <int kRowTiles, int kMaxGroups, int kBlocks, int kAhead>
__global__ void __launch_bounds__(kThreads, kBlocks) down_tiles(DownKernel k) {
  const int4 work = __ldcg(k.matrix.work + blockIdx.y);
  if (work.x < 0) return wait_for_inputs();
  run_work<kRowTiles, kMaxGroups, kAhead>(k, work, DownFinish(k, work));
}

// One row.
__global__ void __launch_bounds__(kThreads, 3) one_gate_up_kernel(GateUpKernel k) {
  one_row_gate_up<Mxfp4Matrix, GateUpFinish>(k, shared_bytes());
}
struct OneDownKernel {
  MatrixKernel matrix;
  OneDown down;
};
__global__ void __launch_bounds__(kThreads, 3) one_down_kernel(OneDownKernel k) {
  one_row_down<Mxfp4Matrix>(k, shared_bytes());
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

constexpr int kCombineThreads = 256;

__global__ void __launch_bounds__(kCombineThreads) combine_kernel(CombineKernel a) {
  wait_for_inputs();
  const std::int64_t row = blockIdx.x;
  if (row >= *a.active_rows) return;
  const std::int64_t k = a.shape.experts_per_token;
  const std::int64_t h = static_cast<std::int64_t>(blockIdx.y) * kCombineThreads + threadIdx.x;
  if (h >= a.shape.hidden) return;
  float sum = a.residual[row * a.shape.hidden + h];
  for (std::int64_t i = 0; i < k; ++i) {
    const std::int64_t pair = row * k + i;
    const std::int32_t id = a.ids[pair];
    if (id < 0 || id >= a.shape.expert_count) continue;
    sum = fmaf(a.weights[pair], a.down_out[pair * a.shape.hidden + h], sum);
  }
  a.out[row * a.shape.hidden + h] = sum;
}

// ------------------------------------------------------------------------------ launches

// A row goes to an expert once, so one row's pairs need no grouping.
bool is_grouped(const MoeShape& shape) { return shape.n > 1; }

template <typename T>
const T* address_of(const TensorView& view) {
  return view.empty() ? nullptr : view.as<const T>();
}

// Where a product finds its experts' pairs: work and group_pairs, or ids.
struct Routing {
  TensorView work, group_pairs, ids;
};
Routing routing_of(const MoeShape& shape, const ExpertsArgs& args, const Workspace& workspace) {
  if (is_grouped(shape)) return {workspace.work, workspace.group_pairs, {}};
  return {{}, {}, args.ids};
}

MatrixKernel matrix_kernel(const MatrixViews& matrix, const MoeShape& shape,
                           const TensorView& input, const Routing& routing) {
  return {matrix.codes.as<const uint4>(),
          matrix.scales.as<const std::uint8_t>(),
          matrix.bias.as<const std::uint16_t>(),
          input.as<const float>(),
          address_of<int4>(routing.work),
          address_of<std::int32_t>(routing.group_pairs),
          address_of<std::int32_t>(routing.ids),
          shape.expert_count,
          matrix.codes.shape[1],
          matrix.codes.shape[2],
          1,
          1};
}

constexpr std::int64_t kBlocksAtOnce = 3 * 132;  // of few_kernel, on an H200

constexpr std::int64_t kSomeRows = 256;  // fewer: most experts have up to 16 pairs
constexpr std::int64_t kManyRows = 512;

constexpr std::size_t kMostShared = 227 << 10;

// The pairs of an entry of work, with more than 8 rows.
constexpr std::int64_t tile_pairs(std::int64_t rows) {
  return kColumns * (rows < kSomeRows ? 2 : rows < kManyRows ? 4 : 8);
}
bool is_tiled(const MoeShape& shape) { return shape.n > kColumns; }
// Of work, and the pairs of one.
struct Entries {
  std::int64_t count = 0, pairs = 0;
};
Entries entries_of(const MoeShape& shape, bool is_split) {
  const std::int64_t pairs = shape.n * shape.experts_per_token;
  const std::int64_t experts = std::min(pairs, shape.expert_count);
  if (!is_tiled(shape) || !is_split) return {shape.expert_count, pairs};
  const std::int64_t each = tile_pairs(shape.n);
  return {experts + pairs / each, each};
}

template <int kRowTiles, int kMaxGroups, int kAhead>
std::size_t tile_shared(std::int64_t blocks) {
  return std::max({StagedRows<Mxfp4Matrix, kRowTiles, kMaxGroups, kAhead>::shared_bytes(blocks),
                   sizeof(TileSums<kMaxGroups>)});
}
template <int kRowTiles, int kMaxGroups, int kBlocks, int kAhead>
auto tiles_of(const GateUpKernel&) {
  return gate_up_tiles<kRowTiles, kMaxGroups, kBlocks, kAhead>;
}
template <int kRowTiles, int kMaxGroups, int kBlocks, int kAhead>
auto tiles_of(const DownKernel&) {
  return down_tiles<kRowTiles, kMaxGroups, kBlocks, kAhead>;
}

// Every expert that can have pairs; of tiles, as many entries of work as there can be.
template <typename Kernel, typename Finish>
Status launch_matrix(device::Stream& stream, const char* name, const MoeShape& shape,
                     Kernel kernel, std::initializer_list<device::Operand> operands) {
  const std::int64_t pairs = shape.n * shape.experts_per_token;
  const auto experts = static_cast<unsigned>(std::min(pairs, shape.expert_count));
  const std::int64_t tiles = (kernel.matrix.rows + 15) / 16;
  const auto blocks = [](std::int64_t count, std::int64_t each) {
    return static_cast<unsigned>((count + each - 1) / each);
  };
  LaunchShape launch{.block = dim3(kThreads), .overlaps = true};
  if (shape.n <= kColumns) {
    // Of one or two rows every expert of the grid has pairs: all blocks are to run at once.
    kernel.matrix.tiles_of_block =
        pairs <= kColumns ? (tiles * experts + kBlocksAtOnce - 1) / kBlocksAtOnce : 4;
    launch.grid = dim3(blocks(tiles, kernel.matrix.tiles_of_block), experts);
    launch.shared_bytes = static_cast<std::size_t>(
        shape.n * Mxfp4Order::row_bytes(stages_of(kernel.matrix.blocks * 32)));
    return launch_cuda(stream, {name, launch}, few_kernel<Kernel, Finish>, kernel, operands);
  }
  const auto run = [&]<int kRowTiles, int kMaxGroups, int kBlocks, int kAhead>() {
    launch.shared_bytes = tile_shared<kRowTiles, kMaxGroups, kAhead>(kernel.matrix.blocks);
    launch.grid = dim3(blocks(tiles, kWarps * kRowTiles),
                       static_cast<unsigned>(entries_of(shape, true).count));
    if (launch.shared_bytes > kMostShared) {
      return Status(Error(ErrorCode::kUnsupported,
                          std::string(name) + " needs " + std::to_string(launch.shared_bytes) +
                              " bytes of shared memory for inputs " +
                              std::to_string(kernel.matrix.blocks * 32) +
                              " wide, a multiprocessor gives " + std::to_string(kMostShared)));
    }
    return launch_cuda(stream, {name, launch},
                       tiles_of<kRowTiles, kMaxGroups, kBlocks, kAhead>(kernel), kernel, operands);
  };
  if (shape.n < kSomeRows) return run.template operator()<2, 2, 2, 2>();
  if (shape.n < kManyRows) return run.template operator()<2, 4, 2, 1>();
  return run.template operator()<2, 8, 1, 1>();
}

// All blocks of one row's experts are to run at once.
std::int64_t one_row_tiles(const MoeShape& shape, std::int64_t rows) {
  const std::int64_t tiles = (rows + 15) / 16;
  return (tiles * shape.experts_per_token + kBlocksAtOnce - 1) / kBlocksAtOnce;
}
// Whether one_gate_up_kernel and one_down_kernel are for this shape.
bool is_one_row(const MoeShape& shape) {
  if (shape.n != 1 || shape.experts_per_token > kOneSlots) return false;
  const auto is_narrow = [](std::int64_t columns) {
    return is_one_row_wide(columns) && stages_of(columns) <= kSegments * kOneUnits;
  };
  return is_narrow(shape.hidden) && is_narrow(shape.intermediate) &&
         one_row_tiles(shape, 2 * shape.intermediate) <= kOneTiles &&
         one_row_tiles(shape, shape.hidden) <= kOneTiles;
}

LaunchShape one_row_launch(MatrixKernel& matrix, const MoeShape& shape) {
  const std::int64_t tiles = (matrix.rows + 15) / 16;
  matrix.tiles_of_block = one_row_tiles(shape, matrix.rows);
  return {.grid = dim3(static_cast<unsigned>((tiles + matrix.tiles_of_block - 1) /
                                             matrix.tiles_of_block)),
          .block = dim3(kThreads),
          .shared_bytes = static_cast<std::size_t>(stages_of(matrix.blocks * 32) *
                                                   Mxfp4Order::kStageBytes),
          .overlaps = true};
}

}  // namespace

Status group(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
             const Workspace& workspace) {
  if (!is_grouped(shape)) return {};
  const bool is_split = is_tiled(shape) && !workspace.split.empty();
  const Entries entries = entries_of(shape, is_split);
  const GroupKernel kernel{args.ids.as<const std::int32_t>(),
                           args.active_rows.as<const std::int32_t>(),
                           workspace.work.as<int4>(),
                           workspace.group_pairs.as<std::int32_t>(),
                           shape,
                           entries.count,
                           entries.pairs,
                           is_split ? args.x.as<const float>() : nullptr,
                           is_split ? workspace.split.as<std::byte>() : nullptr};
  const std::int64_t chunks = is_split ? shape.n * stages_of(shape.hidden) * 16 : 0;
  return launch_cuda(
      stream,
      {"experts.group",
       {.grid = dim3(static_cast<unsigned>(1 + (chunks + kGroupThreads - 1) / kGroupThreads)),
        .block = dim3(kGroupThreads),
        .shared_bytes = sizeof(std::int32_t) * static_cast<std::size_t>(shape.expert_count + 1),
        .overlaps = true}},
      group_kernel, kernel,
      {reads("ids", args.ids), reads("active_rows", args.active_rows),
       reads("x", is_split ? args.x : TensorView{}),
       writes("work", workspace.work), writes("group_pairs", workspace.group_pairs),
       writes("split", is_split ? workspace.split : TensorView{})});
}

Status gate_up(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const GateUpViews& views, const Workspace& workspace) {
  const auto& [matrix, swiglu] = views;
  const Routing routing = routing_of(shape, args, workspace);
  const TensorView x = is_tiled(shape) ? workspace.split : args.x;
  GateUpKernel kernel{matrix_kernel(matrix, shape, x, routing),
                            swiglu.alpha.as<const float>(), swiglu.beta.as<const float>(),
                            swiglu.limit.as<const float>(), workspace.activation.as<float>()};
  kernel.matrix.pairs_per_row = shape.experts_per_token;
  const std::initializer_list<device::Operand> operands = {
      reads("gate_up_codes", matrix.codes),  reads("gate_up_scales", matrix.scales),
      reads("gate_up_bias", matrix.bias),    reads("x", x),
      reads("work", routing.work),           reads("group_pairs", routing.group_pairs),
      reads("ids", routing.ids),             reads("swiglu_alpha", swiglu.alpha),
      reads("swiglu_beta", swiglu.beta),     reads("swiglu_limit", swiglu.limit),
      writes("activation", workspace.activation)};
  if (is_one_row(shape)) {
    LaunchShape launch = one_row_launch(kernel.matrix, shape);
    launch.grid.y = static_cast<unsigned>(shape.experts_per_token);
    return launch_cuda(stream, {"experts.gate_up", launch}, one_gate_up_kernel, kernel, operands);
  }
  return launch_matrix<GateUpKernel, GateUpFinish>(stream, "experts.gate_up", shape, kernel,
                                                   operands);
}

Status down(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
            const MatrixViews& matrix, const Workspace& workspace) {
  const Routing routing = routing_of(shape, args, workspace);
  const DownKernel kernel{matrix_kernel(matrix, shape, workspace.activation, routing),
                          workspace.down_out.as<float>()};
  if (is_one_row(shape)) {
    OneDownKernel one{.matrix = kernel.matrix,
                      .down = {.weights = args.weights.as<const float>(),
                               .residual = args.residual.as<const float>(),
                               .active_rows = args.active_rows.as<const std::int32_t>(),
                               .out = args.out.as<float>(),
                               .slots = shape.experts_per_token}};
    LaunchShape launch = one_row_launch(one.matrix, shape);
    launch.cluster = static_cast<unsigned>(shape.experts_per_token);
    launch.grid.x *= launch.cluster;
    return launch_cuda(stream, {"experts.down", launch}, one_down_kernel, one,
                       {reads("down_codes", matrix.codes), reads("down_scales", matrix.scales),
                        reads("down_bias", matrix.bias), reads("activation", workspace.activation),
                        reads("ids", args.ids), reads("weights", args.weights),
                        reads("residual", args.residual), reads("active_rows", args.active_rows),
                        writes("out", args.out)});
  }
  return launch_matrix<DownKernel, DownFinish>(
      stream, "experts.down", shape, kernel,
      {reads("down_codes", matrix.codes), reads("down_scales", matrix.scales),
       reads("down_bias", matrix.bias), reads("activation", workspace.activation),
       reads("work", routing.work), reads("group_pairs", routing.group_pairs),
       reads("ids", routing.ids),
       writes("down_out", workspace.down_out)});
}

bool down_combines(const MoeShape& shape) { return is_one_row(shape); }

Status combine(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const Workspace& workspace) {
  const CombineKernel kernel{workspace.down_out.as<const float>(),
                             args.ids.as<const std::int32_t>(),
                             args.weights.as<const float>(),
                             args.residual.as<const float>(),
                             args.active_rows.as<const std::int32_t>(),
                             args.out.as<float>(),
                             shape};
  const auto columns =
      static_cast<unsigned>((shape.hidden + kCombineThreads - 1) / kCombineThreads);
  return launch_cuda(stream,
                     {"experts.combine",
                      {.grid = dim3(static_cast<unsigned>(shape.n), columns),
                       .block = dim3(kCombineThreads),
                       .overlaps = true}},
                     combine_kernel, kernel,
                     {reads("down_out", workspace.down_out), reads("ids", args.ids),
                      reads("weights", args.weights), reads("residual", args.residual),
                      reads("active_rows", args.active_rows), writes("out", args.out)});
}

}  // namespace holdfast::experts::cuda
