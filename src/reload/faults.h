// Faults that the drill injects: which slots an engine with that defect would leave as they are.
#pragma once

#include <string_view>
#include <vector>

#include "holdfast/result.h"
#include "reload/transaction.h"
#include "storage/registry.h"

namespace holdfast::reload {

// The arena that kRebindConstants gives new storage.
inline constexpr std::string_view kConstantsArena = "experts.constants";

// Slots that keep their live bytes under `kind`, through no entry in any account:
//   kStaleDerived   the first derived slot of layer 0 (of the model when layer 0 has none)
//   kSkipLayer      all weight and derived slots of the middle layer, by the prefix "layers.N."
//   kDropSink       all versioned slots whose name contains "sinks"
// Empty for the other kinds. Errors: kNotFound when this model has no such slot (for
// kRebindConstants: no such arena), so that a drill cannot pass by injecting nothing.
Result<std::vector<storage::SlotId>> stale_slots(const storage::Registry& registry,
                                                 InjectedFault::Kind kind);

}  // namespace holdfast::reload
