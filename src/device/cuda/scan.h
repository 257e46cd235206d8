// What a GPU finds out about its own memory, so that no byte has to leave it: leaves of digests,
// elements that are hit by a test, and two ranges that change places. Enqueued on a stream; the
// tables are device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "device/lanes.h"

namespace holdfast::device::cuda {

// One leaf: at least kXxh3MinBytes.
struct LeafJob {
  const std::byte* address = nullptr;
  std::uint64_t bytes = 0;
};
struct LeafDigest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};
// results[i] is the plain digest of jobs[i].
cudaError_t digest_leaves(const LeafJob* jobs, LeafDigest* results, std::size_t count,
                          cudaStream_t stream);

// Whole 8-byte words that hold whole elements.
struct WordSearch {
  const std::uint64_t* words = nullptr;
  std::uint64_t count = 0;
  LaneTest test = {};
};
inline constexpr std::uint64_t kNoWord = ~std::uint64_t{0};
// firsts[i], which holds kNoWord, becomes the first word of searches[i] with a hit.
cudaError_t find_words(const WordSearch* searches, std::uint64_t* firsts, std::size_t count,
                       cudaStream_t stream);

// Swaps `bytes`, a multiple of 16, between two ranges aligned to 16 that do not overlap.
cudaError_t swap_ranges(std::byte* a, std::byte* b, std::size_t bytes, cudaStream_t stream);

// Copies a few bytes from page-locked host memory. Unlike a memcpy it does not queue behind an
// upload's at the copy engine.
cudaError_t fetch_bytes(std::byte* to, const std::byte* from, std::size_t bytes,
                        cudaStream_t stream);

}  // namespace holdfast::device::cuda
