// What stands behind Engine::graph_census. Pure; engine thread.
#pragma once

#include "engine/graph_set.h"
#include "holdfast/graph_census.h"
#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::api {

// Errors: kDevice.
Result<GraphCensusReport> make_graph_census(const storage::Registry& registry,
                                            const engine::GraphSet& graphs);

}  // namespace holdfast::api
