// The rate at which this machine reads memory with all of a pool's workers: the number that kernels
// bound by reading weights are measured against. For benchmarks; one caller at a time.
#pragma once

#include <cstddef>
#include <span>

#include "device/cpu/worker_pool.h"

namespace holdfast::device {

// Bytes per second of the best of `rounds` passes over `buffer`, every byte loaded once per pass,
// each worker streaming one contiguous share. The buffer should be many times larger than the
// caches, touched, and on huge pages (CpuDevice::allocate of 2 MiB and more gives that).
double measure_read_bandwidth(WorkerPool& workers, std::span<const std::byte> buffer,
                              int rounds = 5);

}  // namespace holdfast::device
