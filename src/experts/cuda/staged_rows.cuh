// Products of one expert's MXFP4 matrix with up to 8 kGroups rows of x, 16 kRowTiles rows of the
// matrix a warp, four warps together (wgmma.cuh), in the order of additions of matrix.cuh. Codes,
// and x, split already (matrix.cuh), are copied to shared memory kAhead stages before they are
// multiplied; scales come at once. Device code only.
//
// Shared memory: kAhead + 2 stages of x as wgmma.cuh wants it; kAhead + 1 of codes, a lane's own 32
// bytes for each tile; the scales of the block's rows as they lie in memory.
#pragma once

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/matrix.cuh"
#include "ops/cuda/wgmma.cuh"

namespace holdfast::cuda_kernels {

// Matrix: Mxfp4Matrix.
template <typename Matrix, int kRowTiles, int kGroups, int kAhead>
struct StagedRows {
  using Unit = typename Matrix::Unit;
  using Factors = typename Matrix::Factors;
  static constexpr int kRows = kGroups * kColumns;
  static constexpr int kProductBytes = kRows * 32;
  static constexpr int kXBytes = 16 * kProductBytes;
  static constexpr int kXSlots = kAhead + 2;  // products are under way when x is asked for
  static constexpr int kTileBytes = 2 * kThreads * 16;
  static constexpr int kCodeBytes = kRowTiles * kTileBytes;
  static constexpr int kCodeSlots = kAhead + 1;
  static constexpr int kScales = kXSlots * kXBytes + kCodeSlots * kCodeBytes;
  static constexpr int kBlockRows = 16 * kWarps * kRowTiles;
  static constexpr int kSums = kRowTiles * kGroups * 4;

  // Of a matrix with `blocks` blocks of 32 columns; scales begin up to 15 bytes into their place,
  // and are read up to 3 bytes past their end.
  __host__ static std::size_t shared_bytes(std::int64_t blocks) {
    return static_cast<std::size_t>(kScales + (kBlockRows * blocks + 34) / 16 * 16);
  }

  float acc[kRowTiles][kGroups][4] = {};

  // `block`: which kBlockRows rows. `shared`: a multiple of 128.
  __device__ StagedRows(const Matrix& m, int block, std::byte* shared)
      : matrix(m), at(shared_address(shared)), stages(m.stages()) {
    const int first_row = block * kBlockRows;
    const int first_tile = first_row / 16 + static_cast<int>(threadIdx.x) / 32 * kRowTiles;
    const std::uint8_t* scales = m.scales + static_cast<std::int64_t>(first_row) * m.blocks;
    const auto skew = static_cast<int>(reinterpret_cast<std::uintptr_t>(scales) % 16);
    const std::uint8_t* mine = m.lines(first_tile).low_scale;
    scale_at = at + kScales + skew + static_cast<std::uint32_t>(mine - scales);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      const auto lines = m.lines(first_tile + t);
      low[t] = lines.low;
      high[t] = lines.low + lines.to_high;
      low_scale[t] = static_cast<int>(lines.low_scale - mine);
      high_scale[t] = low_scale[t] + lines.to_high;
    }
    const int bytes = skew + min(kBlockRows, m.rows - first_row) * m.blocks;
    for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += kThreads * 16) {
      async_copy(at + kScales + i, scales - skew + i, min(bytes - i, 16));
    }
#pragma unroll
    for (int stage = 0; stage < kAhead; ++stage) ask_codes(stage, stage);
    async_commit();
  }

  // row_of(i): the i-th split row. Sums are in acc then; all of the block's threads have read x.
  template <typename RowOf>
  __device__ void run(const RowOf& row_of) {
    // A thread copies one unit of each group's row of eight.
    const int unit = static_cast<int>(threadIdx.x) / 8;
    const int row = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) x_row[g] = row_of(g * 8 + row) + unit * 16;
    x_to = at + (unit / 8 * 4 + unit / 4 % 2 * 2 + unit % 2) * kProductBytes +
           unit / 2 % 2 * (kRows * 16) + row * 16;
#pragma unroll
    for (int stage = 0; stage < kAhead; ++stage) {
      ask_x(stage, stage);
      async_commit();
    }
    const int segment = segment_stages(stages);
    int x_slot = 0, x_to_slot = kAhead, code_slot = 0, code_to_slot = kAhead;
    const std::uint64_t first_x = wgmma_matrix<kGroups>(at);
#pragma unroll 1
    for (int stage = 0; stage < stages;) {
      const int end = min(stage + segment, stages);
#pragma unroll 1
      for (; stage < end; ++stage) {
        async_wait<kAhead - 1>();
        fence_shared_for_wgmma();
        __syncthreads();
        Unit now[kRowTiles];
        Factors factors[kRowTiles];
        take(stage, code_slot, now, factors);
        ask_codes(stage + kAhead, code_to_slot);
        ask_x(stage + kAhead, x_to_slot);
        async_commit();
        const std::uint64_t x = first_x + static_cast<unsigned>(x_slot * (kXBytes >> 4));
#pragma unroll
        for (int w = 0; w < 4; ++w) multiply_word(now, factors, x + w * (4 * kProductBytes >> 4));
        go_on(x_slot, kXSlots);
        go_on(x_to_slot, kXSlots);
        go_on(code_slot, kCodeSlots);
        go_on(code_to_slot, kCodeSlots);
      }
      wgmma_wait<0>();
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) wgmma_done(acc[t]);
      fold(end == stages);
    }
    __syncthreads();
  }

 private:
  const Matrix& matrix;
  const std::uint32_t at;
  const int stages;
  std::uint32_t scale_at;
  const uint4* low[kRowTiles];
  const uint4* high[kRowTiles];
  int low_scale[kRowTiles], high_scale[kRowTiles];
  const std::byte* x_row[kGroups];
  std::uint32_t x_to = 0;
  float total[kSums] = {};

  __device__ static void go_on(int& slot, int slots) { slot = slot + 1 == slots ? 0 : slot + 1; }
  __device__ std::uint32_t code_at(int slot) const {
    return at + kXSlots * kXBytes + threadIdx.x * 16 + slot * kCodeBytes;
  }
  __device__ __forceinline__ void ask_codes(int stage, int slot) {
    if (stage >= stages) return;
    const int bytes = stage < matrix.units ? 16 : 0;
    const std::uint32_t to = code_at(slot);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      async_copy(to + t * kTileBytes, low[t] + stage * 4, bytes);
      async_copy(to + t * kTileBytes + kThreads * 16, high[t] + stage * 4, bytes);
    }
  }
  __device__ __forceinline__ void ask_x(int stage, int slot) {
    if (stage >= stages) return;
    const int bytes = stage + 1 < stages ? 16 : (matrix.blocks - stage * 4) * 4;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      async_copy(x_to + slot * kXBytes + g * 128, x_row[g] + stage * kSplitStageBytes, bytes);
    }
  }
  __device__ __forceinline__ void take(int stage, int slot, Unit (&now)[kRowTiles],
                                       Factors (&factors)[kRowTiles]) {
    const std::uint32_t from = code_at(slot);
    const std::uint32_t scale = scale_at + stage * 4;
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      now[t].low = load_shared(from + t * kTileBytes);
      now[t].high = load_shared(from + t * kTileBytes + kThreads * 16);
      now[t].low_scale = load_shared_byte(scale + low_scale[t]);
      now[t].high_scale = load_shared_byte(scale + high_scale[t]);
      factors[t] = Matrix::factors(now[t]);
    }
  }
  __device__ static uint4 load_shared(std::uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
  }
  __device__ static std::uint32_t load_shared_byte(std::uint32_t from) {
    std::uint32_t v;
    asm volatile("ld.shared.u8 %0, [%1];\n" : "=r"(v) : "r"(from) : "memory");
    return v;
  }
  // One word's products are under way while the next one is made ready.
  __device__ __forceinline__ void multiply_word(Unit (&now)[kRowTiles],
                                                const Factors (&factors)[kRowTiles],
                                                std::uint64_t x) {
    constexpr int kProduct = kProductBytes >> 4;  // as a matrix's address counts
    wgmma_wait<1>();
    std::uint32_t a[kRowTiles][2][4];
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      Matrix::fragment(now[t], factors[t], a[t]);
      Matrix::turn(now[t]);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        wgmma(acc[t], a[t][step], x);
        wgmma(acc[t], a[t][step], x + kProduct);
      }
      x += 2 * kProduct;
    }
    wgmma_commit();
  }
  // Adds acc to the totals and begins anew or, last, takes them over.
  __device__ __forceinline__ void fold(bool last) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      float& sum = acc[i / (kGroups * 4)][i / 4 % kGroups][i % 4];
      total[i] = total[i] + sum;
      sum = last ? total[i] : 0.0f;
    }
  }
};

}  // namespace holdfast::cuda_kernels
