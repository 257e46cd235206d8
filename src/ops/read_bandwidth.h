// What this machine's cores read from memory when they do nothing else: the yardstick of the
// benchmarks. Measured once per process; benchmarks only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "device/cpu/cpu_device.h"

namespace holdfast::ops::testing {

// Sums 64-byte lines of [from, from + count) in four chains; the compiler vectorises it.
inline std::uint64_t sum_words(const std::uint64_t* from, std::int64_t count) {
  typedef std::uint64_t Words __attribute__((vector_size(64)));
  Words sum[4] = {};
  const auto* lines = reinterpret_cast<const Words*>(from);
  for (std::int64_t i = 0; i + 4 <= count / 8; i += 4) {
    for (int c = 0; c < 4; ++c) sum[c] += lines[i + c];
  }
  const Words total = sum[0] + sum[1] + sum[2] + sum[3];
  std::uint64_t out = 0;
  for (int i = 0; i < 8; ++i) out += total[i];
  return out;
}

// Bytes per second of all cores over 512 MiB of huge pages, the best of eight passes.
inline double measure_read_bandwidth() {
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  const auto device = device::make_cpu_device();
  const device::Memory memory = device->allocate(kBytes).value();
  device::WorkerPool workers(0);
  const auto* words = reinterpret_cast<const std::uint64_t*>(memory.address);
  volatile std::uint64_t sink = 0;
  double best = 0;
  for (int pass = 0; pass < 8; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    workers.parallel_for(kBytes / 8, 4096, [&](std::int64_t first, std::int64_t last, int) {
      sink = sum_words(words + first, last - first);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, kBytes / seconds.count());
  }
  device->free(memory);
  return best;
}

inline double read_bandwidth() {
  static const double measured = measure_read_bandwidth();
  return measured;
}

}  // namespace holdfast::ops::testing
