// What the tests of ops on a GPU share: copies of host tensors in device memory, and how far two
// results are apart. Tests only; one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "device/arena.h"
#include "device/memory.h"
#include "ops/host_tensor.h"
#include "ops/ops.h"

namespace holdfast::ops::testing {

// Copies of host tensors in device memory, for one test.
class GpuBench {
 public:
  explicit GpuBench(device::Device& device)
      : device_(device),
        stream_(device.create_stream().value()),
        kernels_(make_cuda_kernels()) {}

  TensorView put(const HostTensor& tensor) {
    if (tensor.bytes() == 0) return {};
    arenas_.push_back(device::Arena::create(device_, "test", tensor.bytes() + 64).value());
    TensorView view = tensor.view();
    view.address = arenas_.back()->allocate(tensor.bytes(), 64).value();
    device_.write(view.address, tensor.view().address, tensor.bytes()).value();
    return view;
  }
  void get(const TensorView& from, HostTensor& to) {
    device_.read(to.view().address, from.address, to.bytes()).value();
  }
  OpContext context() { return {*stream_, *kernels_}; }
  void finish() { stream_->synchronize().value(); }

 private:
  device::Device& device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<Kernels> kernels_;
  std::vector<std::unique_ptr<device::Arena>> arenas_;
};

// Largest |a - b| / (1 + |b|); infinite when one of them is not a number and the other is.
inline double worst(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference =
        std::abs(double{a[i]} - double{b[i]}) / (1.0 + std::abs(double{b[i]}));
    most = std::isfinite(difference) ? std::max(most, difference) : INFINITY;
  }
  return most;
}

inline void poison(HostTensor& tensor) {
  std::fill_n(tensor.view().address, tensor.bytes(), device::kPoisonByte);
}

}  // namespace holdfast::ops::testing
