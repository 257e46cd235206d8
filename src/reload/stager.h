// run_stage: carries out a plan's steps into staging: what is preserved, copies in the source's
// order, constants, then derivations in dependency order. One staging thread; touches nothing live
// unless the staging is the live slots (CommitStrategy::kStream).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "holdfast/result.h"
#include "reload/guard.h"
#include "reload/plan.h"
#include "reload/receipts.h"
#include "reload/source.h"
#include "reload/staging.h"
#include "storage/registry.h"

namespace holdfast::reload {

// What is read from a source at a time; a cancel is noticed between two reads.
inline constexpr std::size_t kStageChunkBytes = std::size_t{1} << 20;

// What staging found out, besides the bytes.
struct StageLog {
  std::uint64_t peak_host_bytes = 0;
  std::vector<storage::ParameterId> zeros = {};  // Arrivals::suspicious_zeros
  bool wrote = false;                            // something in the staging was written
};

struct StageJob {
  const storage::Registry& registry;
  const ReloadPlan& plan;
  Source& source;
  device::Stream& stream;  // runs the derivations
  Staging& staging;
  ReceiptBook& receipts;
  const StageGuard& guard;
  StageLog& log;
};

// Errors: kMismatch when `source` is not the one that the plan was made from; kCorrupt naming
// tensor and element for a value that is not sane, naming derivation, slot and byte for an output
// that a derivation left unwritten, naming both digests for a tensor that is not the promised one,
// an alias that differs, a preserved slot that is not what its commit stamped; kCancelled,
// kDeadlineExceeded; whatever the source and the derivations say.
Status run_stage(const StageJob& job);
// Whether `source` lists what the plan was made from. Errors: kMismatch.
Status check_source(const storage::Registry& registry, const ReloadPlan& plan,
                    const Source& source);

// The parts of run_stage that need no source.
struct StageTarget {
  const storage::Registry& registry;
  const ReloadPlan& plan;
  Staging& staging;
  const StageGuard& guard;
};
// Errors: kCorrupt naming slot and both digests.
Status stage_preserved(const StageTarget& target);
Status stage_constants(const StageTarget& target);

}  // namespace holdfast::reload
