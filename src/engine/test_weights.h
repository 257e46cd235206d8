// All weights of an engine, for tests that compare two engines or one before and after.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/test_support.h"

namespace holdfast::engine {

// Every byte of the versioned arenas, padding too. Of a device that the host can address.
inline std::vector<std::byte> weights(EngineCore& core) {
  std::vector<std::byte> all;
  for (const device::Arena* arena : core.runtime().registry().versioned_arenas()) {
    const auto* begin = reinterpret_cast<const std::byte*>(arena->memory().address);
    all.insert(all.end(), begin, begin + arena->memory().bytes);
  }
  return all;
}

}  // namespace holdfast::engine
