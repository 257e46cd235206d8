// read_tensor: the values of a loaded parameter, for whoever wants to see what is live. Engine
// thread, between two steps.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::engine {

// The first `most` values (all, if there are fewer) of the parameter of this name or alias, as
// float32 in row order. Errors: kNotFound with the nearest names; kUnsupported for a parameter that
// is kept only in derived slots, naming them; kPoisoned; kDevice.
Result<std::vector<float>> read_tensor(const storage::Registry& registry, const std::string& name,
                                       std::size_t most);

}  // namespace holdfast::engine
