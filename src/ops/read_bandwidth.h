// What this machine's cores read from memory when they do nothing else: the yardstick of the
// benchmarks. Measured once per process; benchmarks only.
#pragma once

#include "device/cpu/cpu_device.h"
#include "device/cpu/read_bandwidth.h"

namespace holdfast::ops::testing {

// Bytes per second of all cores over 512 MiB of huge pages.
inline double read_bandwidth() {
  static const double measured = [] {
    constexpr std::size_t kBytes = std::size_t{512} << 20;
    const auto device = device::make_cpu_device();
    const device::Memory memory = device->allocate(kBytes).value();
    device::WorkerPool workers(0);
    const double rate = device::measure_read_bandwidth(workers, {memory.address, kBytes});
    device->free(memory);
    return rate;
  }();
  return measured;
}

}  // namespace holdfast::ops::testing
