// What a kernel that is launched with LaunchShape::overlaps calls. Device code only.
#pragma once

namespace holdfast::device::cuda {

// Until the kernels before this one have ended and their writes can be seen. First lets the next
// kernel take the room that this one's blocks leave; that one waits in turn.
__device__ inline void wait_for_inputs() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
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
