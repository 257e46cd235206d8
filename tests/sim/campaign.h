// Many simulations: their seeds spread over child processes, their fault tables added up.
// Test code; one thread.
#pragma once

#include <cstdint>
#include <string>

#include "faults.h"
#include "holdfast/result.h"
#include "simulation.h"

namespace holdfast::sim {

struct CampaignOptions {
  std::uint64_t first_seed = 0;
  std::uint64_t seeds = 0;
  int jobs = 1;
  SimulationOptions simulation;  // its seed is ignored
};
struct CampaignResult {
  FaultTable table;
  std::uint64_t violations = 0;  // crashes are violations too
};

// One simulation in this process.
Status simulate(const SimulationOptions& options, FaultTable& table);
// The seed, what was wrong, and the command that replays it.
std::string describe_violation(const SimulationOptions& options, const Error& error);
// Prints each violation and each crash as it is found, at most a hundred of them.
CampaignResult run_campaign(const CampaignOptions& options);

}  // namespace holdfast::sim
