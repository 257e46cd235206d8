// How a warp finds the pairs of one expert among all of a step, in their order. Device code.
#pragma once

#include <cstdint>

namespace holdfast::experts::cuda {

// Gives `at` + how many of ids[0, pairs) are `expert`. With `to` it also writes their numbers from
// to[at] on, ascending. All 32 threads of the warp call it alike.
__device__ inline std::int32_t walk_pairs(const std::int32_t* ids, std::int64_t pairs, int expert,
                                          std::int32_t at, std::int32_t* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t base = 0; base < pairs; base += 32) {
    const std::int64_t pair = base + lane;
    const bool mine = pair < pairs && ids[pair] == expert;
    const std::uint32_t votes = __ballot_sync(0xFFFFFFFFu, mine);
    if (to != nullptr && mine) {
      to[at + __popc(votes & ((1u << lane) - 1))] = static_cast<std::int32_t>(pair);
    }
    at += __popc(votes);
  }
  return at;
}

}  // namespace holdfast::experts::cuda
