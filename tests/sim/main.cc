// holdfast_sim: one seed, or a campaign of many. A campaign's seeds run in child processes, so that
// a crash names its seed and does not end the campaign.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "campaign.h"

namespace {

constexpr const char* kUsage =
    "usage: holdfast_sim --seed S [--events N] [--verbose]     one simulation\n"
    "       holdfast_sim --seeds N [--first F] [--events N] [--jobs J] [--table]\n"
    "                    [--at-least COUNT]   fail unless each fault fired so often\n"
    "Both: [--background] [--inject DEFECT] (see SimulationOptions).\n"
    "Exits with 1 when an invariant was violated; each violation is printed with its seed and the\n"
    "command that replays it.\n";

struct Arguments {
  holdfast::sim::CampaignOptions campaign;
  bool single = false;
  bool table = false;
  std::uint64_t at_least = 0;  // how often each fault must have fired
  bool ok = true;
};

bool parse_number(const char* text, std::uint64_t& number) {
  char* end = nullptr;
  number = std::strtoull(text, &end, 10);
  return end != text && *end == '\0';
}

Arguments parse(int count, char** words) {
  Arguments arguments;
  holdfast::sim::CampaignOptions& campaign = arguments.campaign;
  for (int i = 1; i < count && arguments.ok; ++i) {
    const std::string word = words[i];
    std::uint64_t number = 0;
    const auto takes_number = [&] { return i + 1 < count && parse_number(words[++i], number); };
    if (word == "--verbose") {
      campaign.simulation.verbose = true;
    } else if (word == "--background") {
      campaign.simulation.background = true;
    } else if (word == "--table") {
      arguments.table = true;
    } else if (word == "--inject" && i + 1 < count) {
      campaign.simulation.inject = words[++i];
    } else if (word == "--at-least" && takes_number()) {
      arguments.at_least = number;
    } else if (word == "--seed" && takes_number()) {
      arguments.single = true;
      campaign.first_seed = number;
    } else if (word == "--first" && takes_number()) {
      campaign.first_seed = number;
    } else if (word == "--seeds" && takes_number()) {
      campaign.seeds = number;
    } else if (word == "--events" && takes_number()) {
      campaign.simulation.events = static_cast<int>(number);
    } else if (word == "--jobs" && takes_number()) {
      campaign.jobs = static_cast<int>(std::max<std::uint64_t>(number, 1));
    } else {
      arguments.ok = false;
    }
  }
  arguments.ok = arguments.ok && (arguments.single || campaign.seeds > 0);
  return arguments;
}

// Names the faults that fired less often than asked for; whether there are none.
bool reached_all(const holdfast::sim::FaultTable& table, std::uint64_t at_least) {
  bool all = true;
  for (std::size_t i = 0; i < holdfast::sim::kFaultKinds; ++i) {
    const auto kind = static_cast<holdfast::sim::FaultKind>(i);
    const std::uint64_t fired = table.at(kind, holdfast::sim::Outcome::kFired);
    if (fired >= at_least) continue;
    all = false;
    std::printf("fault %s fired %llu times, expected at least %llu\n",
                std::string(holdfast::sim::fault_kind_name(kind)).c_str(),
                static_cast<unsigned long long>(fired),
                static_cast<unsigned long long>(at_least));
  }
  return all;
}

int run_one(const Arguments& arguments) {
  holdfast::sim::FaultTable table;
  holdfast::sim::SimulationOptions options = arguments.campaign.simulation;
  options.seed = arguments.campaign.first_seed;
  const holdfast::Status status = holdfast::sim::simulate(options, table);
  if (arguments.table) std::printf("%s", table.to_text().c_str());
  if (status.ok()) {
    std::printf("seed %llu: no violation (%llu events, %llu tokens, %llu commits)\n",
                static_cast<unsigned long long>(options.seed),
                static_cast<unsigned long long>(table.events),
                static_cast<unsigned long long>(table.tokens),
                static_cast<unsigned long long>(table.commits));
    return 0;
  }
  std::printf("%s\n", holdfast::sim::describe_violation(options, status.error()).c_str());
  return 1;
}

}  // namespace

int main(int count, char** words) {
  const Arguments arguments = parse(count, words);
  if (!arguments.ok) {
    std::fprintf(stderr, "%s", kUsage);
    return 2;
  }
  if (arguments.single) return run_one(arguments);
  const auto start = std::chrono::steady_clock::now();
  const holdfast::sim::CampaignResult result = holdfast::sim::run_campaign(arguments.campaign);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (arguments.table) std::printf("%s", result.table.to_text().c_str());
  std::printf("%llu seeds from %llu: %llu violations, %.1f seeds/s\n",
              static_cast<unsigned long long>(arguments.campaign.seeds),
              static_cast<unsigned long long>(arguments.campaign.first_seed),
              static_cast<unsigned long long>(result.violations),
              static_cast<double>(result.table.seeds) / seconds.count());
  const bool reached = reached_all(result.table, arguments.at_least);
  return result.violations == 0 && reached ? 0 : 1;
}
