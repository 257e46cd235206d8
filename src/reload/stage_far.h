// Staging into a device whose memory the host cannot address: the plan's plain copies, by several
// threads through one Upload, or straight from where the source's bytes lie. Receipts and records
// are the same as elsewhere; values are looked at on the device once they have landed. Called by
// the staging thread; ends every thread that it starts.
#pragma once

#include <span>
#include <vector>

#include "reload/arrivals.h"
#include "reload/stager.h"

namespace holdfast::reload {

// What is sent at a time from a source's own memory; a cancel is noticed between two of them.
inline constexpr std::size_t kFarPieceBytes = std::size_t{64} << 20;
// As many copying threads as it takes to fill the link from ordinary memory.
inline constexpr std::size_t kFarThreads = 8;

// Whether a copy may be made by stage_far: its bytes arrive as they are stored, and nobody promised
// their digest, which would have to be taken in order.
bool is_plain_copy(const ReloadPlan& plan, const CopyStep& step);

// Carries out the plan's plain copies. Errors: those of the source and of the device; kCancelled,
// kDeadlineExceeded; kCorrupt naming tensor and element for the first value that is not sane.
Status stage_far(const StageJob& job, Arrivals& arrivals);

}  // namespace holdfast::reload
