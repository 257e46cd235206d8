// EngineCore: the step loop over a runtime, a request queue and a reloader: everything of
// holdfast::Engine except text. One thread calls it (the engine thread), except reload_phase(),
// reload_status(), push() and end_push().
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/reloader.h"
#include "engine/request_queue.h"
#include "engine/runtime.h"
#include "holdfast/engine.h"

namespace holdfast::engine {

// What an engine stands on; tests and the simulator give it their own.
struct EngineParts {
  std::unique_ptr<device::Device> device;  // null: the CPU
  const base::Clock* clock = nullptr;      // null: the machine's; must outlive the engine
  ReloaderParts reloader;
  RequestQueue::KeysObserver on_keys;
};

class EngineCore {
 public:
  // As Engine::open.
  static Result<std::unique_ptr<EngineCore>> open(const EngineOptions& options,
                                                  EngineParts parts);
  // `device` null: the CPU.
  static Result<std::unique_ptr<EngineCore>> open(const EngineOptions& options,
                                                  std::unique_ptr<device::Device> device = nullptr);

  // As the functions of these names in holdfast/engine.h.
  Result<RequestId> submit(Request request);
  Result<std::vector<Event>> step();
  Result<std::vector<Event>> between_steps();
  bool idle() const { return requests_->idle(); }
  Status cancel(RequestId request) { return requests_->cancel(request); }
  std::size_t cancel_all(bool waiting) { return requests_->cancel_all(waiting); }
  void hold_admission(bool held) { held_ = held; }
  void reset_prefix_cache() { requests_->forget_prefixes(); }
  void recompute_running() { requests_->apply(InFlight::kRecompute); }
  EngineStats stats() const;

  Status begin_reload(const std::string& directory, const ReloadOptions& options);
  Status begin_reload(std::vector<MemoryTensor> tensors, const ReloadOptions& options);
  ReloadPhase reload_phase() const { return reloader_->phase(); }
  Status commit_reload();
  Result<ReloadReport> finish_reload();
  Status abort_reload() { return reloader_->abort(); }
  Result<std::uint64_t> begin_push(const std::vector<TensorInfo>& tensors,
                                   const ReloadOptions& options);
  Status push(std::uint64_t reload_id, const std::string& tensor, std::uint64_t offset_bytes,
              std::span<const std::byte> bytes, const std::string& dtype = {}) {
    return reloader_->push(reload_id, tensor, offset_bytes, bytes, dtype);
  }
  Status end_push(std::uint64_t reload_id, const std::string& version = {}) {
    return reloader_->end_push(reload_id, version);
  }
  ReloadStatus reload_status() const { return reloader_->status(); }
  std::optional<ReloadReport> last_reload() const { return reloader_->last_report(); }

  Result<PlanReport> plan_reload(const std::string& directory, const ReloadOptions& options) const;
  Result<VerifyReport> verify() const;
  std::string version() const { return runtime_->registry().label(); }

  std::uint64_t epoch() const { return runtime_->registry().epoch().value; }
  bool poisoned() const { return !reloader_->poisoned().empty(); }
  Result<CensusReport> census() const;
  Status allocation_pressure(std::int64_t blocks, std::int64_t bytes);
  Runtime& runtime() { return *runtime_; }
  const Runtime& runtime() const { return *runtime_; }

 private:
  EngineCore() = default;
  Status reach_boundary();
  void settle_reload();
  Status commit_ready();
  Status check_not_poisoned() const;

  base::SteadyClock steady_clock_;  // unless the parts bring a clock
  const base::Clock* clock_ = nullptr;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<RequestQueue> requests_;
  std::unique_ptr<Reloader> reloader_;
  bool held_ = false;      // by the caller
  bool draining_ = false;  // the ready reload waits for what runs
};

}  // namespace holdfast::engine
