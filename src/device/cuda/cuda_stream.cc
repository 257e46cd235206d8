#include "device/cuda/cuda_stream.h"

#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_graph.h"

namespace holdfast::device::cuda {

int highest_priority() {
  int lowest = 0;
  int highest = 0;
  static_cast<void>(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return highest;
}

Result<std::unique_ptr<CudaStream>> CudaStream::create(const Driver& driver) {
  cudaStream_t stream = nullptr;
  HF_TRY(check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest_priority()),
               "creating a stream"));
  return std::unique_ptr<CudaStream>(new CudaStream(driver, stream));
}

CudaStream::~CudaStream() { static_cast<void>(cudaStreamDestroy(stream_)); }

Status CudaStream::synchronize() {
  return check(cudaStreamSynchronize(stream_), "waiting for a stream");
}

Status CudaStream::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  HF_TRY(check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_),
               "copying in device memory"));
  if (!recording_) return {};
  const Operand operands[] = {
      {"from", {reinterpret_cast<std::uintptr_t>(from), bytes}, Access::kRead},
      {"to", {reinterpret_cast<std::uintptr_t>(to), bytes}, Access::kWrite}};
  return note("copy", operands);
}

Status CudaStream::launch(const CudaKernel& kernel) {
  constexpr std::size_t kPlainSharedBytes = 16 << 10;  // the kernel has some of its own besides
  if (kernel.shape.shared_bytes > kPlainSharedBytes) {
    HF_TRY(check(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(kernel.shape.shared_bytes)),
                 kernel.name));
  }
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = kernel.shape.grid;
  config.blockDim = kernel.shape.block;
  config.dynamicSmemBytes = kernel.shape.shared_bytes;
  config.stream = stream_;
  config.attrs = attributes;
  if (kernel.shape.overlaps) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (kernel.shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kernel.shape.cluster, 1, 1};
  }
  HF_TRY(check(
      cudaLaunchKernelExC(&config, kernel.function, static_cast<void**>(kernel.args)),
      kernel.name));
  return recording_ ? note(kernel.name, kernel.operands) : Status();
}

// The node that the last call added is what the next one would depend on.
Status CudaStream::note(const char* name, std::span<const Operand> operands) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  HF_TRY(check(cudaStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, &last, &edges, &count),
               "asking for the captured node"));
  if (status != cudaStreamCaptureStatusActive || count != 1) {
    return make_error(ErrorCode::kDevice, "node {} did not become one node of the capture: {}",
                      name, count);
  }
  const auto node = static_cast<std::uint32_t>(recording_->manifest.nodes.size());
  recording_->manifest.nodes.emplace_back(name);
  recording_->nodes.push_back(last[0]);
  for (const Operand& operand : operands) {
    if (operand.range.bytes == 0) continue;
    recording_->manifest.entries.push_back({.node = node,
                                            .role = operand.role,
                                            .range = operand.range,
                                            .access = operand.access});
  }
  return {};
}

Status CudaStream::begin_capture() {
  if (recording_) {
    return make_error(ErrorCode::kFailedPrecondition, "the stream is capturing already");
  }
  HF_TRY(check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "beginning a capture"));
  recording_.emplace();
  return {};
}

Result<std::unique_ptr<Graph>> CudaStream::end_capture(const AddressHome& home,
                                                       std::string label) {
  if (!recording_) {
    return make_error(ErrorCode::kFailedPrecondition, "the stream is not capturing");
  }
  CudaRecording recording = std::move(*recording_);
  recording_.reset();
  cudaGraph_t graph = nullptr;
  HF_TRY(check(cudaStreamEndCapture(stream_, &graph), "ending the capture of " + label));
  HF_ASSIGN(auto made, CudaGraph::create(driver_, graph, std::move(recording), home, label));
  return std::unique_ptr<Graph>(std::move(made));
}

}  // namespace holdfast::device::cuda
