// linear: out[r, o] = sum_k x[r, k] w[o, k] + bias[o] + residual[r, o] (ops.h), and with it what
// comes before and after: qkv (rms_norm before, rope and kv_write after) and head (gather_rows and
// rms_norm before). How the product is shared out, and its one order of additions: matrix.cuh. Up
// to 8 rows are gathered and normed by each block for itself; more of them by kernels of their own.
// Needs K a multiple of 8.
#include <algorithm>

#include "device/cuda/cuda_stream.h"
#include "device/cuda/launch.cuh"
#include "ops/cuda/launchers.h"
#include "ops/cuda/few_rows.cuh"
#include "ops/cuda/one_row.cuh"
#include "ops/cuda/tile_rows.cuh"
#include "ops/cuda/tile_store.cuh"

namespace holdfast::ops::cuda {
namespace {

using namespace cuda_kernels;  // what matrix.cuh is made of
using device::reads;
using device::updates;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::LaunchShape;
using device::cuda::prefetch;
using device::cuda::prefetch_line;
using device::cuda::wait_for_inputs;

// Null where an operand is absent. Whole 8-byte words, so that there is no padding whose stale
// bytes the audit could take for a pointer.
struct Product {
  const float* x = nullptr;
  const std::int32_t* x_rows = nullptr;  // row r of x is x_rows[r]
  const void* norm = nullptr;            // x is normed first
  const std::uint16_t* weight = nullptr;
  const void* bias = nullptr;
  const float* residual = nullptr;
  float* out = nullptr;
  const std::int32_t* active_rows = nullptr;
  std::int64_t norm_is_f32 = 0, bias_is_f32 = 0;
  double eps = 0;
  std::int64_t inputs = 0, outputs = 0, rows = 0, x_row_count = 0;
  std::int64_t tiles_of_block = 1;
  // Of qkv, when half > 0: half a head's dimensions; outputs before rotated_end are rotated, and
  // those from query_end on are keys and values, kv_width each.
  const std::int32_t* positions = nullptr;
  const std::int32_t* slot_mapping = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  float* key_pages = nullptr;
  float* value_pages = nullptr;
  std::int64_t half = 0, query_end = 0, rotated_end = 0, kv_width = 0, max_positions = 0,
               slot_count = 0;
};

__device__ void prefetch_value(const void* values, std::int64_t is_f32, std::int64_t i) {
  if (values != nullptr) {
    prefetch_line(static_cast<const std::byte*>(values) + i * (is_f32 != 0 ? 4 : 2));
  }
}
__device__ float value_at(const void* values, std::int64_t is_f32, std::int64_t i) {
  if (values == nullptr) return 0.0f;
  if (is_f32 != 0) return static_cast<const float*>(values)[i];
  return bf16_bits_to_float(static_cast<const std::uint16_t*>(values)[i]);
}

// bf16 weights. With `half`, a tile holds 8 dimensions of a head and the 8 that rope turns them
// with.
struct Bf16Matrix {
  using Order = PlainOrder;
  static constexpr int kUnits = 4;  // of 32 columns
  struct Unit {
    uint4 low, high;
  };
  struct Lines {
    const uint4* low;  // of the lane's columns of unit 0
    const uint4* high;
  };
  const std::uint16_t* weight;
  std::int64_t inputs, outputs;
  int half, units;  // units: that the lane has columns of

  __device__ explicit Bf16Matrix(const Product& p)
      : weight(p.weight),
        inputs(p.inputs),
        outputs(p.outputs),
        half(static_cast<int>(p.half)),
        units((static_cast<int>(p.inputs) - static_cast<int>(threadIdx.x) % 4 * 8 + 31) / 32) {}
  __device__ int stages() const { return stages_of(inputs); }
  __device__ std::int64_t columns() const { return inputs; }
  // The matrix row of row i of a tile.
  __device__ int row(int tile, int i) const {
    if (half == 0) return tile * 16 + i;
    const auto tiles_of_head = static_cast<unsigned>(half) / 8;
    const auto head = static_cast<int>(static_cast<unsigned>(tile) / tiles_of_head);
    const int low = head * 2 * half + (tile - head * static_cast<int>(tiles_of_head)) * 8;
    return i < 8 ? low + i : low + half + i - 8;
  }
  __device__ Lines lines(int tile) const {
    const int line = threadIdx.x % 32 / 4;
    return {line_of(row(tile, line)), line_of(row(tile, line + 8))};
  }
  __device__ const uint4* line_of(int row) const {
    return reinterpret_cast<const uint4*>(weight + clamped(row) * inputs + threadIdx.x % 4 * 8);
  }
  __device__ std::int64_t clamped(int row) const { return min(row, static_cast<int>(outputs) - 1); }
  __device__ Unit load(const Lines& lines, int unit, bool valid) const {
    Unit loaded = {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)};
    if (valid && unit < units) {
      loaded.low = __ldg(lines.low + unit * 4);
      loaded.high = __ldg(lines.high + unit * 4);
    }
    return loaded;
  }
  // The same into shared memory, on its way: cp.async.wait_all.
  __device__ void copy(const Lines& lines, int unit, uint4* low, uint4* high) const {
    const bool has = unit < units;
    copy_word(lines.low + (has ? unit * 4 : 0), has, low);
    copy_word(lines.high + (has ? unit * 4 : 0), has, high);
  }
  __device__ static void copy_word(const uint4* from, bool has, uint4* to) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(has ? 16 : 0));
  }
  struct Factors {};
  __device__ static Factors factors(const Unit&) { return {}; }
  __device__ static void fragment(const Unit& unit, const Factors&, std::uint32_t (&a)[2][4]) {
    a[0][0] = unit.low.x;
    a[0][1] = unit.high.x;
    a[0][2] = unit.low.y;
    a[0][3] = unit.high.y;
    a[1][0] = unit.low.z;
    a[1][1] = unit.high.z;
    a[1][2] = unit.low.w;
    a[1][3] = unit.high.w;
  }
};

// What becomes of a sum: bias, residual and out; of qkv also rope, and keys and values go to their
// pages. As tile_rows.cuh wants it.
template <bool kRope>
struct Finish {
  static constexpr int kPartner = kRope ? 8 : 0;
  struct Row {
    std::int64_t output = 0;
    float bias = 0, partner_bias = 0;
    bool is_low = false;  // of a head's halves
  };
  struct Column {
    std::int64_t row = -1;  // -1: there is none
    std::int64_t position = -1, slot = -1;
  };
  struct Extra {
    float residual = 0, cosine = 0, sine = 0;
  };
  const Product& p;
  const Bf16Matrix& matrix;
  std::int64_t first_row, row_end;

  // `i`: the row in the tile; the partner is 8 rows on or before.
  __device__ Row row(int tile, int i) const {
    Row row{.output = matrix.row(tile, i), .is_low = i < 8};
    if (row.output >= p.outputs) return row;
    row.bias = value_at(p.bias, p.bias_is_f32, row.output);
    if constexpr (kRope) {
      row.partner_bias = value_at(p.bias, p.bias_is_f32, matrix.row(tile, i ^ 8));
    }
    return row;
  }
  __device__ Column column(int at) const {
    Column column;
    if (first_row + at >= row_end) return column;
    column.row = first_row + at;
    if constexpr (kRope) {
      column.position = p.positions[column.row];
      column.slot = p.slot_mapping[column.row];
    }
    return column;
  }
  __device__ bool turns(const Row& row, const Column& column) const {
    return row.output < p.rotated_end && column.position >= 0 && column.position < p.max_positions;
  }
  __device__ Extra extra(const Row& row, const Column& column) const {
    Extra extra;
    if (column.row < 0 || row.output >= p.outputs) return extra;
    if constexpr (kRope) {
      if (!turns(row, column)) return extra;
      const auto half = static_cast<unsigned>(p.half);
      const std::int64_t at = column.position * p.half + static_cast<unsigned>(row.output) % half;
      extra.cosine = __ldg(p.cosine + at);
      extra.sine = __ldg(p.sine + at);
    } else if (p.residual != nullptr) {
      extra.residual = p.residual[column.row * p.outputs + row.output];
    }
    return extra;
  }
  __device__ void store(const Row& row, const Column& column, const Extra& extra, float sum,
                        float other) const {
    if (column.row < 0 || row.output >= p.outputs) return;
    sum = __fadd_rn(sum, row.bias);
    if constexpr (kRope) {
      other = __fadd_rn(other, row.partner_bias);
      if (turns(row, column)) {
        const float turned = __fmul_rn(other, extra.sine);
        sum = fmaf(sum, extra.cosine, row.is_low ? -turned : turned);
      }
      if (row.output >= p.query_end) return store_key(row, column, sum);
    } else if (p.residual != nullptr) {
      sum = __fadd_rn(sum, extra.residual);
    }
    p.out[column.row * p.outputs + row.output] = sum;
  }
  // Or a value.
  __device__ void store_key(const Row& row, const Column& column, float sum) const {
    if (column.slot < 0 || column.slot >= p.slot_count) return;
    const std::int64_t at = row.output - p.query_end;
    const bool is_key = at < p.kv_width;
    float* pages = is_key ? p.key_pages : p.value_pages;
    pages[column.slot * p.kv_width + (is_key ? at : at - p.kv_width)] = sum;
  }
  __device__ void operator()(int tile, int i, int at, float sum, float other) const {
    const Row of = row(tile, i);
    const Column to = column(at);
    store(of, to, extra(of, to), sum, other);
  }
};

// ------------------------------------------------------------------------------ up to 8 rows

__device__ const float* row_of(const Product& p, std::int64_t r) {
  const std::int64_t from = p.x_rows == nullptr ? r : p.x_rows[r];
  return from >= 0 && from < p.x_row_count ? p.x + from * p.inputs : nullptr;
}

// The only row of x, normed, into shared memory; it is read once.
template <int kHeld>
__device__ void bring_row(const Product& p, int stages, std::byte* to) {
  __shared__ float sums[kWarps];
  const float* x = row_of(p, 0);
  Eight held[kHeld] = {}, weights[kHeld] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::int64_t column = (threadIdx.x + i * kThreads) * 8;
    if (column >= p.inputs) continue;
    if (x != nullptr) held[i] = load_eight(x + column);
    weights[i] = load_weights(p.norm, p.norm_is_f32, column);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) sum = add_squares(held[i], sum);
  sum = warp_total(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float scale = norm_scale(sums, p.inputs, static_cast<float>(p.eps));
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int chunk = static_cast<int>(threadIdx.x) + i * kThreads;
    if (chunk >= stages * 16) continue;
    store_chunk<PlainOrder>(
        to + chunk / 16 * PlainOrder::kStageBytes + PlainOrder::chunk_offset(chunk % 16),
        normed(held[i], scale, weights[i]));
  }
  __syncthreads();
}

// All rows of x, normed, into shared memory.
__device__ void bring_rows(const Product& p, int rows, std::byte* to) {
  __shared__ float sums[kColumns][kWarps];
  __shared__ float scales[kColumns];
  const int stages = stages_of(p.inputs);
  constexpr int kHeld = 2;
  if (rows == 1 && p.norm != nullptr && stages * 16 <= kHeld * kThreads) {
    return bring_row<kHeld>(p, stages, to);
  }
  if (p.norm != nullptr) {
    for (int r = 0; r < rows; ++r) {
      const float* x = row_of(p, r);
      const float sum = warp_total(x == nullptr ? 0.0f : square_sum(x, p.inputs));
      if (threadIdx.x % 32 == 0) sums[r][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < rows) {
      scales[threadIdx.x] = norm_scale(sums[threadIdx.x], p.inputs, static_cast<float>(p.eps));
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int chunk = threadIdx.x; chunk < stages * 16; chunk += kThreads) {
    const int column = chunk * 8;
    const bool there = column < p.inputs;
    Eight weight = {};
    if (there && p.norm != nullptr) weight = load_weights(p.norm, p.norm_is_f32, column);
    std::byte* at =
        to + chunk / 16 * PlainOrder::kStageBytes + PlainOrder::chunk_offset(chunk % 16);
#pragma unroll 2
    for (int r = 0; r < rows; ++r, at += PlainOrder::row_bytes(stages)) {
      const float* x = row_of(p, r);
      Eight values = {};
      if (there && x != nullptr) values = load_eight(x + column);
      if (p.norm != nullptr) values = normed(values, scales[r], weight);
      store_chunk<PlainOrder>(at, values);
    }
  }
  __syncthreads();
}

extern __shared__ __align__(128) uint4 shared_words[];
__device__ std::byte* shared_bytes() { return reinterpret_cast<std::byte*>(shared_words); }

__device__ std::int64_t active_rows(const Product& p) {
  return smaller(max(*p.active_rows, 0), p.rows);
}

// Weights are read before the kernels before this one have ended: those write none.
template <bool kRope>
__global__ void __launch_bounds__(kThreads, 3) few_linear_kernel(Product p) {
  __shared__ FewSums sums;
  const Bf16Matrix matrix(p);
  const auto tiles = static_cast<int>((p.outputs + 15) / 16);
  const int first = static_cast<int>(blockIdx.x * p.tiles_of_block);
  FewRows<Bf16Matrix, 4> work(matrix, first,
                              min(first + static_cast<int>(p.tiles_of_block), tiles));
  if (p.tiles_of_block == 1 && threadIdx.x < 16) {
    if (threadIdx.x % 8 == 0) {
      prefetch_value(p.bias, p.bias_is_f32, matrix.clamped(matrix.row(first, threadIdx.x)));
    }
    prefetch(matrix.weight + matrix.clamped(matrix.row(first, threadIdx.x)) * p.inputs,
             static_cast<unsigned>(p.inputs) * 2);
  }
  if (p.norm != nullptr && threadIdx.x == 16) {
    prefetch(p.norm, static_cast<unsigned>(p.inputs) * (p.norm_is_f32 != 0 ? 4 : 2));
  }
  wait_for_inputs();
  const std::int64_t active = active_rows(p);
  if (active == 0) return;
  bring_rows(p, static_cast<int>(active), shared_bytes());
  work.template run<kRope ? 8 : 0>(shared_bytes(), static_cast<int>(active), sums,
                          Finish<kRope>{p, matrix, 0, active});
}

// One row, and a tile for each block. All that is not of this step's making is asked for before the
// kernels before this one have ended, and what the host wrote for the step is read.
constexpr int kOneHeld = 8;

template <bool kRope>
__global__ void __launch_bounds__(kThreads, 2) one_linear_kernel(Product p) {
  __shared__ OneRowSums<1> sums;
  const Bf16Matrix matrix(p);
  const auto tile = static_cast<int>(blockIdx.x);
  const int stages = matrix.stages();
  std::byte* const x = shared_bytes();
  SegmentOfTile<Bf16Matrix, kOneHeld> segment(matrix, tile, x + stages * PlainOrder::kStageBytes);
  if (p.norm != nullptr && threadIdx.x == 32) {
    prefetch(p.norm, static_cast<unsigned>(p.inputs) * (p.norm_is_f32 != 0 ? 4 : 2));
  }
  const std::int64_t active = active_rows(p);
  const Finish<kRope> finish{p, matrix, 0, active};
  typename Finish<kRope>::Row row;
  typename Finish<kRope>::Column column;
  typename Finish<kRope>::Extra extra;
  if (threadIdx.x < 32) {
    row = finish.row(tile, static_cast<int>(threadIdx.x) % 16);
    column = finish.column(0);
    if constexpr (kRope) extra = finish.extra(row, column);
  }
  wait_for_inputs();
  if (active > 0) {
    if constexpr (!kRope) {
      if (threadIdx.x < 32) extra = finish.extra(row, column);
    }
    if (p.norm != nullptr) {
      bring_row<kRowChunks>(p, stages, x);
    } else {
      HeldRow held;
      held.load(p.x, p.inputs);
      held.store<PlainOrder>(stages, x);
      __syncthreads();
    }
    segment.run(x, sums);
  }
  asm volatile("cp.async.wait_all;\n" ::: "memory");
  __syncthreads();
  if (active == 0 || threadIdx.x >= 32) return;
  const float sum = sums.total(0, static_cast<int>(threadIdx.x) % 16);
  const float other = kRope ? __shfl_xor_sync(0xFFFFFFFFu, sum, 8) : 0.0f;
  if (threadIdx.x < 16) finish.store(row, column, extra, sum, other);
}

// ------------------------------------------------------------------------------ more rows

// Units on their way: as many as leave registers for the sums.
template <int kRowTiles, int kGroups>
constexpr int kAheadOf = 4;

template <bool kRope, int kGroups>
__global__ void __launch_bounds__(kThreads, 2) cluster_linear_kernel(Product p) {
  using Tile = TileRows<Bf16Matrix, 1, kGroups, kAheadOf<1, kGroups>, Totals::kNone>;
  const Bf16Matrix matrix(p);
  const auto block = static_cast<int>(blockIdx.x) / kSegments;
  const int segment = segment_stages(matrix.stages());
  const int begin = min(static_cast<int>(blockIdx.x) % kSegments * segment, matrix.stages());
  const int end = min(begin + segment, matrix.stages());
  if (begin < end && threadIdx.x < 16 * kWarps) {
    const int row = matrix.row(block * kWarps + static_cast<int>(threadIdx.x) / 16,
                               static_cast<int>(threadIdx.x) % 16);
    const int column = begin * kStageColumns;
    if (threadIdx.x % 8 == 0) prefetch_value(p.bias, p.bias_is_f32, matrix.clamped(row));
    prefetch(matrix.weight + matrix.clamped(row) * p.inputs + column,
             2 * (min(end * kStageColumns, static_cast<int>(p.inputs)) - column));
  }
  wait_for_inputs();
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kGroups * kColumns;
  const std::int64_t row_end = smaller(active_rows(p), first_row + kGroups * kColumns);
  if (first_row >= row_end) return;  // the whole cluster
  Tile tile;
  if (begin < end) {
    tile.run(matrix, {block * kWarps + static_cast<int>(threadIdx.x) / 32, begin, end},
             shared_bytes(), [&](int i) {
               return first_row + i < row_end ? p.x + (first_row + i) * p.inputs : nullptr;
             });
  }
  store_cluster<kGroups>(Finish<kRope>{p, matrix, first_row, row_end}, block * kWarps, tile.acc[0],
                         *reinterpret_cast<TileSums<kGroups>*>(shared_bytes()));
}

template <bool kRope, int kRowTiles, int kGroups>
__global__ void __launch_bounds__(kThreads, kRowTiles == 1 ? 2 : 1) tile_linear_kernel(Product p) {
  using Tile = TileRows<Bf16Matrix, kRowTiles, kGroups, kAheadOf<kRowTiles, kGroups>,
                        kTotalsOf<kRowTiles, kGroups>>;
  wait_for_inputs();
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kGroups * kColumns;
  const std::int64_t row_end = smaller(active_rows(p), first_row + kGroups * kColumns);
  if (first_row >= row_end) return;
  const Bf16Matrix matrix(p);
  const int first_tile =
      (static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32) * kRowTiles;
  Tile tile;
  tile.run(matrix, {first_tile, 0, matrix.stages()}, shared_bytes(), [&](int i) {
    return first_row + i < row_end ? p.x + (first_row + i) * p.inputs : nullptr;
  });
  const Finish<kRope> finish{p, matrix, first_row, row_end};
  __syncthreads();  // x has been read
#pragma unroll
  for (int t = 0; t < kRowTiles; ++t) {
    store_tile<kGroups>(finish, first_tile + t, tile.acc[t],
                        *reinterpret_cast<TileSums<kGroups>*>(shared_bytes()));
  }
}

// f32 weights (small ones: a router): a warp for each output, lanes take k in turns.
struct PlainKernel {
  Product base;
  const float* weight;
};
__global__ void __launch_bounds__(128) plain_linear_kernel(PlainKernel k) {
  wait_for_inputs();
  const Product& p = k.base;
  const std::int64_t row = blockIdx.y;
  const std::int64_t output = static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  if (row >= *p.active_rows || output >= p.outputs) return;
  float sum = 0.0f;
  for (std::int64_t i = threadIdx.x % 32; i < p.inputs; i += 32) {
    sum += p.x[row * p.inputs + i] * k.weight[output * p.inputs + i];
  }
  sum = warp_total(sum);
  if (threadIdx.x % 32 != 0) return;
  sum += value_at(p.bias, p.bias_is_f32, output);
  if (p.residual != nullptr) sum += p.residual[row * p.outputs + output];
  p.out[row * p.outputs + output] = sum;
}

// ------------------------------------------------------------------------------ launches

constexpr std::int64_t kFewRows = kColumns;
constexpr std::int64_t kNormRows = 2;  // that each block norms for itself
constexpr std::int64_t kClusterRows = 256;
constexpr std::int64_t kManyOutputs = 16384;  // blocks enough without sharing out columns

unsigned blocks(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

using Operands = std::initializer_list<device::Operand>;

template <bool kRope>
Status launch_few(device::Stream& stream, const char* name, Product p, const Operands& operands) {
  const std::int64_t tiles = (p.outputs + 15) / 16;
  p.tiles_of_block = p.outputs >= kManyOutputs ? 8 : 1;
  const std::int64_t row_bytes = PlainOrder::row_bytes(stages_of(p.inputs));
  return launch_cuda(stream,
                     {name,
                      {.grid = dim3(blocks(tiles, p.tiles_of_block)),
                       .block = dim3(kThreads),
                       .shared_bytes = static_cast<std::size_t>(row_bytes * p.rows),
                       .overlaps = true}},
                     few_linear_kernel<kRope>, p, operands);
}

template <bool kRope>
Status launch_one(device::Stream& stream, const char* name, const Product& p,
                  const Operands& operands) {
  const int stages = stages_of(p.inputs);
  return launch_cuda(
      stream,
      {name,
       {.grid = dim3(blocks(p.outputs, 16)),
        .block = dim3(kThreads),
        .shared_bytes = static_cast<std::size_t>(stages) * PlainOrder::kStageBytes +
                        SegmentOfTile<Bf16Matrix, kOneHeld>::rest_bytes(stages),
        .overlaps = true}},
      one_linear_kernel<kRope>, p, operands);
}

template <bool kRope, int kGroups>
Status launch_cluster(device::Stream& stream, const char* name, const Product& p,
                      const Operands& operands) {
  using Tile = TileRows<Bf16Matrix, 1, kGroups, kAheadOf<1, kGroups>, Totals::kNone>;
  return launch_cuda(
      stream,
      {name,
       {.grid = dim3(blocks(p.outputs, 16 * kWarps) * kSegments,
                     blocks(p.rows, kGroups * kColumns)),
        .block = dim3(kThreads),
        .shared_bytes = std::max<std::size_t>(Tile::kSharedBytes, sizeof(TileSums<kGroups>)),
        .cluster = kSegments,
        .overlaps = true}},
      cluster_linear_kernel<kRope, kGroups>, p, operands);
}

template <bool kRope, int kRowTiles, int kGroups>
Status launch_tiles(device::Stream& stream, const char* name, const Product& p,
                    const Operands& operands) {
  using Tile = TileRows<Bf16Matrix, kRowTiles, kGroups, kAheadOf<kRowTiles, kGroups>,
                        kTotalsOf<kRowTiles, kGroups>>;
  return launch_cuda(stream,
                     {name,
                      {.grid = dim3(blocks(p.rows, kGroups * kColumns),
                                    blocks(p.outputs, 16 * kWarps * kRowTiles)),
                       .block = dim3(kThreads),
                       .shared_bytes = Tile::kSharedBytes,
                       .overlaps = true}},
                     tile_linear_kernel<kRope, kRowTiles, kGroups>, p, operands);
}

template <bool kRope>
Status launch(device::Stream& stream, const char* name, const Product& p,
              const Operands& operands) {
  if (p.rows == 1 && p.outputs < kManyOutputs && is_one_row_wide(p.inputs)) {
    return launch_one<kRope>(stream, name, p, operands);
  }
  const bool shares = p.norm == nullptr && p.outputs < kManyOutputs;
  if (p.rows <= kFewRows && !shares) return launch_few<kRope>(stream, name, p, operands);
  if (p.rows <= kClusterRows && shares) {
    if (p.rows <= kFewRows) return launch_cluster<kRope, 1>(stream, name, p, operands);
    if (p.rows <= 16) return launch_cluster<kRope, 2>(stream, name, p, operands);
    if (p.rows <= 32) return launch_cluster<kRope, 4>(stream, name, p, operands);
    return launch_cluster<kRope, 8>(stream, name, p, operands);
  }
  if (p.rows <= 16) return launch_tiles<kRope, 1, 2>(stream, name, p, operands);
  if (p.rows <= 32) return launch_tiles<kRope, 1, 4>(stream, name, p, operands);
  if (p.rows <= 64) return launch_tiles<kRope, 1, 8>(stream, name, p, operands);
  return launch_tiles<kRope, 2, 8>(stream, name, p, operands);
}

Product product_of(const LinearArgs& a) {
  Product p;
  p.x = a.x.as<const float>();
  p.x_row_count = a.x.shape[0];
  p.weight = a.weight.as<const std::uint16_t>();
  p.bias = a.bias.empty() ? nullptr : a.bias.address;
  p.bias_is_f32 = a.bias.dtype == tensor::DType::kF32 ? 1 : 0;
  p.residual = a.residual.empty() ? nullptr : a.residual.as<const float>();
  p.out = a.out.as<float>();
  p.active_rows = a.active_rows.as<const std::int32_t>();
  p.inputs = a.weight.shape[1];
  p.outputs = a.weight.shape[0];
  p.rows = a.x.shape[0];
  return p;
}
void set_norm(Product& p, const RmsNormArgs& norm) {
  p.x = norm.x.as<const float>();
  p.norm = norm.weight.address;
  p.norm_is_f32 = norm.weight.dtype == tensor::DType::kF32 ? 1 : 0;
  p.eps = double{norm.eps};
}

Status check_width(const LinearArgs& a) {
  if (a.weight.shape[1] % 8 == 0) return {};
  return Error(ErrorCode::kUnsupported,
               "linear on CUDA needs an input width that is a multiple of 8, not " +
                   std::to_string(a.weight.shape[1]));
}

}  // namespace

Status linear(device::Stream& stream, const LinearArgs& a) {
  const Operands operands = {reads("x", a.x),
                             reads("weight", a.weight),
                             reads("bias", a.bias),
                             reads("residual", a.residual),
                             reads("active_rows", a.active_rows),
                             writes("out", a.out)};
  Product p = product_of(a);
  if (a.weight.dtype == tensor::DType::kF32) {
    p.weight = nullptr;
    const PlainKernel plain{p, a.weight.as<const float>()};
    const dim3 grid(blocks(p.outputs, 4), static_cast<unsigned>(p.rows));
    return launch_cuda(stream, {"linear", {.grid = grid, .block = dim3(128), .overlaps = true}},
                       plain_linear_kernel, plain, operands);
  }
  HF_TRY(check_width(a));
  return launch<false>(stream, "linear", p, operands);
}

Status qkv(device::Stream& stream, const QkvArgs& a, bool& done) {
  const std::int64_t half = a.rope.head_dim / 2;
  const auto& pages = a.write.key_pages.shape;
  done = a.linear.weight.dtype == tensor::DType::kBF16 && a.linear.weight.shape[1] % 8 == 0 &&
         half % 8 == 0 && pages[3] == a.rope.head_dim;
  if (!done) return {};
  Product p = product_of(a.linear);
  const bool norms = p.rows <= kNormRows;
  if (norms) {
    set_norm(p, a.norm);
  } else {
    HF_TRY(rms_norm(stream, a.norm));
  }
  p.positions = a.rope.positions.as<const std::int32_t>();
  p.slot_mapping = a.write.slot_mapping.as<const std::int32_t>();
  p.cosine = a.rope.cos_table.as<const float>();
  p.sine = a.rope.sin_table.as<const float>();
  p.key_pages = a.write.key_pages.as<float>();
  p.value_pages = a.write.value_pages.as<float>();
  p.half = half;
  p.kv_width = pages[2] * pages[3];
  p.query_end = p.outputs - 2 * p.kv_width;
  p.rotated_end = a.rope.head_count * a.rope.head_dim;
  p.max_positions = a.rope.cos_table.shape[0];
  p.slot_count = pages[0] * pages[1];
  return launch<true>(stream, "qkv", p,
                      {reads("x", norms ? a.norm.x : a.linear.x),
                       reads("norm", norms ? a.norm.weight : TensorView{}),
                       reads("weight", a.linear.weight), reads("bias", a.linear.bias),
                       reads("positions", a.rope.positions),
                       reads("slot_mapping", a.write.slot_mapping),
                       reads("cos_table", a.rope.cos_table), reads("sin_table", a.rope.sin_table),
                       updates("key_pages", a.write.key_pages),
                       updates("value_pages", a.write.value_pages),
                       reads("active_rows", a.linear.active_rows), writes("out", a.linear.out)});
}

Status head(device::Stream& stream, const HeadArgs& a) {
  if (a.linear.x.shape[0] > kNormRows || a.linear.weight.dtype == tensor::DType::kF32) {
    HF_TRY(gather_rows(stream, a.gather));
    HF_TRY(rms_norm(stream, a.norm));
    return linear(stream, a.linear);
  }
  HF_TRY(check_width(a.linear));
  Product p = product_of(a.linear);
  set_norm(p, a.norm);
  p.x = a.gather.x.as<const float>();
  p.x_rows = a.gather.rows.as<const std::int32_t>();
  p.x_row_count = a.gather.x.shape[0];
  return launch<false>(stream, "head", p,
                       {reads("x", a.gather.x), reads("rows", a.gather.rows),
                        reads("norm", a.norm.weight), reads("weight", a.linear.weight),
                        reads("bias", a.linear.bias), reads("residual", a.linear.residual),
                        reads("active_rows", a.linear.active_rows), writes("out", a.linear.out)});
}

}  // namespace holdfast::ops::cuda
