// The events of a simulation that concern a reload, and what they may make of the engine.
#include <algorithm>
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

// ------------------------------------------------------------------------------ events

Status Simulation::begin_reload(bool may_fail) {
  event_name_ = "begin reload";
  ReloadChoice choice = draw_reload(may_fail);
  log(fmt::format("begin a reload to version {}: {}", choice.version, choice.text));
  source_fault_ = choice.source_fault;
  source_fired_ = false;
  disarm();
  const bool quiet = choice.fault == FaultKind::kNone;
  if (may_fail && quiet && one_in(3)) arm(Phase::kStaging);
  open_ = OpenReload{.choice = choice, .before = expected_};
  seen_ = ReloadPhase::kStaging;
  nested_steps_ = 0;
  ++table_.reloads;
  if (may_push(choice) && !one_in(4)) return push_reload(may_fail);
  const Status begun = core_->begin_reload(choice.directory, choice.options);
  if (!begun.ok()) return violation("begin_reload: " + begun.error().to_string());
  HF_TRY(nested_violation_);
  HF_TRY(observe(take_fired()));
  if (!options_.background || one_in(2)) return {};
  while (core_->reload_phase() == ReloadPhase::kStaging) HF_TRY(step(true));
  return observe(take_fired());
}

// The engine serves on while a reload is staged; a stream is read in the quiet moment.
void Simulation::on_source_read(std::uint64_t) {
  if (options_.background || core_->reload_phase() != ReloadPhase::kStaging) return;
  if (!nested_violation_.ok() || nested_steps_ >= kMaxNestedSteps || !one_in(6)) return;
  ++nested_steps_;
  nested_violation_ = [this]() -> Status {
    if (one_in(4)) HF_TRY(submit());
    if (one_in(8)) HF_TRY(begin_while_open());
    HF_TRY(step(true));
    return check("step while staging");
  }();
}

// One reload at a time: the second is refused and disturbs nothing.
Status Simulation::begin_while_open() {
  const Status begun = core_->begin_reload(versions_[0].directory, {});
  if (begun.ok() || begun.error().code() != ErrorCode::kFailedPrecondition) {
    return violation("a second reload began while one was open");
  }
  return {};
}

Status Simulation::commit_reload() {
  event_name_ = "commit";
  if (one_in(3)) arm(Phase::kCommit);
  log("commit");
  ++call_serial_;
  const Status committed = core_->commit_reload();
  const Fired fired = take_fired();
  disarm();
  if (!committed.ok() && drains_on()) return observe(fired);
  if (committed.ok() == (core_->reload_phase() == ReloadPhase::kFailed) && !options_.background) {
    return violation("commit_reload and the phase say different things");
  }
  return observe(fired);
}

Status Simulation::finish_reload(bool may_fail) {
  event_name_ = "finish reload";
  const bool staging = seen_ == ReloadPhase::kStaging;
  if (may_fail && !staging && one_in(3)) arm(Phase::kCommit);
  ++call_serial_;
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
  // A thread may have ended it, or made it fail, in the meantime.
  if (!aborted.ok() && options_.background) return observe(take_fired());
  if (!aborted.ok()) return violation("abort: " + aborted.error().to_string());
  ++table_.at(FaultKind::kAbortWhenReady, Outcome::kFired);
  open_->causes.push_back(FaultKind::kAbortWhenReady);
  return observe(take_fired());
}

// The open reload is ready, and has to wait for requests that run.
bool Simulation::drains_on() const {
  return open_ && open_->choice.options.in_flight == InFlight::kDrain &&
         core_->reload_phase() == ReloadPhase::kReady && !core_->poisoned() &&
         core_->stats().running + core_->stats().waiting > 0;
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
  open_->device_struck = true;
  return {};
}

// A plan alone changes nothing, and says what a reload would say.
Status Simulation::plan_only() {
  event_name_ = "plan";
  const ReloadChoice choice = draw_reload(false);
  // An open reload may still have to read from a source with a fault.
  const auto fault = std::exchange(source_fault_, std::nullopt);
  const auto plan = core_->plan_reload(choice.directory, choice.options);
  source_fault_ = fault;
  const bool refused = choice.part && expected_.poisoned;
  if (plan.ok() == refused) {
    return violation(plan.ok() ? "a plan for part of a poisoned engine"
                               : "no plan: " + plan.error().to_string());
  }
  return {};
}

// On demand: every versioned byte against the commit's digests.
Status Simulation::verify() {
  event_name_ = "verify";
  const auto report = core_->verify();
  if (expected_.poisoned) {
    if (report.ok() && report->defects.empty()) return violation("a poisoned engine verifies");
    return {};
  }
  if (!report.ok()) return violation("verify: " + report.error().to_string());
  if (report->defects.empty() == stray_pending_) {
    return violation(stray_pending_ ? "verify does not see a stray write"
                                    : "verify: " + report->defects.front());
  }
  return {};
}

// ------------------------------------------------------------------------------ what came of it

// The fault of the choice, once it has happened.
void Simulation::note_fault_of_choice() {
  const FaultKind fault = open_->choice.fault;
  if (open_->fault_noted || fault == FaultKind::kNone) return;
  const bool of_source = open_->choice.source_fault.has_value();
  if (of_source && !source_fired_) return;
  open_->fault_noted = true;
  open_->causes.push_back(fault);
  ++table_.at(fault, Outcome::kFired);
}

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
  note_fault_of_choice();
  if (before == ReloadPhase::kStaging) {
    HF_TRY(on_staged(now));
    if (!open_) return {};
  } else {
    open_->causes.insert(open_->causes.end(), fired.begin(), fired.end());
    open_->device_struck |= !fired.empty();
  }
  const bool was_committed = open_->committed;
  if (now == ReloadPhase::kVerifying || now == ReloadPhase::kDone) {
    if (!was_committed) HF_TRY(on_committed());
    if (now != ReloadPhase::kDone) return {};
    if (stray_pending_) return violation("a stray write was verified as good");
    HF_TRY(check_report());
    open_.reset();
    return {};
  }
  if (now != ReloadPhase::kFailed) return {};
  if (!was_committed && core_->runtime().registry().next_epoch().value > commit_serial_ + 1) {
    // Committed and undone within one call, or poisoned after the commit.
    HF_TRY(on_committed());
  }
  return on_failed(before);
}

// Staging is over, and why it may have failed is known.
Status Simulation::on_staged(ReloadPhase now) {
  const bool touched = device_->calls(Fault::kAllocationFails) > 0;
  disarm();
  std::vector<FaultKind>& causes = open_->causes;
  // With a thread of its own a device fault may have hit a step instead.
  const bool struck = !open_->fired.empty() && !options_.background;
  causes.insert(causes.end(), open_->fired.begin(), open_->fired.end());
  open_->device_struck |= !open_->fired.empty();
  if (now != ReloadPhase::kFailed) {
    const bool harmless = open_->choice.fault == FaultKind::kZeroTensor;
    if (struck || (open_->fault_noted && !harmless)) {
      return violation("staged in spite of" + joined(causes));
    }
    return {};
  }
  // With a thread of its own a reload may have been staged, committed and lost in one step.
  if (touched || core_->poisoned() != open_->before.poisoned) return {};
  log("refused: " + core_->last_reload()->error);
  if (causes.empty()) return violation("refused: " + core_->last_reload()->error);
  note(causes, Outcome::kRefused);
  open_.reset();
  return {};
}

Status Simulation::on_committed() {
  const ReloadChoice& choice = open_->choice;
  if (open_->fault_noted && choice.fault != FaultKind::kZeroTensor) {
    return violation("committed in spite of" + joined(open_->causes));
  }
  ++table_.commits;
  open_->committed = true;
  note(open_->causes, Outcome::kCommitted);
  if (expected_.poisoned) note(expected_.poisoned_by, Outcome::kRecovered);
  open_->commit_serial = ++commit_serial_;
  expected_ = {.version = choice.version,
               .epoch = commit_serial_,  // never the same twice, roll-backs or not
               .label = choice.options.version};
  const bool stuck = choice.options.in_flight == InFlight::kDrain && open_->before.poisoned;
  return apply_policy(stuck ? InFlight::kAbort : choice.options.in_flight);
}

// What this commit has done to those that had begun before the call in which it happened.
Status Simulation::apply_policy(InFlight policy) {
  for (const auto& tracked : requests_) {
    RequestRecord& record = tracked->record;
    if (record.reason) continue;
    const bool begun = record.had_keys_before(call_serial_);
    const bool begins_anew = tracked->begun_in == call_serial_;
    switch (policy) {
      case InFlight::kContinue:
      case InFlight::kRecompute: break;
      case InFlight::kRestart:
        tracked->may_restart |= begun;
        tracked->must_restart |= !record.generated.empty();
        if (!begins_anew) record.prompt.clear();
        record.restart(call_serial_);
        break;
      case InFlight::kAbort:
        // One that had begun may not have come to keys and values yet.
        tracked->may_abort = true;
        tracked->must_abort |= begun;
        break;
      case InFlight::kDrain:
        if (!begun || record.cancelled || tracked->may_abort) break;
        return violation(fmt::format("request {} was in flight when a reload that drains committed",
                                     record.id.value));
    }
  }
  return {};
}

// I12: what it cost is within what was declared. I1: nothing moved.
Status Simulation::check_report() const {
  const ReloadReport report = *core_->last_reload();
  const ReloadChoice& choice = open_->choice;
  if (report.state != "committed") return violation("done, and its state is " + report.state);
  if (report.slots_moved != 0) return violation("the report says that slots moved");
  if (report.measured_peak_bytes > report.declared_peak_bytes ||
      report.measured_host_peak_bytes > report.declared_host_peak_bytes) {
    return violation(fmt::format("peak of {} bytes on the device and {} on the host, declared {} "
                                 "and {}",
                                 report.measured_peak_bytes, report.measured_host_peak_bytes,
                                 report.declared_peak_bytes, report.declared_host_peak_bytes));
  }
  const bool same = choice.version == open_->before.version && !open_->before.poisoned;
  if (same && report.slots_changed != 0) {
    return violation("the same weights changed slots");
  }
  const bool zeroed = choice.fault == FaultKind::kZeroTensor && !open_->before.poisoned &&
                      !versions_[open_->before.version].weights.has_zero_tensor;
  if (zeroed && report.warnings.empty()) return violation("an all-zero tensor without a warning");
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
  const bool newly = poisoned && !open.before.poisoned;
  const bool staging = before == ReloadPhase::kStaging && !options_.background;
  if (newly && staging) return violation("staging poisoned the engine");
  const bool undoes = !open.choice.streams() || open.choice.options.undo_image;
  if (newly && undoes && !open.device_struck) {
    return violation("a source poisoned an engine that could undo: " + error);
  }
  note(open.causes, newly ? Outcome::kPoisoned : Outcome::kRolledBack);
  expected_ = open.before;
  if (newly) {
    expected_.poisoned = true;
    expected_.poisoned_by = open.causes;
  }
  if (poisoned && open.committed && core_->epoch() == open.commit_serial) {
    // It was committed, and what was wrong with it could not be undone.
    expected_.epoch = core_->epoch();
    expected_.label = open.choice.options.version;
    expected_.version = open.choice.version;
  }
  if (open.committed) end_computed_under(open.commit_serial);
  return {};
}

// What was computed under weights that are gone must end.
void Simulation::end_computed_under(std::uint64_t commit_serial) {
  for (const auto& tracked : requests_) {
    RequestRecord& record = tracked->record;
    if (record.reason) continue;
    tracked->may_abort |= tracked->keys_commit == commit_serial;
    tracked->must_abort |= tracked->last_commit == commit_serial;
  }
}

}  // namespace holdfast::sim
