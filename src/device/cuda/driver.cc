#include "device/cuda/driver.h"

#include <utility>

#include "base/error.h"

namespace holdfast::device::cuda {
namespace {

// The versions are those that introduced the signatures above.
template <typename Function>
bool look_up(const char* name, unsigned version, Function*& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, version,
                                                              cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  function = reinterpret_cast<Function*>(found);
  return true;
}

Result<Driver> load() {
  Driver d;
  const char* missing = nullptr;
  const auto need = [&missing](const char* name, unsigned version, auto*& function) {
    if (missing == nullptr && !look_up(name, version, function)) missing = name;
  };
  need("cuGetErrorString", 6000, d.get_error_string);
  need("cuMemAddressReserve", 10020, d.mem_address_reserve);
  need("cuMemAddressFree", 10020, d.mem_address_free);
  need("cuMemCreate", 10020, d.mem_create);
  need("cuMemRelease", 10020, d.mem_release);
  need("cuMemMap", 10020, d.mem_map);
  need("cuMemUnmap", 10020, d.mem_unmap);
  need("cuMemSetAccess", 10020, d.mem_set_access);
  need("cuMemGetAllocationGranularity", 10020, d.mem_granularity);
  need("cuPointerGetAttribute", 4000, d.pointer_attribute);
  need("cuGraphGetNodes", 10000, d.graph_nodes);
  need("cuGraphNodeGetType", 10000, d.graph_node_type);
  need("cuGraphKernelNodeGetParams", 12000, d.graph_kernel_params);
  need("cuGraphMemcpyNodeGetParams", 10000, d.graph_memcpy_params);
  need("cuGraphMemsetNodeGetParams", 10000, d.graph_memset_params);
  need("cuGraphChildGraphNodeGetGraph", 10000, d.graph_child);
  need("cuFuncGetParamInfo", 12040, d.function_parameter);
  need("cuFuncGetName", 12030, d.function_name);
  need("cuKernelGetFunction", 12000, d.kernel_function);
  if (missing == nullptr) return d;
  return make_error(ErrorCode::kUnsupported,
                    "no CUDA driver that has {} (12.4 or later): install one, or use the CPU",
                    missing);
}

}  // namespace

Result<const Driver*> driver() {
  static const Result<Driver> loaded = load();
  if (!loaded.ok()) return loaded.error();
  return &*loaded;
}

Status check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());  // the sticky ones stay all the same
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted
                                                             : ErrorCode::kDevice;
  return make_error(code, "{}: {} ({})", what, cudaGetErrorString(status),
                    cudaGetErrorName(status));
}

Status check(CUresult status, const std::string& what) {
  if (status == CUDA_SUCCESS) return {};
  const char* words = nullptr;
  if (const auto loaded = driver(); loaded.ok()) (*loaded)->get_error_string(status, &words);
  const ErrorCode code = status == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::kResourceExhausted
                                                            : ErrorCode::kDevice;
  return make_error(code, "{}: {} ({})", what, words != nullptr ? words : "unknown error",
                    static_cast<int>(status));
}

}  // namespace holdfast::device::cuda
