// What a kernel that is launched with LaunchShape::overlaps calls. Device code only.
#pragma once

namespace holdfast::device::cuda {

// Until the kernels before this one have ended and their writes can be seen. First lets the next
// kernel take the room that this one's blocks leave; that one waits in turn.
__device__ inline void wait_for_inputs() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

}  // namespace holdfast::device::cuda
