// What every back end's Graph::launch asks first. Pure functions; engine thread.
#pragma once

#include <cstdint>
#include <string>

#include "device/memory.h"
#include "holdfast/result.h"

namespace holdfast::device {

// In O(1): that `home` has the layout generation that graph `label` was captured over, and that its
// replay gate is open. Errors: kFailedPrecondition, kPoisoned, naming the graph and why.
Status check_replay(const AddressHome& home, std::uint64_t captured_generation,
                    const std::string& label);

}  // namespace holdfast::device
