// verify_registry: on demand, whether the live bytes are what the last commit stamped. Engine
// thread, or any thread while no commit is applying.
#pragma once

#include <cstdint>

#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::reload {

struct VerifyReport {
  std::uint64_t slots = 0;          // weight, derived and constant slots, all equal to their stamps
  std::uint64_t bytes = 0;          // in them
  std::uint64_t padding_bytes = 0;  // between and after them, all zero
};

// Digests every versioned slot against its stamp, constants besides against their values, and
// checks that what lies between the slots is zero. Errors: kFailedPrecondition before the first
// load; kPoisoned when a commit failed half-way; kCorrupt naming the first few slots with both
// digests, or arena and byte.
Result<VerifyReport> verify_registry(const storage::Registry& registry);

}  // namespace holdfast::reload
