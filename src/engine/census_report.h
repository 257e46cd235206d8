// The engine's census: the storage's full count plus what the captured graphs make of it.
// Pure functions of the engine's state; engine thread, between steps.
#pragma once

#include "engine/graph_set.h"
#include "holdfast/engine.h"
#include "storage/census.h"

namespace holdfast::engine {

// Errors: kDevice.
Result<CensusReport> make_census_report(const storage::Registry& registry, const GraphSet& graphs);

}  // namespace holdfast::engine
