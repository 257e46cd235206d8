// Tokens of two runs, compared. Pure functions over values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/engine.h"

namespace holdfast::drill {

using Tokens = std::vector<Token>;

// Where two runs first differ, for people; empty when they do not.
std::string token_difference(const std::vector<Tokens>& earlier, const std::vector<Tokens>& later);
std::string logprob_difference(const std::vector<Tokens>& earlier,
                               const std::vector<Tokens>& later);
// The first token that does not carry `epoch`; empty when all do.
std::string epoch_difference(const std::vector<Tokens>& run, std::uint64_t epoch);

}  // namespace holdfast::drill
