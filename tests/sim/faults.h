// The named faults of a simulation and what became of each: the table that a campaign prints.
// Values; one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::sim {

enum class FaultKind : std::uint8_t {
  // Of the device.
  kAllocationFails,
  kCopyFails,
  kExchangeFails,
  kProtectFails,
  kLaunchFails,
  kDeviceLost,
  // Of the source, while it is read.
  kShortRead,
  kSourceDies,
  kFileReplaced,
  kFileTruncated,
  kStallUntilCancel,
  kStallUntilDeadline,
  kGarbageBytes,  // sane values, and not those that the digests promise
  kNanInWeights,
  kInfinityInWeights,
  kE8M0Nan,
  kZeroTensor,
  // Of what the source says that it holds.
  kTensorMissing,
  kTensorUnknown,
  kTensorTwice,
  kWrongDtype,
  kWrongShape,
  kWrongConfig,
  // Of the directory, before it is opened.
  kDirectoryMissing,
  kHeaderGarbage,
  kOtherConstants,  // a config that decides other constants, and nobody said to apply them
  // Of the request for a reload.
  kScopeCutsUnit,
  kScopeUnknown,
  kPartWhilePoisoned,
  // From outside of the reload.
  kAbortWhenReady,
  kStrayWrite,
  // Of whoever pushes.
  kPushCutShort,
  kPushRefused,  // bytes that came before, or belong nowhere
  kNone = 255,  // not in the table
};
inline constexpr std::size_t kFaultKinds = static_cast<std::size_t>(FaultKind::kPushRefused) + 1;
std::string_view fault_kind_name(FaultKind kind);  // "allocation-fails", ...

enum class Outcome : std::uint8_t {
  kFired,
  kRefused,     // before a byte of staging was allocated
  kRolledBack,  // staging dropped, or a commit undone
  kPoisoned,    // the engine says so and serves nothing
  kRecovered,   // a poisoned engine that a complete reload healed
  kCommitted,   // harmless: the reload went through
  kServedOn,    // a step failed and was tried again
};
inline constexpr std::size_t kOutcomes = static_cast<std::size_t>(Outcome::kServedOn) + 1;

// Plain numbers, so that it can lie in memory shared with the process that prints it.
struct FaultTable {
  std::array<std::array<std::uint64_t, kOutcomes>, kFaultKinds> counts = {};
  std::uint64_t seeds = 0, events = 0, steps = 0, tokens = 0, reloads = 0, commits = 0;
  std::uint64_t pushes = 0;  // of the reloads
  std::uint64_t preemptions = 0, prefix_hits = 0;

  std::uint64_t& at(FaultKind kind, Outcome outcome) {
    return counts[static_cast<std::size_t>(kind)][static_cast<std::size_t>(outcome)];
  }
  std::uint64_t at(FaultKind kind, Outcome outcome) const {
    return counts[static_cast<std::size_t>(kind)][static_cast<std::size_t>(outcome)];
  }
  void add(const FaultTable& other);
  // Fault x outcome, then one line of totals.
  std::string to_text() const;
};

}  // namespace holdfast::sim
