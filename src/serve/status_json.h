// What the status page is told: snapshots and censuses as JSON. Pure functions and values; any
// thread, except where said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "serve/host.h"

namespace holdfast::serve {

// Rates over the last seconds, from snapshots taken when somebody asks. Thread-safe.
class ThroughputWindow {
 public:
  struct Rates {
    double window_s = 0;
    double generated_tokens_per_s = 0, prompt_tokens_per_s = 0, steps_per_s = 0;
  };
  // `now_s` rises. Over what lies at least kLeast_s and, where there is one, at most kMost_s back;
  // empty: nobody has asked before.
  std::optional<Rates> sample(double now_s, const EngineStats& stats);

  static constexpr double kLeast_s = 0.5, kMost_s = 5;

 private:
  struct Sample {
    double now_s;
    std::uint64_t generated_tokens, prompt_tokens, steps;
  };
  std::mutex mutex_;
  std::deque<Sample> samples_;  // oldest first
};

// "serving", or the first of these that is so: "failed", "poisoned", "draining", "sleeping",
// "paused", "pausing".
std::string state_name(const HostSnapshot& snapshot);

struct StatusInput {
  const HostSnapshot& snapshot;
  std::string model;
  double uptime_s = 0;
  std::int64_t now_unix_ms = 0;
  std::size_t connections = 0;
  std::optional<ThroughputWindow::Rates> rates = {};
};
std::string status_json(const StatusInput& input);

// Slots and bytes by class, and how many captured addresses have no home or another.
std::string census_summary_json(const CensusReport& census);

}  // namespace holdfast::serve
