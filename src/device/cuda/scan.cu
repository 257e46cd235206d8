// Kernels over whole arenas. Each is bound by memory: 16-byte loads, several in flight.
#include "device/cuda/scan.h"
#include "device/cuda/xxh3.h"

namespace holdfast::device::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLeavesPerBlock = kThreads / kXxh3Lanes;

__device__ Xxh3Pair load_pair(const std::byte* from) {
  const ulonglong2 words = __ldcs(reinterpret_cast<const ulonglong2*>(from));
  return {words.x, words.y};
}

// From any address.
__device__ Xxh3Pair load_bytes(const std::byte* from) {
  Xxh3Pair pair;
  for (int i = 0; i < 8; ++i) {
    pair.a |= std::uint64_t{static_cast<std::uint8_t>(from[i])} << (8 * i);
    pair.b |= std::uint64_t{static_cast<std::uint8_t>(from[i + 8])} << (8 * i);
  }
  return pair;
}

// The stripes but the last one, which may overlap them. `secret` holds the words that the lane
// needs, from word 2 * lane on.
template <bool kAligned>
__device__ Xxh3Pair all_stripes(const LeafJob& job, int lane, const std::uint64_t* secret) {
  Xxh3Pair acc = xxh3_start(lane);
  const std::byte* at = job.address + 16 * lane;
  std::uint64_t left = (job.bytes - 1) / kStripeBytes;
  const Xxh3Pair scramble = {secret[16], secret[17]};
  for (; left >= kStripesPerBlock; left -= kStripesPerBlock) {
    Xxh3Pair data[kStripesPerBlock];
#pragma unroll
    for (int i = 0; i < kStripesPerBlock; ++i) {
      data[i] = kAligned ? load_pair(at + i * kStripeBytes) : load_bytes(at + i * kStripeBytes);
    }
#pragma unroll
    for (int i = 0; i < kStripesPerBlock; ++i) {
      xxh3_accumulate(acc, data[i], {secret[i], secret[i + 1]});
    }
    xxh3_scramble(acc, scramble);
    at += kStripesPerBlock * kStripeBytes;
  }
#pragma unroll
  for (int i = 0; i < kStripesPerBlock; ++i) {
    if (i < left) {
      const std::byte* const from = at + i * kStripeBytes;
      xxh3_accumulate(acc, kAligned ? load_pair(from) : load_bytes(from),
                      {secret[i], secret[i + 1]});
    }
  }
  return acc;
}

__global__ void __launch_bounds__(kThreads) digest_leaves_kernel(const LeafJob* jobs,
                                                                 LeafDigest* results,
                                                                 std::size_t count) {
  const int lane = threadIdx.x % kXxh3Lanes;
  const std::size_t leaf =
      std::size_t{blockIdx.x} * kLeavesPerBlock + threadIdx.x / kXxh3Lanes;
  const bool used = leaf < count;
  const LeafJob job = used ? jobs[leaf] : LeafJob{};
  const Xxh3Secret secret;
  std::uint64_t words[18];
#pragma unroll
  for (int i = 0; i < 18; ++i) words[i] = secret.words[2 * lane + i];
  Xxh3Pair acc;
  if (used) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(job.address) % 16 == 0;
    acc = aligned ? all_stripes<true>(job, lane, words) : all_stripes<false>(job, lane, words);
    const std::byte* const last = job.address + job.bytes - kStripeBytes + 16 * lane;
    xxh3_accumulate(acc, load_bytes(last),
                    {secret.at(kLastStripeSecret + 16 * lane),
                     secret.at(kLastStripeSecret + 16 * lane + 8)});
  }
  std::uint64_t low = xxh3_term(acc, secret, kMergeLowSecret, lane);
  std::uint64_t high = xxh3_term(acc, secret, kMergeHighSecret, lane);
  for (int step = kXxh3Lanes / 2; step > 0; step /= 2) {
    low += __shfl_xor_sync(0xFFFFFFFF, low, step);
    high += __shfl_xor_sync(0xFFFFFFFF, high, step);
  }
  if (used && lane == 0) {
    results[leaf] = {xxh3_low(low, job.bytes), xxh3_high(high, job.bytes)};
  }
}

constexpr int kWordsInFlight = 8;

// blockIdx.y is the search; the blocks of a search stride over its words together.
__global__ void __launch_bounds__(kThreads) find_words_kernel(const WordSearch* searches,
                                                              std::uint64_t* firsts) {
  const WordSearch search = searches[blockIdx.y];
  std::uint64_t first = kNoWord;
  const std::uint64_t tile = std::uint64_t{kThreads} * kWordsInFlight;
  for (std::uint64_t base = blockIdx.x * tile; base < search.count && first == kNoWord;
       base += gridDim.x * tile) {
    std::uint64_t words[kWordsInFlight];
#pragma unroll
    for (int i = 0; i < kWordsInFlight; ++i) {
      const std::uint64_t at = base + std::uint64_t{kThreads} * i + threadIdx.x;
      words[i] = at < search.count ? __ldcs(search.words + at) : 0;
    }
#pragma unroll
    for (int i = 0; i < kWordsInFlight; ++i) {
      const std::uint64_t at = base + std::uint64_t{kThreads} * i + threadIdx.x;
      if (at < search.count && at < first && lane_hits(words[i], search.test) != 0) first = at;
    }
  }
  if (first != kNoWord) {
    atomicMin(reinterpret_cast<unsigned long long*>(firsts + blockIdx.y),
              static_cast<unsigned long long>(first));
  }
}

constexpr int kPairsInFlight = 4;

__global__ void __launch_bounds__(kThreads) swap_kernel(uint4* a, uint4* b, std::size_t count) {
  const std::size_t base = std::size_t{blockIdx.x} * kThreads * kPairsInFlight + threadIdx.x;
  uint4 from_a[kPairsInFlight];
  uint4 from_b[kPairsInFlight];
#pragma unroll
  for (int i = 0; i < kPairsInFlight; ++i) {
    const std::size_t at = base + std::size_t{kThreads} * i;
    if (at < count) {
      from_a[i] = __ldcs(a + at);
      from_b[i] = __ldcs(b + at);
    }
  }
#pragma unroll
  for (int i = 0; i < kPairsInFlight; ++i) {
    const std::size_t at = base + std::size_t{kThreads} * i;
    if (at < count) {
      __stcs(a + at, from_b[i]);
      __stcs(b + at, from_a[i]);
    }
  }
}

__global__ void fetch_kernel(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t at = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool words = (reinterpret_cast<std::uintptr_t>(to) |
                      reinterpret_cast<std::uintptr_t>(from) | bytes) % sizeof(std::uint32_t) == 0;
  if (!words) {
    if (at < bytes) to[at] = from[at];
  } else if (at < bytes / sizeof(std::uint32_t)) {
    reinterpret_cast<std::uint32_t*>(to)[at] =
        reinterpret_cast<const volatile std::uint32_t*>(from)[at];
  }
}

unsigned blocks_for(std::size_t count, std::size_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

}  // namespace

cudaError_t digest_leaves(const LeafJob* jobs, LeafDigest* results, std::size_t count,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  digest_leaves_kernel<<<blocks_for(count, kLeavesPerBlock), kThreads, 0, stream>>>(jobs, results,
                                                                                    count);
  return cudaGetLastError();
}

cudaError_t find_words(const WordSearch* searches, std::uint64_t* firsts, std::size_t count,
                       cudaStream_t stream) {
  constexpr unsigned kBlocksPerSearch = 1024;
  constexpr std::size_t kMaxSearches = 65535;  // of one launch
  for (std::size_t done = 0; done < count; done += kMaxSearches) {
    const auto part = static_cast<unsigned>(count - done < kMaxSearches ? count - done
                                                                        : kMaxSearches);
    find_words_kernel<<<dim3(kBlocksPerSearch, part), kThreads, 0, stream>>>(searches + done,
                                                                             firsts + done);
  }
  return cudaGetLastError();
}

cudaError_t swap_ranges(std::byte* a, std::byte* b, std::size_t bytes, cudaStream_t stream) {
  const std::size_t count = bytes / sizeof(uint4);
  if (count == 0) return cudaSuccess;
  swap_kernel<<<blocks_for(count, std::size_t{kThreads} * kPairsInFlight), kThreads, 0, stream>>>(
      reinterpret_cast<uint4*>(a), reinterpret_cast<uint4*>(b), count);
  return cudaGetLastError();
}

cudaError_t fetch_bytes(std::byte* to, const std::byte* from, std::size_t bytes,
                        cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  fetch_kernel<<<blocks_for(bytes, kThreads), kThreads, 0, stream>>>(to, from, bytes);
  return cudaGetLastError();
}

}  // namespace holdfast::device::cuda
