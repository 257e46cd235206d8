// The drill's report as JSON. A pure function; any thread.
#pragma once

#include <string>

#include "holdfast/drill.h"

namespace holdfast::drill {

// DrillReport::json; "replay_error" and "inject" are null when there was none, and so is
// what is said of a refused or a poisoned engine.
std::string report_json(const DrillReport& report, const DrillOptions& options);

}  // namespace holdfast::drill
