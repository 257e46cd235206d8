// The drill's report as JSON. A pure function; any thread.
#pragma once

#include <string>

#include "holdfast/drill.h"

namespace holdfast::drill {

// One object: the constants' figures at the top, all slots' under "slots", everything else by the
// names of DrillReport's fields; "verdict" is "GREEN" or "RED", "replay_error" null when there was
// none.
std::string report_json(const DrillReport& report, const DrillOptions& options);

}  // namespace holdfast::drill
