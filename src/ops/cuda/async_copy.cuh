// Copies of 16 bytes into shared memory that run on while their thread does other things (PTX ISA
// 9.7.9.25, cp.async). A thread sees what it copied after async_wait, others after a barrier then.
// Device code only.
#pragma once

#include <cstdint>

namespace holdfast::cuda_kernels {

// `to`: of shared memory, as shared_address gives it. Of the 16 bytes the first `bytes` come from
// `from`, which is read no further; the rest is zero.
__device__ __forceinline__ void async_copy(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ inline void async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until all but the last `kPending` committed groups of this thread are there.
template <int kPending>
__device__ void async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

}  // namespace holdfast::cuda_kernels
