// The part of the CUDA driver that holdfast calls, looked up when the first device is made, so that
// a program that was built with CUDA also starts where no driver is. Any thread.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <string>

#include "holdfast/result.h"

namespace holdfast::device::cuda {

struct Driver {
  CUresult (*get_error_string)(CUresult, const char**) = nullptr;
  CUresult (*mem_address_reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr,
                                  unsigned long long) = nullptr;
  CUresult (*mem_address_free)(CUdeviceptr, size_t) = nullptr;
  CUresult (*mem_create)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                         unsigned long long) = nullptr;
  CUresult (*mem_release)(CUmemGenericAllocationHandle) = nullptr;
  CUresult (*mem_map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                      unsigned long long) = nullptr;
  CUresult (*mem_unmap)(CUdeviceptr, size_t) = nullptr;
  CUresult (*mem_set_access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) = nullptr;
  CUresult (*mem_granularity)(size_t*, const CUmemAllocationProp*,
                              CUmemAllocationGranularity_flags) = nullptr;
  CUresult (*pointer_attribute)(void*, CUpointer_attribute, CUdeviceptr) = nullptr;
  CUresult (*graph_nodes)(CUgraph, CUgraphNode*, size_t*) = nullptr;
  CUresult (*graph_node_type)(CUgraphNode, CUgraphNodeType*) = nullptr;
  CUresult (*graph_kernel_params)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) = nullptr;
  CUresult (*graph_memcpy_params)(CUgraphNode, CUDA_MEMCPY3D*) = nullptr;
  CUresult (*graph_memset_params)(CUgraphNode, CUDA_MEMSET_NODE_PARAMS*) = nullptr;
  CUresult (*graph_child)(CUgraphNode, CUgraph*) = nullptr;
  CUresult (*function_parameter)(CUfunction, size_t, size_t*, size_t*) = nullptr;
  CUresult (*function_name)(const char**, CUfunction) = nullptr;
  CUresult (*kernel_function)(CUfunction*, CUkernel) = nullptr;
};

// Errors: kUnsupported when there is no driver or it lacks a call, naming it.
Result<const Driver*> driver();

// kDevice "<what>: <CUDA's own words>"; kResourceExhausted for out of memory.
Status check(cudaError_t status, const std::string& what);
Status check(CUresult status, const std::string& what);

}  // namespace holdfast::device::cuda
