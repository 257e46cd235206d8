// What a request must be to be accepted: every field against its range. Pure functions; any
// thread.
#pragma once

#include <cstddef>

#include "engine/results.h"
#include "engine/settings.h"
#include "holdfast/request.h"

namespace holdfast::engine {

inline constexpr std::size_t kMaxStopTokens = 256;
inline constexpr std::size_t kMaxCacheSaltBytes = 256;

// Errors, of both: kInvalidArgument naming field, value and range.
Status check_sampling(const Sampling& sampling, std::int64_t vocab_size);
Status check_request(const Request& request, const Settings& settings,
                     const Vocabulary& vocabulary);

}  // namespace holdfast::engine
