// The simulator as a test: fixed seeds, and fresh ones whose numbers are printed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "campaign.h"

namespace holdfast::sim {
namespace {

constexpr std::uint64_t kFixedSeeds = 60;
constexpr std::uint64_t kFreshSeeds = 8;
constexpr std::uint64_t kBackgroundSeeds = 12;

TEST(Simulation, OfFixedSeedsBreaksNoInvariant) {
  FaultTable table;
  for (std::uint64_t seed = 0; seed < kFixedSeeds; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    const Status status = simulate(options, table);
    EXPECT_TRUE(status.ok()) << describe_violation(options, status.error());
  }
  EXPECT_GT(table.commits, kFixedSeeds);
  EXPECT_GT(table.pushes, kFixedSeeds / 2);
  EXPECT_GT(table.tokens, 10 * kFixedSeeds);
}

TEST(Simulation, OfFreshSeedsBreaksNoInvariant) {
  FaultTable table;
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  for (std::uint64_t i = 0; i < kFreshSeeds; ++i) {
    SimulationOptions options;
    options.seed = base::mix64(static_cast<std::uint64_t>(now) + i) >> 20;
    std::printf("fresh seed %llu\n", static_cast<unsigned long long>(options.seed));
    const Status status = simulate(options, table);
    EXPECT_TRUE(status.ok()) << describe_violation(options, status.error());
  }
}

TEST(Simulation, WithReloadsOnAThreadOfTheirOwnBreaksNoInvariant) {
  FaultTable table;
  for (std::uint64_t seed = 0; seed < kBackgroundSeeds; ++seed) {
    SimulationOptions options;
    options.seed = seed;
    options.background = true;
    const Status status = simulate(options, table);
    EXPECT_TRUE(status.ok()) << describe_violation(options, status.error());
  }
  EXPECT_GT(table.commits, kBackgroundSeeds);
}

// A simulation that finds nothing in a broken engine would prove nothing about a good one.
TEST(Simulation, NoticesAnEngineWithADefect) {
  for (const char* defect : {"stale-derived", "drop-sink", "rebind-constants"}) {
    bool noticed = false;
    for (std::uint64_t seed = 0; seed < 20 && !noticed; ++seed) {
      FaultTable table;
      SimulationOptions options;
      options.seed = seed;
      options.inject = defect;
      noticed = !simulate(options, table).ok();
    }
    EXPECT_TRUE(noticed) << defect;
  }
}

TEST(Simulation, IsTheSameEveryTime) {
  FaultTable first, second;
  SimulationOptions options;
  options.seed = 5;
  ASSERT_TRUE(simulate(options, first).ok());
  ASSERT_TRUE(simulate(options, second).ok());
  EXPECT_EQ(first.to_text(), second.to_text());
}

}  // namespace
}  // namespace holdfast::sim
