// Times work on a CUDA stream with events: medians over repetitions. For benchmarks; one thread.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "device/cuda/cuda_stream.h"

namespace holdfast::device::cuda {

// Median milliseconds of `body`, which enqueues on `stream`, over `repetitions` after a warm-up.
inline double median_ms(Stream& stream, int repetitions, const std::function<void()>& body) {
  const cudaStream_t handle = static_cast<CudaStream&>(stream).handle();
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int i = 0; i < repetitions + 2; ++i) {
    cudaEventRecord(begin, handle);
    body();
    cudaEventRecord(end, handle);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i >= 2) times.push_back(double{ms});
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

}  // namespace holdfast::device::cuda
