// One simulation: a random small model served by an engine on a device with faults, a random
// schedule of requests, reloads, cancels and faults, and after every event the invariants of
// DESIGN section 4. All of it follows from the seed. Test code; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "device/sim/sim_device.h"
#include "engine/engine_core.h"
#include "faults.h"
#include "faulty_source.h"
#include "models.h"
#include "reload_choice.h"
#include "reference.h"

namespace holdfast::sim {

struct SimulationOptions {
  std::uint64_t seed = 0;
  int events = 60;
  bool verbose = false;  // prints every event
  // Reloads stage and verify on their own thread. What the threads do when is then the machine's
  // choice and no longer the seed's; the invariants are the same. For the thread sanitizer.
  bool background = false;
  // A defect that the engine is given (ReloadOptions::inject): the simulation must notice.
  std::string inject;
};

class Simulation {
 public:
  // Adds what happens to `table`, which must outlive the simulation.
  Simulation(const SimulationOptions& options, FaultTable& table);
  ~Simulation();

  // Errors: the first violation, with the event in whose course it was seen.
  Status run();

 private:
  struct Version {
    WeightsSpec weights;
    std::string directory;
    bool written = false;
  };
  // What the engine must be.
  struct Expected {
    std::size_t version = 0;
    std::uint64_t epoch = 1;
    std::string label = {};
    bool poisoned = false;
    std::vector<FaultKind> poisoned_by = {};
  };
  struct OpenReload {
    ReloadChoice choice = {};
    Expected before = {};
    std::vector<FaultKind> fired = {};   // of the device, while it staged
    std::vector<FaultKind> causes = {};  // why it may fail
    bool fault_noted = false;            // the choice's fault is among the causes
    bool device_struck = false;          // a device fault or a stray write
    bool committed = false;
    std::uint64_t commit_serial = 0;
  };
  struct Tracked {
    RequestRecord record = {};
    std::uint64_t told_in = 0;      // the call in which a callback saw its prompt last
    std::uint64_t begun_in = 0;     // and the one in which it saw position 0 last
    std::uint64_t last_commit = 0;  // under which something was told of it last
    std::uint64_t keys_commit = 0;  // under which it got keys and values last
    bool must_abort = false, may_abort = false;
    bool must_restart = false, may_restart = false;
    std::string problem = {};  // seen in a callback
  };
  using Fired = std::vector<FaultKind>;
  enum class Phase : std::uint8_t { kStaging, kCommit, kStep };

  // simulation.cc: the life of a seed, and the events that touch no reload.
  Status open();
  Status open_under_faults();
  engine::EngineParts make_parts(std::unique_ptr<device::Device> device);
  Status event();
  Status reload_event();
  Status drain();
  Status submit();
  Status submit_invalid();
  Status cancel_request();
  Status cancel_all();
  Status change_admission();
  Status pressure();
  Status step(bool nested);
  Status take_events(const std::vector<Event>& events);
  Status resolve_keys();
  void on_keys(RequestId request, std::int64_t positions);
  void listen(Request& request, Tracked& tracked);
  std::vector<std::int32_t> draw_prompt();
  Request draw_request();
  std::size_t open_requests() const;

  // reload_events.cc: what a reload goes through, and what that means for the engine.
  Status begin_reload(bool may_fail);
  Status commit_reload();
  Status finish_reload(bool may_fail);
  Status abort_reload();
  Status stray_write();
  Status begin_while_open();
  Status plan_only();
  Status verify();
  void on_source_read(std::uint64_t read);
  void arm(Phase phase);
  Fired take_fired();
  void disarm();
  // Follows the engine from where it was seen last and tells whether it went where it may.
  Status observe(Fired fired);
  void note_fault_of_choice();
  Status on_staged(ReloadPhase now);
  Status check_report() const;
  Status on_committed();
  Status apply_policy(InFlight policy);
  bool drains_on() const;
  Status on_failed(ReloadPhase before);
  void end_computed_under(std::uint64_t commit_serial);
  void note(const Fired& kinds, Outcome outcome);

  // push_events.cc
  bool may_push(const ReloadChoice& choice) const;
  Status push_reload(bool may_fail);
  Status push_tensor(std::uint64_t id, reload::Source& source, std::size_t index);
  Status between_pushes(std::uint64_t id, const reload::SourceTensor& pushed);

  // reload_choice.cc: what to reload, from where, how, and what goes wrong with it.
  ReloadChoice draw_reload(bool may_fail);
  FaultKind draw_reload_fault();  // kNone: none
  void draw_strategy(ReloadOptions& options);
  void draw_weights(bool may_fail, ReloadChoice& choice);
  std::vector<WeightsPart> draw_scope(ReloadScope& scope);
  void draw_bad_scope(FaultKind kind, ReloadScope& scope);
  std::size_t add_version(const WeightsSpec& weights);
  std::size_t compose(std::size_t source, const std::vector<WeightsPart>& parts);
  Result<std::string> directory_of(std::size_t version);
  std::string prepare_directory(const ReloadChoice& choice);

  // invariants.cc
  Status check(const std::string& after);
  Status check_slots();
  Status check_leaks();
  Status check_census();
  Status check_requests();

  Error violation(const std::string& what) const;
  void log(const std::string& line) const;
  std::uint64_t below(std::uint64_t bound) { return rng_.next_below(bound); }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

  SimulationOptions options_;
  FaultTable& table_;
  base::Rng rng_;
  TempDirectory temp_;
  ModelShape shape_;
  EngineOptions engine_options_;
  std::vector<Version> versions_;
  std::size_t zero_version_ = 0;  // 0: not made yet
  base::ManualClock clock_;
  std::unique_ptr<Reference> reference_;

  SourceHooks hooks_;
  std::optional<SourceFault> source_fault_;
  bool source_fired_ = false;
  Status nested_violation_;
  int nested_steps_ = 0;

  std::unique_ptr<engine::EngineCore> core_;
  device::SimDevice* device_ = nullptr;  // the core's
  std::map<device::Fault, std::uint64_t> fired_before_;
  Expected expected_;
  std::optional<OpenReload> open_;
  ReloadPhase seen_ = ReloadPhase::kNone;
  bool stray_pending_ = false;
  std::uint64_t commit_serial_ = 1;
  std::uint64_t call_serial_ = 0;  // of calls that may run or commit something
  std::vector<std::unique_ptr<Tracked>> requests_;
  std::vector<std::uintptr_t> addresses_;
  std::size_t live_bytes_ = 0, descriptors_ = 0, threads_ = 0;
  int event_index_ = 0;
  std::string event_name_;
};

}  // namespace holdfast::sim
