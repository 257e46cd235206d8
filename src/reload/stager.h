// run_stage: carries out a plan's steps into staging: copies in the source's order, constants from
// the config, then derivations in dependency order. One staging thread; touches nothing live.
#pragma once

#include <atomic>

#include "device/device.h"
#include "holdfast/result.h"
#include "reload/plan.h"
#include "reload/receipts.h"
#include "reload/source.h"
#include "reload/staging.h"
#include "storage/registry.h"

namespace holdfast::reload {

// What is read from a source at a time; a cancel is noticed between two reads.
inline constexpr std::size_t kStageChunkBytes = std::size_t{1} << 20;

struct StageJob {
  const storage::Registry& registry;
  const ReloadPlan& plan;
  Source& source;
  device::Stream& stream;  // runs the derivations
  Staging& staging;
  ReceiptBook& receipts;
  const std::atomic<bool>* cancel = nullptr;  // may be null
};

// Errors: kMismatch when `source` is not the one that the plan was made from; kCorrupt naming
// tensor and element for a value that is not sane, naming derivation, slot and byte for an output
// that a derivation left unwritten; kCancelled; whatever the source and the derivations say.
Status run_stage(const StageJob& job);

}  // namespace holdfast::reload
