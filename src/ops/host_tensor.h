// What the tests and benchmarks of ops and experts share: a stream with a chosen number of workers,
// tensors in plain host memory that start as poison, and seeded values. One thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "ops/ops.h"
#include "tensor/codecs.h"

namespace holdfast::ops::testing {

using tensor::DType;
using tensor::Shape;

// Host memory for one tensor, 64-byte aligned, filled with device::kPoisonByte.
class HostTensor {
 public:
  HostTensor(DType dtype, const Shape& shape) {
    view_.dtype = dtype;
    view_.shape = shape;
    bytes_ = tensor::byte_size(dtype, shape).value();
    memory_.reset(static_cast<std::byte*>(::operator new[](bytes_ + 1, std::align_val_t{64})));
    view_.address = memory_.get();
    poison();
  }

  const TensorView& view() const { return view_; }
  void poison() { std::memset(memory_.get(), std::to_integer<int>(device::kPoisonByte), bytes_); }
  std::size_t bytes() const { return bytes_; }
  template <typename T>
  std::span<T> as() const {
    return {view_.as<T>(), bytes_ / sizeof(T)};
  }
  bool same_bytes(const HostTensor& other) const {
    return bytes_ == other.bytes_ && std::memcmp(memory_.get(), other.memory_.get(), bytes_) == 0;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  TensorView view_;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte[], Free> memory_;
};

// Uniform in [-range, range).
inline float random_float(base::Rng& rng, float range) {
  return static_cast<float>((2.0 * rng.next_unit() - 1.0) * range);
}

// f32 or bf16 values in [-range, range).
inline HostTensor random_tensor(base::Rng& rng, DType dtype, const Shape& shape,
                                float range = 1.0f) {
  HostTensor out(dtype, shape);
  if (dtype == DType::kF32) {
    for (float& value : out.as<float>()) value = random_float(rng, range);
  } else {
    for (std::uint16_t& bits : out.as<std::uint16_t>()) {
      bits = tensor::f32_to_bf16(random_float(rng, range));
    }
  }
  return out;
}

inline HostTensor i32_tensor(const std::vector<std::int32_t>& values) {
  HostTensor out(DType::kI32, Shape{static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), out.as<std::int32_t>().begin());
  return out;
}

// The values of an f32 or bf16 tensor.
inline std::vector<float> decode(const TensorView& view) {
  std::vector<float> out(static_cast<std::size_t>(view.shape.element_count()));
  tensor::decode_to_f32(view.dtype, view.address, view.shape.element_count(), out.data()).value();
  return out;
}

// A CPU stream with `workers` workers and one set of kernels.
class Runner {
 public:
  explicit Runner(std::unique_ptr<Kernels> kernels, int workers = 1)
      : device_(device::make_cpu_device()),
        stream_(device_->create_stream(workers).value()),
        kernels_(std::move(kernels)) {}
  OpContext context() { return {*stream_, *kernels_}; }
  device::Device& device() { return *device_; }
  device::Stream& stream() { return *stream_; }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<Kernels> kernels_;
};

}  // namespace holdfast::ops::testing
