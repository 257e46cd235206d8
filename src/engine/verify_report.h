// The engine's verification of every versioned byte, as a value that lists every defect. A pure
// function of the registry; engine thread, between steps.
#pragma once

#include "holdfast/reload.h"
#include "storage/registry.h"

namespace holdfast::engine {

// Errors: kPoisoned, kFailedPrecondition before the first load.
Result<VerifyReport> make_verify_report(const storage::Registry& registry);

}  // namespace holdfast::engine
