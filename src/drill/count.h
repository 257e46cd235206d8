// Count: a census reduced to what the drill compares, and the comparisons. Uses the public API
// alone, so that the drill is a check from outside. Values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "holdfast/drill.h"
#include "holdfast/engine.h"
#include "holdfast/result.h"

namespace holdfast::drill {

using Names = std::vector<std::string>;

struct Count {
  std::uint64_t epoch = 0;
  std::map<std::string, CensusEntry> slots;  // by name
  std::set<std::string> homes;               // slots in which at least one captured address lies
  Names homeless, rehomed;                   // as CensusReport
  std::uint64_t versioned_bytes() const;     // of the slots that have a digest
};

// Errors: kCorrupt when the census's JSON lacks the captured addresses.
Result<Count> reduce(const CensusReport& census);

// Slots whose address or size differs, or that only one of the two has.
Names moved(const Count& before, const Count& after);
// Slots with a digest whose value, as a graph captured at `before` reads it, is not the same: the
// digest differs or the slot moved.
Names changed(const Count& before, const Count& after);
// Slots with a digest in either whose digests differ: for two engines, whose addresses say nothing.
Names different_values(const Count& a, const Count& b);
// Slots with a digest that are not of the count's epoch.
Names stale_epochs(const Count& count);

struct Counts {
  const Count& first;            // after the load
  const Count& identity;         // after the reload of the same weights
  const Count& after_reload;     // after the live reload
  const Count& after_pressure;   // the last
};
// The figures over `names`, or over all slots when it is null.
DrillCount figures(const Counts& counts, const std::set<std::string>* names);

// "slots moved (3): a, b, c": at most kShownNames of them, and none behind kShownBytes.
inline constexpr std::size_t kShownNames = 6;
inline constexpr std::size_t kShownBytes = 240;
std::string listed(std::string_view what, const Names& names);

}  // namespace holdfast::drill
