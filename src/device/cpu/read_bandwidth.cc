#include "device/cpu/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/clock.h"

namespace holdfast::device {
namespace {

// 64 bytes as one value: one load in the AVX-512 copy of the loop, two or four in the others.
using Line = std::uint64_t __attribute__((vector_size(64)));
constexpr std::size_t kUnroll = 8;

// The exclusive or of all lines; eight chains, so that no load waits for another.
[[gnu::always_inline]] inline std::uint64_t fold(const std::byte* from, std::size_t bytes) {
  Line sums[kUnroll] = {};
  for (std::size_t at = 0; at + sizeof(sums) <= bytes; at += sizeof(sums)) {
    for (std::size_t i = 0; i < kUnroll; ++i) {
      Line line;
      std::memcpy(&line, from + at + i * sizeof(Line), sizeof(Line));
      sums[i] ^= line;
    }
  }
  std::uint64_t result = 0;
  for (const Line& sum : sums) {
    for (std::size_t lane = 0; lane < sizeof(Line) / 8; ++lane) result ^= sum[lane];
  }
  return result;
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] std::uint64_t fold_avx512(const std::byte* from, std::size_t bytes) {
  return fold(from, bytes);
}
[[gnu::target("avx2")]] std::uint64_t fold_avx2(const std::byte* from, std::size_t bytes) {
  return fold(from, bytes);
}
#endif

std::uint64_t fold_portable(const std::byte* from, std::size_t bytes) { return fold(from, bytes); }

using Fold = std::uint64_t (*)(const std::byte*, std::size_t);
Fold choose_fold() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return &fold_avx512;
  if (__builtin_cpu_supports("avx2")) return &fold_avx2;
#endif
  return &fold_portable;
}

}  // namespace

double measure_read_bandwidth(WorkerPool& workers, std::span<const std::byte> buffer, int rounds) {
  const Fold fold_range = choose_fold();
  const base::SteadyClock clock;
  std::atomic<std::uint64_t> sink{0};
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::int64_t start = clock.now_ns();
    workers.parallel_for(std::ssize(buffer), std::int64_t{1} << 16,
                         [&](std::int64_t begin, std::int64_t end, int) {
                           sink ^= fold_range(buffer.data() + begin,
                                              static_cast<std::size_t>(end - begin));
                         });
    const std::int64_t elapsed = std::max<std::int64_t>(clock.now_ns() - start, 1);
    best = std::max(best, static_cast<double>(buffer.size()) * 1e9 / static_cast<double>(elapsed));
  }
  return best;
}

}  // namespace holdfast::device
