// The drill: load, capture, census, baseline, identity reload, live reload, pressure, census, and a
// comparison with a cold engine: GREEN, RED with the reasons, or NOT INJECTED. Blocks; its own
// engines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holdfast/result.h"

namespace holdfast {

struct DrillOptions {
  std::string from;                       // model directory A
  std::string to;                         // model directory B
  std::string inject;                     // "" or a fault's name, see drill_faults()
  std::string commit = "remap";           // "remap", "copy", "stream" or "auto"
  std::string label;                      // free text, copied into the report
  std::vector<std::string> prompts;       // empty: built-in ones
  std::int64_t max_tokens = 48;
  std::string device = "cpu";             // as in EngineOptions
  int threads = 0;
  std::string kernels = "fast";
  std::string experts = "auto";
  std::string expert_activations = "published";
  std::string quantize_experts = "";
  std::int64_t quantize_group_size = 128;
  std::function<void(const std::string& line)> progress;  // one line a stage
};

// A count over a set of slots, from the first census to the last.
struct DrillCount {
  std::uint64_t total = 0, stable = 0, moved = 0;  // slots; moved: at any census after the first
  // What a graph reads at the addresses that it captured: a slot that moved has not kept its value.
  bool values_preserved = false;             // by the reload of the same weights
  bool values_intact_post_pressure = false;  // by allocation pressure after the last reload
  // Slots in which at least one captured address lies; after: the fewest at any later census.
  std::uint64_t registered_at_first_load = 0, registered_after_reload = 0;
  std::vector<std::string> moved_keys;
};

struct DrillReport {
  std::string label;
  bool green = false;
  std::vector<std::string> reasons;  // why not GREEN, one line each
  std::string not_injected;          // why the fault had nothing to act on; empty: it had, or none
  DrillCount constants;              // the experts' constants
  DrillCount slots;                  // all slots
  bool tokens_match_identity = false;       // greedy tokens after reloading A over A
  bool tokens_match_pre_pressure = false;   // equal to a cold engine on B
  bool tokens_match_post_pressure = false;
  bool logprobs_match = false;              // bit for bit, in all comparisons
  bool versions_match = false;              // every token carries the epoch that made it
  std::uint64_t live_tokens_before = 0, live_tokens_after = 0;  // of the live reload
  std::string replay_error;
  std::string strategy;           // that the live reload took
  std::string refusal;            // why the live reload was not committed; empty: it was
  // Of a refused one: the old weights serve on, every slot where and what it was, and every token
  // and log probability as before, under the reload and after it.
  bool refused_cleanly = false;
  bool poisoned = false;          // it could not be undone
  bool emits_nothing = false;     // while it is poisoned
  // Of both: the same reload without the fault is committed, and equals a cold engine on B.
  bool recovered = false;
  double load_ms = 0, capture_ms = 0, stage_ms = 0, pause_us = 0, total_ms = 0;
  std::uint64_t weights_bytes = 0, peak_bytes = 0, declared_peak_bytes = 0;
  // All of this as one object: field names as above, the constants' figures at the top, those of
  // all slots under "slots"; "verdict" as below; what a fault that never acted left
  // uncompared is null.
  std::string json;

  // "GREEN", "RED", or "NOT INJECTED": neither has been shown, since the fault never acted.
  const char* verdict() const {
    if (green) return "GREEN";
    return not_injected.empty() ? "RED" : "NOT INJECTED";
  }
};

// Defects that engines in the field have, and faults of device and source. A defect is injected
// into every reload of the drill, a fault into the live one alone.
std::vector<std::string> drill_faults();
// Errors: what keeps the drill from running (a bad directory, an unknown fault, fewer than 12
// max_tokens). A RED drill is a value.
Result<DrillReport> run_drill(const DrillOptions& options);

}  // namespace holdfast
