// The events of a simulation that concern a reload, and what they may make of the engine.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "simulation.h"

namespace holdfast::sim {
namespace {

using device::Fault;
using device::FaultPlan;

constexpr int kMaxNestedSteps = 5;

FaultKind kind_of(Fault fault) { return static_cast<FaultKind>(static_cast<int>(fault)); }
static_assert(static_cast<int>(FaultKind::kDeviceLost) == static_cast<int>(Fault::kDeviceLost));

constexpr FaultKind kReadFaults[] = {
    FaultKind::kShortRead,        FaultKind::kSourceDies,   FaultKind::kFileReplaced,
    FaultKind::kFileTruncated,    FaultKind::kNanInWeights, FaultKind::kInfinityInWeights,
    FaultKind::kStallUntilCancel, FaultKind::kE8M0Nan};
constexpr FaultKind kManifestFaults[] = {
    FaultKind::kTensorMissing, FaultKind::kTensorUnknown, FaultKind::kTensorTwice,
    FaultKind::kWrongDtype,    FaultKind::kWrongShape,    FaultKind::kWrongConfig};
constexpr FaultKind kDirectoryFaults[] = {FaultKind::kDirectoryMissing,
                                          FaultKind::kHeaderGarbage};

std::string joined(const std::vector<FaultKind>& kinds) {
  std::string text;
  for (const FaultKind kind : kinds) text += fmt::format(" {}", fault_kind_name(kind));
  return text;
}

const char* phase_name(ReloadPhase phase) {
  switch (phase) {
    case ReloadPhase::kNone: return "none";
    case ReloadPhase::kStaging: return "staging";
    case ReloadPhase::kReady: return "ready";
    case ReloadPhase::kVerifying: return "verifying";
    case ReloadPhase::kDone: return "done";
    case ReloadPhase::kFailed: return "failed";
  }
  return "unknown";
}

}  // namespace

// ------------------------------------------------------------------------------ faults

// Device faults that the next call may run into; where that cannot be foreseen, at its choice.
void Simulation::arm(Phase phase) {
  std::vector<FaultPlan> plans;
  const auto add = [&](Fault fault, std::uint64_t calls) {
    plans.push_back({.fault = fault, .at_call = below(calls), .at_byte = below(256)});
  };
  const std::uint64_t draw = below(6);
  if (phase == Phase::kStaging) {
    if (draw < 2) add(Fault::kAllocationFails, 3);
    if (draw == 2 || draw == 3) add(Fault::kLaunchFails, 30);
    if (draw == 4) add(Fault::kDeviceLost, 30);
    if (draw == 5) add(Fault::kProtectFails, 3);
  } else {
    if (draw < 2) add(Fault::kExchangeFails, 3);
    if (draw < 3) add(Fault::kCopyFails, 12);
    if (draw == 2 || draw == 3) add(Fault::kProtectFails, 5);
    if (draw == 4) add(Fault::kDeviceLost, 12);
    if (draw == 5) add(Fault::kLaunchFails, 2);
  }
  // A device that goes on failing: what was done cannot be undone either.
  const std::size_t planned = plans.size();
  if (phase != Phase::kStaging && one_in(3)) {
    for (std::size_t i = 0; i < planned; ++i) {
      for (std::uint64_t call = 1; call < 40; ++call) {
        FaultPlan next = plans[i];
        next.at_call += call;
        plans.push_back(next);
      }
    }
  }
  device_->arm(std::move(plans));
}

// What has fired since the last call.
Simulation::Fired Simulation::take_fired() {
  Fired kinds;
  const auto now = device_->fired();
  for (const auto& [fault, count] : now) {
    if (count > fired_before_[fault]) kinds.push_back(kind_of(fault));
  }
  fired_before_ = now;
  for (const FaultKind kind : kinds) ++table_.at(kind, Outcome::kFired);
  return kinds;
}

void Simulation::disarm() { device_->disarm(); }

void Simulation::note(const Fired& kinds, Outcome outcome) {
  for (const FaultKind kind : kinds) ++table_.at(kind, outcome);
}

FaultKind Simulation::draw_reload_fault() {
  const std::uint64_t draw = below(20);
  const auto pick = [this](std::span<const FaultKind> kinds) { return kinds[below(kinds.size())]; };
  if (draw < 6) {
    const FaultKind kind = pick(kReadFaults);
    // Its hook would wait for its own thread.
    const bool waits = kind == FaultKind::kStallUntilCancel && options_.background;
    return waits ? FaultKind::kSourceDies : kind;
  }
  if (draw < 9) return pick(kManifestFaults);
  if (draw == 9) return pick(kDirectoryFaults);
  if (draw == 10) return FaultKind::kZeroTensor;
  return FaultKind::kNone;
}

// ------------------------------------------------------------------------------ directories

Result<std::string> Simulation::directory_of(std::size_t version) {
  Version& wanted = versions_.at(version);
  if (!wanted.written) {
    HF_TRY(write_checkpoint(shape_, wanted.weights, wanted.directory));
    wanted.written = true;
  }
  return wanted.directory;
}

std::size_t Simulation::draw_version() { return below(3); }

// Like another version, with one tensor all zero.
std::size_t Simulation::zero_version() {
  if (versions_.size() == 3) {
    Version zero = versions_[below(3)];
    zero.weights.has_zero_tensor = true;
    zero.weights.all_zero = rng_.next();
    zero.directory = temp_ / "version-zero";
    zero.written = false;
    versions_.push_back(zero);
  }
  return 3;
}

// Where a reload reads from: a copy, when the fault changes files.
std::string Simulation::prepare_directory(FaultKind kind, std::size_t version) {
  if (kind == FaultKind::kDirectoryMissing) return temp_ / "no-such-directory";
  const std::string directory = directory_of(version).value();
  const std::string copy = temp_ / "copy";
  std::filesystem::remove_all(copy);
  std::filesystem::copy(directory, copy);
  if (kind == FaultKind::kHeaderGarbage) {
    for (const auto& entry : std::filesystem::directory_iterator(copy)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(below(60)));
      // A control character: never valid in the JSON header nor as a length.
      for (int i = 0; i < 8; ++i) file.put('\x01');
    }
  }
  return copy;
}

// ------------------------------------------------------------------------------ events

Status Simulation::begin_reload(bool may_fail) {
  event_name_ = "begin reload";
  const FaultKind fault = may_fail ? draw_reload_fault() : FaultKind::kNone;
  OpenReload open{.version = draw_version(),
                  .strategy = one_in(2) ? "copy" : "remap",
                  .before = expected_};
  if (fault == FaultKind::kZeroTensor) open.version = zero_version();
  source_fault_.reset();
  source_fired_ = false;
  std::string directory = directory_of(open.version).value();
  if (fault != FaultKind::kNone && fault != FaultKind::kZeroTensor) {
    directory = prepare_directory(fault, open.version);
    source_fault_ = SourceFault{.kind = fault, .at_read = below(12), .choice = rng_.next()};
  }
  open.directory_fault = fault;
  const std::string fault_text =
      fault == FaultKind::kNone ? "" : fmt::format(", fault {}", fault_kind_name(fault));
  log(fmt::format("begin a reload of version {} by {}{}", open.version, open.strategy,
                  fault_text));
  disarm();
  if (may_fail && fault == FaultKind::kNone && one_in(3)) arm(Phase::kStaging);
  ReloadOptions options;
  options.commit = open.strategy;
  options.commit_when_ready = may_fail && one_in(2);
  options.inject = options_.inject;
  open_ = open;
  seen_ = ReloadPhase::kStaging;
  nested_steps_ = 0;
  ++table_.reloads;
  const Status begun = core_->begin_reload(directory, options);
  if (!begun.ok()) return violation("begin_reload: " + begun.error().to_string());
  HF_TRY(nested_violation_);
  HF_TRY(observe(take_fired()));
  if (!options_.background || one_in(2)) return {};
  while (core_->reload_phase() == ReloadPhase::kStaging) HF_TRY(step(true));
  return observe(take_fired());
}

// The engine serves on while a reload is staged.
void Simulation::on_source_read(std::uint64_t) {
  if (options_.background) return;
  if (!nested_violation_.ok() || nested_steps_ >= kMaxNestedSteps || !one_in(6)) return;
  ++nested_steps_;
  nested_violation_ = [this]() -> Status {
    if (core_->reload_phase() != ReloadPhase::kStaging) {
      return violation(std::string("a source was read while ") +
                       phase_name(core_->reload_phase()));
    }
    if (one_in(4)) HF_TRY(submit());
    HF_TRY(step(true));
    return check("step while staging");
  }();
}

Status Simulation::commit_reload() {
  event_name_ = "commit";
  if (one_in(3)) arm(Phase::kCommit);
  log("commit");
  const Status committed = core_->commit_reload();
  const Fired fired = take_fired();
  disarm();
  if (committed.ok() == (core_->reload_phase() == ReloadPhase::kFailed) && !options_.background) {
    return violation("commit_reload and the phase say different things");
  }
  return observe(fired);
}

Status Simulation::finish_reload(bool may_fail) {
  event_name_ = "finish reload";
  const bool staging = seen_ == ReloadPhase::kStaging;
  if (may_fail && !staging && one_in(3)) arm(Phase::kCommit);
  const auto report = core_->finish_reload();
  const Fired fired = take_fired();
  disarm();
  log(fmt::format("finish: {}", report.ok() ? report->state : report.error().to_string()));
  if (report.ok() != (core_->reload_phase() == ReloadPhase::kDone)) {
    return violation("finish_reload and the phase say different things");
  }
  return observe(fired);
}

Status Simulation::abort_reload() {
  event_name_ = "abort reload";
  log("abort");
  const Status aborted = core_->abort_reload();
  if (!aborted.ok()) return violation("abort: " + aborted.error().to_string());
  ++table_.at(FaultKind::kAbortWhenReady, Outcome::kFired);
  open_->causes.push_back(FaultKind::kAbortWhenReady);
  return observe(take_fired());
}

// Somebody writes into what has just been committed, before it is verified: into a slot, or between
// two.
Status Simulation::stray_write() {
  event_name_ = "stray write";
  const auto arenas = core_->runtime().registry().versioned_arenas();
  device::Arena& arena = *arenas[below(arenas.size())];
  const device::Memory memory = arena.memory();
  const std::uint64_t at = below(one_in(2) ? arena.used_bytes() : memory.bytes);
  log(fmt::format("stray write into byte {} of arena {}", at, arena.name()));
  HF_TRY(arena.protect(device::Protection::kReadWrite));
  memory.address[at] ^= std::byte{static_cast<std::uint8_t>(1u << below(8))};
  HF_TRY(arena.protect(device::Protection::kReadOnly));
  stray_pending_ = true;
  ++table_.at(FaultKind::kStrayWrite, Outcome::kFired);
  open_->causes.push_back(FaultKind::kStrayWrite);
  return {};
}

// ------------------------------------------------------------------------------ what came of it

Status Simulation::observe(Fired fired) {
  if (!open_) return {};
  const ReloadPhase now = core_->reload_phase();
  if (options_.background) {
    // After the phase: what a thread ran into before it said so has been counted.
    for (const FaultKind kind : take_fired()) fired.push_back(kind);
  }
  const ReloadPhase before = std::exchange(seen_, now);
  if (before == ReloadPhase::kStaging) {
    open_->fired.insert(open_->fired.end(), fired.begin(), fired.end());
  }
  if (now == before) return {};
  log(fmt::format("{} -> {}", phase_name(before), phase_name(now)));
  if (before == ReloadPhase::kStaging) {
    HF_TRY(on_staged(now));
    if (!open_) return {};
  } else {
    open_->causes.insert(open_->causes.end(), fired.begin(), fired.end());
  }
  const bool was_committed = open_->committed;
  if (now == ReloadPhase::kVerifying || now == ReloadPhase::kDone) {
    if (!was_committed) HF_TRY(on_committed());
    if (now != ReloadPhase::kDone) return {};
    if (stray_pending_) return violation("a stray write was verified as good");
    open_.reset();
    return {};
  }
  if (now != ReloadPhase::kFailed) return {};
  if (!was_committed && core_->epoch() > open_->before.epoch) {
    // Committed and undone within one call, or poisoned after the commit.
    HF_TRY(on_committed());
  }
  return on_failed(before);
}

// Staging is over, and why it may have failed is known.
Status Simulation::on_staged(ReloadPhase now) {
  const bool touched = device_->calls(Fault::kAllocationFails) > 0;
  disarm();
  const FaultKind fault = open_->directory_fault;
  const bool of_directory =
      fault == FaultKind::kDirectoryMissing || fault == FaultKind::kHeaderGarbage;
  std::vector<FaultKind>& causes = open_->causes;
  if (of_directory || fault == FaultKind::kZeroTensor || source_fired_) {
    causes.push_back(fault);
    note(causes, Outcome::kFired);
  }
  const bool must_fail = !causes.empty() && fault != FaultKind::kZeroTensor;
  // With a thread of its own a device fault may have hit a step instead.
  const bool device_must_fail = !open_->fired.empty() && !options_.background;
  causes.insert(causes.end(), open_->fired.begin(), open_->fired.end());
  if (now != ReloadPhase::kFailed) {
    if (must_fail || device_must_fail) return violation("staged in spite of" + joined(causes));
    return {};
  }
  // With a thread of its own a reload may have been staged, committed and lost in one step.
  if (touched || core_->poisoned() != open_->before.poisoned) return {};
  log("refused: " + core_->last_reload()->error);
  note(causes, Outcome::kRefused);
  if (causes.empty()) return violation("refused: " + core_->last_reload()->error);
  open_.reset();
  return {};
}

Status Simulation::on_committed() {
  ++table_.commits;
  open_->committed = true;
  note(open_->causes, Outcome::kCommitted);
  if (expected_.poisoned) note(expected_.poisoned_by, Outcome::kRecovered);
  open_->commit_serial = ++commit_serial_;
  expected_ = {.version = open_->version, .epoch = open_->before.epoch + 1};
  for (const auto& tracked : requests_) {
    if (tracked->record.generated.empty()) tracked->record.prompt_version_is_known = false;
  }
  return {};
}

Status Simulation::on_failed(ReloadPhase before) {
  const OpenReload open = *open_;
  open_.reset();
  stray_pending_ = false;
  const std::string error = core_->last_reload()->error;
  log("failed: " + error);
  if (open.causes.empty()) return violation("the reload failed without a fault: " + error);
  if (error.empty()) return violation("the reload failed and does not say why");
  const bool poisoned = core_->poisoned();
  if (!poisoned && open.before.poisoned) {
    return violation("a failed reload healed a poisoned engine");
  }
  const bool staging = before == ReloadPhase::kStaging && !options_.background;
  if (staging && poisoned != open.before.poisoned) {
    return violation("staging poisoned the engine");
  }
  const bool newly = poisoned && !open.before.poisoned;
  note(open.causes, newly ? Outcome::kPoisoned : Outcome::kRolledBack);
  expected_ = open.before;
  if (newly) {
    expected_.poisoned = true;
    expected_.poisoned_by = open.causes;
  }
  if (poisoned && core_->epoch() == expected_.epoch + 1) {
    // It was committed, and what was wrong with it could not be undone.
    expected_.epoch = core_->epoch();
  }
  if (!open.committed) return {};
  // What was computed under the weights that are gone must end.
  for (const auto& tracked : requests_) {
    RequestRecord& record = tracked->record;
    if (record.reason) continue;
    const bool untold = record.prompt.empty() && record.generated.empty();
    tracked->may_abort = tracked->last_commit == open.commit_serial || untold;
    tracked->must_abort = tracked->last_commit == open.commit_serial && !poisoned;
    if (record.generated.empty()) record.prompt_version_is_known = false;
  }
  return {};
}

}  // namespace holdfast::sim
