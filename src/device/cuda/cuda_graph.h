// CudaGraph: a captured CUDA graph, its executable, and the audit that reads every pointer back out
// of the captured nodes. One thread.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "device/cuda/cuda_stream.h"
#include "device/device.h"

namespace holdfast::device::cuda {

class CudaGraph final : public Graph {
 public:
  // Takes `graph` over. Errors: kDevice.
  static Result<std::unique_ptr<CudaGraph>> create(const Driver& driver, cudaGraph_t graph,
                                                   CudaRecording recording,
                                                   const AddressHome& home, std::string label);
  ~CudaGraph() override;

  const std::string& label() const override { return label_; }
  const AddressManifest& manifest() const override { return recording_.manifest; }
  // Errors besides: kUnsupported naming a node that cannot be read (a conditional node, ...).
  Status check_parameters(const AddressHome& home) const override;
  AuditFigures audited() const override { return audited_; }
  Result<GraphReading> read_back() const override;
  Status launch(Stream& stream) override;

 private:
  CudaGraph(const Driver& driver, cudaGraph_t graph, CudaRecording recording,
            const AddressHome& home, std::string label);

  const Driver& driver_;
  cudaGraph_t graph_;
  cudaGraphExec_t executable_ = nullptr;
  CudaRecording recording_;
  const AddressHome& home_;
  std::uint64_t layout_generation_;
  std::string label_;
  mutable AuditFigures audited_;
};

}  // namespace holdfast::device::cuda
