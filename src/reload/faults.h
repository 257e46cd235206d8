// Faults that the drill injects: which slots an engine with that defect would leave as they are.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "holdfast/result.h"
#include "reload/transaction.h"
#include "storage/registry.h"

namespace holdfast::reload {

// The arena that a fault gives new storage: "experts.constants" (kRebindConstants), "experts.sync"
// (kRebuiltWorkspace), "experts.scales" (kReregisteredScale); empty for the other kinds.
std::string_view rebound_arena(InjectedFault::Kind kind);

// Slots that keep their live bytes under `kind`, through no entry in any account:
//   kStaleDerived   the first derived slot of layer 0 (of the model when layer 0 has none)
//   kSkipLayer      all weight and derived slots of the middle layer, by the prefix "layers.N."
//   kDropSink       all versioned slots whose name contains "sinks"
//   kStaleSortIndex, kStalePermutation, kStaleAlpha
//                   all derived slots named "....sort_indices"; "....act_perm" or "....order";
//                   "....alpha", or where there are none "....weight_scale"
// Empty for the other kinds. Errors: kNotFound when this model has no such slot (for a kind that
// rebinds: no such arena; for kShuffleTwice and kNoShuffle: no reordered_slots), so that a drill
// cannot pass by injecting nothing.
Result<std::vector<storage::SlotId>> stale_slots(const storage::Registry& registry,
                                                 InjectedFault::Kind kind);

// The derivations whose one output kShuffleTwice or kNoShuffle reorders: those that say where they
// put their units, of the first layer that has any. Empty for the other kinds.
std::vector<const storage::Derivation*> reordered_by(const storage::Registry& registry,
                                                     InjectedFault::Kind kind);
// What such an engine would have in the slot instead of `bytes`. Asserts that `bytes` are whole
// units of the derivation's slices.
void misapply(const storage::Derivation& derivation, InjectedFault::Kind kind,
              std::span<std::byte> bytes);

}  // namespace holdfast::reload
