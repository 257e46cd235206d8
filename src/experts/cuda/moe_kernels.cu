// MXFP4 experts on tensor cores (contract in experts.h, formulas in semantics.md 2.2, 3.7, 4.5):
//   activation[p] = swiglu(gate_e x + bias, up_e x + bias)    for pair p = (row, slot), e = ids[p]
//   down_out[p]   = down_e activation[p] + bias
//   out[r]        = residual[r] + sum over k, in order, of weights[r, k] down_out[r, k]
//
// How a product is shared out, and its one order of additions: ops/cuda/matrix.cuh. A lane reads a
// whole block of 32 codes (16 bytes) of its two rows and decodes them to bf16 exactly (a code times
// a power of two). Codes are read once for up to 64 pairs of an expert. Only experts that have
// pairs get blocks that work; the grid is as large as the most there can be. One row has kernels of
// its own (one_row_experts.cuh), which leave nothing to combine.
#include <cuda_bf16.h>

#include <algorithm>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "experts/cuda/moe_kernels.h"
#include "experts/cuda/moe_one_row.h"
#include "experts/cuda/one_row_experts.cuh"
#include "experts/cuda/walk_pairs.cuh"
#include "ops/cuda/few_rows.cuh"
#include "ops/cuda/tile_rows.cuh"
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

// ------------------------------------------------------------------------------ group

struct GroupKernel {
  const std::int32_t* ids;
  const std::int32_t* active_rows;
  int4* work;
  std::int32_t* group_pairs;
  MoeShape shape;
};

constexpr int kGroupThreads = 1024;

// One block: each warp walks all pairs in order for its experts, first to count and then to write.
// Shared memory: where each expert's pairs begin, [E + 1].
__global__ void __launch_bounds__(kGroupThreads) group_kernel(GroupKernel a) {
  extern __shared__ std::int32_t begin[];
  wait_for_inputs();
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
      const std::int32_t first = begin[e];
      begin[e + 1] += first;
      if (begin[e + 1] > first) a.work[active++] = make_int4(e, first, begin[e + 1], 0);
    }
    for (; active < experts; ++active) a.work[active] = make_int4(-1, 0, 0, 0);
  }
  __syncthreads();
  for (int e = warp; e < experts; e += kGroupThreads / 32) {
    walk_pairs(a.ids, pairs, e, begin[e], a.group_pairs);
  }
}

// ------------------------------------------------------------------------------ the products

struct MatrixKernel {
  const uint4* codes;
  const std::uint8_t* scales;
  const std::uint16_t* bias;
  const float* input;
  const int4* work;
  const std::int32_t* group_pairs;
  const std::int32_t* ids;     // of the only row, in place of work and group_pairs
  std::int64_t experts;
  std::int64_t rows, blocks;   // of the matrix: rows, K / 32
  std::int64_t pairs_per_row;  // of the input: experts_per_token, or 1 where a pair has a row
  std::int64_t tiles_of_block;
};

// A block's scale, 2^(s - 127), as two factors: a code's bits taken for a bf16 are its value times
// 2^-126, so the first is 2^(min(s, 128) - 1), twice in a word; the second, for larger scales only,
// the rest.
__device__ std::uint32_t first_factor(std::uint32_t s) {
  return min(s, 128u) * 0x00800080u + 126u * 0x00800080u;
}
__device__ std::uint32_t rest_factor(std::uint32_t s) {
  return (max(s, 128u) - 128u + 127u) * 0x00800080u;
}
__device__ std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                         *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const std::uint32_t*>(&product);
}
// Codes 0 and 4 (kSecond: 1 and 5) of a word of eight, as a pair of bf16 times 2^-126: e2m1 (sign,
// 2 exponent bits, 1 mantissa bit) lies in a bf16's upper bits as it is, subnormals included. One
// product moves the sign and the rest to their places; what else it moves is masked.
template <bool kSecond>
__device__ std::uint32_t place(std::uint32_t word) {
  const std::uint32_t moved =
      kSecond ? (word & 0x00F000F0u) * 0x104u : (word & 0x000F000Fu) * 0x1040u;
  return moved & 0x81C081C0u;
}

// What the blocks with this blockIdx.y work on.
__device__ int4 work_of(const MatrixKernel& a) {
  const auto y = static_cast<int>(blockIdx.y);
  if (a.ids == nullptr) return a.work[y];
  const std::int32_t id = a.ids[y];
  return make_int4(id >= 0 && id < a.experts ? id : -1, y, y + 1, 0);
}
__device__ std::int64_t pair_at(const MatrixKernel& a, int i) {
  return a.ids == nullptr ? a.group_pairs[i] : i;
}

// One expert's matrix.
struct Mxfp4Matrix {
  using Order = Mxfp4Order;
  static constexpr int kUnits = 1;
  struct Unit {
    uint4 low, high;
    std::uint32_t low_scale, high_scale;
  };
  struct Lines {  // the lane's first block of its lower row and its scale, and the way to the upper
    const uint4* low;
    const std::uint8_t* low_scale;
    int to_high;
  };
  const uint4* codes;
  const std::uint8_t* scales;
  int rows, blocks, units;  // units: that the lane has a block of

  __device__ Mxfp4Matrix(const MatrixKernel& a, int expert)
      : codes(a.codes + expert * a.rows * a.blocks),
        scales(a.scales + expert * a.rows * a.blocks),
        rows(static_cast<int>(a.rows)),
        blocks(static_cast<int>(a.blocks)),
        units((blocks - static_cast<int>(threadIdx.x) % 4 + 3) / 4) {}
  __device__ int stages() const { return (blocks + 3) / 4; }
  __device__ std::int64_t columns() const { return blocks * 32; }
  __device__ Lines lines(int tile) const {
    const int low = tile * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int q = threadIdx.x % 4;
    const int low_block = min(low, rows - 1) * blocks + q;
    const int high_block = min(low + 8, rows - 1) * blocks + q;
    return {codes + low_block, scales + low_block, high_block - low_block};
  }
  __device__ static Unit nothing() {
    return {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0), 127u, 127u};
  }
  __device__ bool has(int unit) const { return unit < units; }
  __device__ static Lines from(const Lines& lines, int unit) {
    return {lines.low + unit * 4, lines.low_scale + unit * 4, lines.to_high};
  }
  // So that what is made of them once is not made again for each unit.
  __device__ static void keep(Lines& lines) {
    asm volatile("" : "+l"(lines.low), "+l"(lines.low_scale), "+r"(lines.to_high));
  }
  __device__ static Unit at(const Lines& lines, int unit) {
    const uint4* low = lines.low + unit * 4;
    const std::uint8_t* low_scale = lines.low_scale + unit * 4;
    return {__ldg(low), __ldg(low + lines.to_high), __ldg(low_scale),
            __ldg(low_scale + lines.to_high)};
  }
  __device__ Unit load(const Lines& lines, int unit, bool valid) const {
    return valid && has(unit) ? at(lines, unit) : nothing();
  }
  // What all words of a unit share.
  struct Factors {
    std::uint32_t low, high;
    bool large;  // some scale of the warp is above 128
  };
  __device__ static Factors factors(const Unit& unit) {
    return {first_factor(unit.low_scale), first_factor(unit.high_scale),
            __any_sync(0xFFFFFFFFu, max(unit.low_scale, unit.high_scale) > 128) != 0};
  }
  __device__ static bool is_plain(const Factors& factors) { return !factors.large; }
  __device__ static void plain_fragment(const Unit& unit, const Factors& factors,
                                        std::uint32_t (&a)[2][4]) {
    const std::uint32_t low = unit.low.x;
    const std::uint32_t high = unit.high.x;
    a[0][0] = multiply_pairs(place<false>(low), factors.low);
    a[0][1] = multiply_pairs(place<false>(high), factors.high);
    a[0][2] = multiply_pairs(place<true>(low), factors.low);
    a[0][3] = multiply_pairs(place<true>(high), factors.high);
    a[1][0] = multiply_pairs(place<false>(low >> 8), factors.low);
    a[1][1] = multiply_pairs(place<false>(high >> 8), factors.high);
    a[1][2] = multiply_pairs(place<true>(low >> 8), factors.low);
    a[1][3] = multiply_pairs(place<true>(high >> 8), factors.high);
  }
  __device__ static void fragment(const Unit& unit, const Factors& factors,
                                  std::uint32_t (&a)[2][4]) {
    plain_fragment(unit, factors, a);
    if (!factors.large) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t& pair = a[i / 4][i % 4];
      pair = multiply_pairs(pair, rest_factor(i % 2 == 0 ? unit.low_scale : unit.high_scale));
    }
  }
  __device__ static void turn(Unit& unit) {
    unit.low = make_uint4(unit.low.y, unit.low.z, unit.low.w, 0);
    unit.high = make_uint4(unit.high.y, unit.high.z, unit.high.w, 0);
  }
};

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
  __device__ static NoExtra extra(const Row&, const PairColumn&) { return {}; }
  __device__ void store(const Row& row, const PairColumn& to, NoExtra, float gate, float up) const {
    if (row.column < 0 || to.pair < 0) return;
    a.activation[to.pair * (a.matrix.rows / 2) + row.column] =
        swiglu(__fadd_rn(gate, row.gate_bias), __fadd_rn(up, row.up_bias), alpha, beta, limit);
  }
  __device__ void operator()(int tile, int i, int at, float sum, float other) const {
    store(row(tile, i), column(at), {}, sum, other);
  }
};

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

// Pairs [work.y, work.z) of an expert, up to 8 kGroups of them.
template <int kRowTiles, int kGroups, typename Kernel, typename Finish>
__device__ void run_tiles(const Kernel& k, int4 work) {
  const MatrixKernel& a = k.matrix;
  const Mxfp4Matrix matrix(a, work.x);
  TileRows<Mxfp4Matrix, kRowTiles, kGroups, kRowTiles == 1 ? 2 : 1,
           kTotalsOf<kRowTiles, kGroups>>
      tile;
  const int first =
      (static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * kRowTiles;
  prefetch_bias(a, work.x, static_cast<int>(blockIdx.x) * kWarps * kRowTiles, kWarps * kRowTiles);
  tile.run(matrix, {first, 0, matrix.stages()}, shared_bytes(), [&](int i) {
    return work.y + i < work.z ? input_row(a, work.y + i) : nullptr;
  });
  const Finish finish(k, work);
  __syncthreads();  // x has been read
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    store_tile<kGroups>(finish, first + t, tile.acc[t],
                        *reinterpret_cast<TileSums<kGroups>*>(shared_bytes()));
  }
}

// An expert's pairs go to blocks by 8 kMaxGroups.
template <int kRowTiles, int kMaxGroups, int kBlocks, typename Kernel, typename Finish>
__global__ void __launch_bounds__(kThreads, kBlocks) tile_kernel(Kernel k) {
  wait_for_inputs();
  int4 work = work_of(k.matrix);
  work.y += static_cast<int>(blockIdx.z) * (kColumns * kMaxGroups);
  if (work.x < 0 || work.y >= work.z) return;
  work.z = min(work.z, work.y + kColumns * kMaxGroups);
  const int count = work.z - work.y;
  if (count <= 8) {
    run_tiles<kRowTiles, 1, Kernel, Finish>(k, work);
  } else if (count <= 16) {
    run_tiles<kRowTiles, 2, Kernel, Finish>(k, work);
  } else if (kMaxGroups == 4 || count <= 32) {
    run_tiles<kRowTiles, 4, Kernel, Finish>(k, work);
  } else {
    run_tiles<kRowTiles, kMaxGroups, Kernel, Finish>(k, work);
  }
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

constexpr std::int64_t kSomeRows = 16;  // most experts have up to 8 pairs
constexpr std::int64_t kManyRows = 256;
constexpr std::int64_t kBlocksAtOnce = 3 * 132;  // of few_kernel, on an H200

template <int kRowTiles, int kGroups>
constexpr std::size_t group_shared() {
  return TileRows<Mxfp4Matrix, kRowTiles, kGroups, kRowTiles == 1 ? 2 : 1,
                  kTotalsOf<kRowTiles, kGroups>>::kSharedBytes;
}
template <int kRowTiles, int kMaxGroups>
constexpr std::size_t tile_shared() {
  return std::max({group_shared<kRowTiles, 1>(), group_shared<kRowTiles, 2>(),
                   group_shared<kRowTiles, 4>(), group_shared<kRowTiles, kMaxGroups>()});
}

// Every expert that can have pairs, and for each as many groups of pairs as one expert can have: a
// row goes to an expert once.
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
  const auto run = [&]<int kRowTiles, int kMaxGroups, int kBlocks>() {
    launch.shared_bytes = tile_shared<kRowTiles, kMaxGroups>();
    launch.grid =
        dim3(blocks(tiles, kWarps * kRowTiles), experts, blocks(shape.n, kColumns * kMaxGroups));
    return launch_cuda(stream, {name, launch},
                       tile_kernel<kRowTiles, kMaxGroups, kBlocks, Kernel, Finish>, kernel,
                       operands);
  };
  if (shape.n >= kManyRows) return run.template operator()<2, 8, 1>();
  if (shape.n <= kSomeRows) return run.template operator()<1, 4, 3>();
  return run.template operator()<1, 4, 2>();
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
  const GroupKernel kernel{args.ids.as<const std::int32_t>(),
                           args.active_rows.as<const std::int32_t>(), workspace.work.as<int4>(),
                           workspace.group_pairs.as<std::int32_t>(), shape};
  return launch_cuda(
      stream,
      {"experts.group",
       {.block = dim3(kGroupThreads),
        .shared_bytes = sizeof(std::int32_t) * static_cast<std::size_t>(shape.expert_count + 1),
        .overlaps = true}},
      group_kernel, kernel,
      {reads("ids", args.ids), reads("active_rows", args.active_rows),
       writes("work", workspace.work), writes("group_pairs", workspace.group_pairs)});
}

Status gate_up(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const GateUpViews& views, const Workspace& workspace) {
  const auto& [matrix, swiglu] = views;
  const Routing routing = routing_of(shape, args, workspace);
  GateUpKernel kernel{matrix_kernel(matrix, shape, args.x, routing),
                            swiglu.alpha.as<const float>(), swiglu.beta.as<const float>(),
                            swiglu.limit.as<const float>(), workspace.activation.as<float>()};
  kernel.matrix.pairs_per_row = shape.experts_per_token;
  const std::initializer_list<device::Operand> operands = {
      reads("gate_up_codes", matrix.codes),  reads("gate_up_scales", matrix.scales),
      reads("gate_up_bias", matrix.bias),    reads("x", args.x),
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
