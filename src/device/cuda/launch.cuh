// What a kernel that is launched with LaunchShape::overlaps calls. Device code only.
#pragma once

namespace holdfast::device::cuda {

// Until the kernels before this one have ended and their writes can be seen. First lets the next
// kernel take the room that this one's blocks leave; that one waits in turn.
__device__ inline void wait_for_inputs() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

// As wait_for_inputs, in the other order: the next kernel's blocks begin when every block of this
// one has waited, and so find what was written before this one without waiting (past their
// first-level cache).
__device__ inline void wait_then_let_next_begin() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

// Asks for memory to come into the L2 cache: a hint, so also before wait_for_inputs. `from` and
// `bytes` are multiples of 16.
__device__ inline void prefetch(const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes));
}

// The same for what lies around `from`, which may be null: what a kernel needs at its end, say.
__device__ inline void prefetch_line(const void* from) {
  if (from != nullptr) asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
}

// Of a launch with LaunchShape::cluster: between the two, every block of the cluster has begun, so
// that its shared memory is there. Every thread calls both.
__device__ inline void cluster_began() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.aligned;\n" ::: "memory");
}

}  // namespace holdfast::device::cuda
