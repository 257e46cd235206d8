// Warpgroup products (PTX ISA 9.7.15): D += A B with A 64 x 16 bf16 in the registers of four warps,
// a warp's 16 rows as mma.cuh has them, and B 16 x 8 kGroups in shared memory. A warp's results are
// those of mma_bf16 for each group of 8 columns, bit by bit, for every number of groups (measured:
// bench/RESULTS.md; ARowOfLinearHasTheSameBitsAloneAndAmongOthers), so that both may be used for
// one row. Device code only.
//
// B lies as core matrices of 8 columns x 8 k, 128 bytes: of column n the k 0 to 7 at 16 n, and the
// k 8 to 15 at 16 n + kGroups * 128.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holdfast::cuda_kernels {

// Before the first product after registers or B were written, by every thread of the warpgroup.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Until all but the last `kPending` groups are done.
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// After shared memory was written as usual, before the barrier that precedes products with it.
__device__ inline void fence_shared_for_wgmma() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
// Keeps the compiler from reading sums before it has waited.
template <int kGroups>
__device__ void wgmma_done(float (&sums)[kGroups][4]) {
#pragma unroll
  for (int i = 0; i < kGroups * 4; ++i) asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
}

// B of kGroups groups at `at`, an address of shared memory.
template <int kGroups>
__device__ std::uint64_t wgmma_matrix(std::uint32_t at) {
  return ((at >> 4) & 0x3FFF) | std::uint64_t{kGroups * 128 >> 4} << 16 |
         std::uint64_t{128 >> 4} << 32;
}
template <int kGroups>
__device__ std::uint64_t wgmma_matrix(const void* at) {
  return wgmma_matrix<kGroups>(static_cast<std::uint32_t>(__cvta_generic_to_shared(at)));
}

__device__ __forceinline__ void wgmma(float (&d)[1][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3"
      "}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[2][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7"
      "}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[4][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
      "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void wgmma(float (&d)[8][4], const std::uint32_t (&a)[4],
                                      std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
      "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;\n"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
        "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),
        "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),
        "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
        "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),
        "+f"(d[7][2]), "+f"(d[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

}  // namespace holdfast::cuda_kernels
