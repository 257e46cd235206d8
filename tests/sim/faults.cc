#include "faults.h"

#include <fmt/format.h>

namespace holdfast::sim {
namespace {

constexpr std::array<std::string_view, kFaultKinds> kNames = {
    "allocation-fails",  "copy-fails",      "exchange-fails",   "protect-fails",
    "launch-fails",      "device-lost",     "short-read",       "source-dies",
    "file-replaced",     "file-truncated",  "stall-to-cancel",  "stall-to-deadline",
    "garbage-bytes",     "nan-in-weights",  "infinity",         "e8m0-nan",
    "zero-tensor",       "tensor-missing",  "tensor-unknown",   "tensor-twice",
    "wrong-dtype",       "wrong-shape",     "wrong-config",     "no-directory",
    "header-garbage",    "other-constants", "scope-cuts-unit",  "scope-unknown",
    "part-of-poisoned",  "abort-when-ready", "stray-write",     "push-cut-short",
    "push-refused"};
constexpr std::array<std::string_view, kOutcomes> kColumns = {
    "fired", "refused", "rolled back", "poisoned", "recovered", "committed", "served on"};

}  // namespace

std::string_view fault_kind_name(FaultKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

void FaultTable::add(const FaultTable& other) {
  for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
    for (std::size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      counts[kind][outcome] += other.counts[kind][outcome];
    }
  }
  seeds += other.seeds;
  events += other.events;
  steps += other.steps;
  tokens += other.tokens;
  reloads += other.reloads;
  pushes += other.pushes;
  commits += other.commits;
  preemptions += other.preemptions;
  prefix_hits += other.prefix_hits;
}

std::string FaultTable::to_text() const {
  std::string text = fmt::format("{:18}", "fault");
  for (const std::string_view column : kColumns) text += fmt::format(" {:>11}", column);
  for (std::size_t kind = 0; kind < kFaultKinds; ++kind) {
    text += fmt::format("\n{:18}", kNames[kind]);
    for (const std::uint64_t count : counts[kind]) text += fmt::format(" {:>11}", count);
  }
  return text + fmt::format("\n{} seeds, {} events, {} steps, {} tokens, {} reloads ({} "
                            "pushed), {} commits, "
                            "{} preemptions, {} prompt tokens from the cache\n",
                            seeds, events, steps, tokens, reloads, pushes, commits,
                            preemptions, prefix_hits);
}

}  // namespace holdfast::sim
