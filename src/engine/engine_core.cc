#include "engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/arena.h"
#include "device/devices.h"
#include "device/sim/sim_device.h"
#include "engine/census_report.h"
#include "engine/verify_report.h"
#include "reload/plan.h"

namespace holdfast::engine {

namespace {

constexpr std::int64_t kMaxPressureBlocks = 1 << 20;
constexpr std::int64_t kMaxPressureBlockBytes = std::int64_t{1} << 36;
// Neither the device's poison nor anything that a weight would hold.
constexpr std::byte kPressureByte{0x5B};

Status dirty(device::Device& device, device::Memory memory) {
  const std::vector<std::byte> pattern(std::min<std::size_t>(memory.bytes, 1 << 20),
                                       kPressureByte);
  for (std::size_t at = 0; at < memory.bytes; at += pattern.size()) {
    HF_TRY(device.write(memory.address + at, pattern.data(),
                        std::min(pattern.size(), memory.bytes - at)));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::open(const EngineOptions& options,
                                                     std::unique_ptr<device::Device> device) {
  EngineParts parts;
  parts.device = std::move(device);
  return open(options, std::move(parts));
}

Result<std::unique_ptr<EngineCore>> EngineCore::open(const EngineOptions& options,
                                                     EngineParts parts) {
  if (parts.device == nullptr) {
    HF_ASSIGN(parts.device, device::make_device(options.device));
  }
  if (options.simulate_faults) {
    parts.device = std::make_unique<device::SimDevice>(std::move(parts.device));
  }
  std::unique_ptr<EngineCore> core(new EngineCore());
  core->clock_ = parts.clock != nullptr ? parts.clock : &core->steady_clock_;
  const base::Clock& clock = *core->clock_;
  HF_ASSIGN(core->runtime_, Runtime::open(options, std::move(parts.device), clock));
  Runtime& runtime = *core->runtime_;
  core->requests_ = std::make_unique<RequestQueue>(
      runtime.settings(), Vocabulary{.size = runtime.config().vocab_size,
                                                   .eos_token_ids =
                                                       runtime.config().eos_token_ids});
  core->requests_->observe_keys(std::move(parts.on_keys));
  if (!parts.reloader.constants_of) {
    parts.reloader.constants_of = [&runtime](const config::ModelConfig& config) {
      return std::as_const(runtime).constants_of(config);
    };
  }
  if (!parts.reloader.on_change) parts.reloader.on_change = options.on_reload_change;
  core->reloader_ =
      std::make_unique<Reloader>(runtime.registry(), runtime.config(), clock,
                                 std::move(parts.reloader));
  return core;
}

// ------------------------------------------------------------------------------ generation

Result<RequestId> EngineCore::submit(Request request) {
  HF_TRY(check_not_poisoned());
  return requests_->submit(std::move(request));
}

Result<std::vector<Event>> EngineCore::step() {
  HF_TRY(reach_boundary());
  HF_TRY(requests_->plan(epoch(), [this](std::int32_t row, std::span<const std::int32_t> pages) {
    return runtime_->write_block_table(row, pages);
  }));
  const StepBatch& batch = requests_->batch();
  if (!batch.rows.empty()) {
    HF_TRY(runtime_->run(batch));
    Results::Read read{
        .logits = [this](std::int64_t index) { return runtime_->logits(index); },
        .experts = [this](Results::RowRange rows, std::vector<std::int16_t>& into) {
          return runtime_->append_experts(rows.begin, rows.count, into);
        },
        .choice = {}};
    if (runtime_->chooses()) {
      read.choice = [this](std::int64_t index) { return runtime_->choice(index); };
    }
    HF_TRY(requests_->take_results(read, epoch()));
  }
  return requests_->take_events();
}

Result<std::vector<Event>> EngineCore::between_steps() {
  HF_TRY(reach_boundary());
  return requests_->take_events();
}

// Between two graphs: the only place where weights change (I4).
Status EngineCore::reach_boundary() {
  settle_reload();
  reloader_->expire();
  if (reloader_->wants_commit()) {
    // A commit that fails has left the weights as they were, and the report says why; or it has
    // poisoned them, and the next line says so; or requests still have to end.
    static_cast<void>(commit_ready());
  }
  draining_ = draining_ && reload_phase() == ReloadPhase::kReady;
  requests_->hold_admission(held_ || draining_);
  return check_not_poisoned();
}

void EngineCore::settle_reload() {
  if (!reloader_->settle()) return;
  requests_->abort_computed_after(reloader_->last_report()->from_epoch);
  requests_->enter_epoch(epoch());
}

// In the quiet moment: the weights change, and then what becomes of requests that had begun.
Status EngineCore::commit_ready() {
  InFlight policy = reloader_->in_flight();
  // Nothing runs to its end any more in a poisoned engine, so that there is no waiting for it.
  if (policy == InFlight::kDrain && poisoned()) policy = InFlight::kAbort;
  draining_ = policy == InFlight::kDrain;
  if (draining_ && reload_phase() == ReloadPhase::kReady && requests_->started() > 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "{} requests run, and the reload is to wait for their end (in_flight "
                      "\"drain\"): none starts meanwhile; step until they have ended",
                      requests_->started());
  }
  HF_TRY(reloader_->commit());
  runtime_->recheck_graphs(*clock_);
  requests_->enter_epoch(epoch());
  requests_->apply(policy);
  return {};
}

EngineStats EngineCore::stats() const {
  EngineStats stats = requests_->stats();
  stats.commits = reloader_->commits();
  stats.roll_backs = reloader_->roll_backs();
  return stats;
}

Status EngineCore::check_not_poisoned() const {
  if (!poisoned()) return {};
  return make_error(ErrorCode::kPoisoned,
                    "the weights are not to be trusted ({}); a complete reload recovers",
                    reloader_->poisoned());
}

// ------------------------------------------------------------------------------ reload

Status EngineCore::begin_reload(const std::string& directory, const ReloadOptions& options) {
  HF_ASSIGN(ReloadRequest request, resolve_reload(directory, options, runtime_->settings()));
  settle_reload();
  return reloader_->begin(std::move(request));
}

Status EngineCore::begin_reload(std::vector<MemoryTensor> tensors, const ReloadOptions& options) {
  HF_ASSIGN(ReloadRequest request,
            resolve_memory(std::move(tensors), options, runtime_->settings()));
  settle_reload();
  return reloader_->begin(std::move(request));
}

Result<std::uint64_t> EngineCore::begin_push(const std::vector<TensorInfo>& tensors,
                                             const ReloadOptions& options) {
  HF_ASSIGN(ReloadRequest request, resolve_push(options, runtime_->settings()));
  settle_reload();
  return reloader_->begin_push(tensors, std::move(request));
}

Status EngineCore::commit_reload() {
  settle_reload();
  return commit_ready();
}

Result<ReloadReport> EngineCore::finish_reload() {
  if (reload_phase() == ReloadPhase::kNone) {
    return make_error(ErrorCode::kFailedPrecondition, "no reload has begun");
  }
  reloader_->wait_staged();
  if (reload_phase() == ReloadPhase::kStaging) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "reload {} still waits for pushed tensors, and only this thread could push "
                      "them",
                      reload_status().id);
  }
  if (reload_phase() == ReloadPhase::kReady) {
    const Status committed = commit_ready();
    // Another error is the reload's failure, below.
    if (reload_phase() == ReloadPhase::kReady) return committed.error();
  }
  reloader_->wait_verified();
  settle_reload();
  if (reload_phase() == ReloadPhase::kFailed) return reloader_->failure();
  return *reloader_->last_report();
}

Result<PlanReport> EngineCore::plan_reload(const std::string& directory,
                                           const ReloadOptions& options) const {
  HF_ASSIGN(const ReloadRequest request,
            resolve_reload(directory, options, runtime_->settings()));
  HF_ASSIGN(const reload::ReloadPlan plan, reloader_->plan(request));
  return PlanReport{.text = reload::to_text(plan, runtime_->registry()),
                    .json = reload::to_json(plan, runtime_->registry()),
                    .strategy = std::string(reload::commit_strategy_name(plan.strategy))};
}

Result<VerifyReport> EngineCore::verify() const { return make_verify_report(runtime_->registry()); }

// ------------------------------------------------------------------------------ what it is

Result<CensusReport> EngineCore::census() const {
  return make_census_report(runtime_->registry(), runtime_->graphs());
}

Status EngineCore::allocation_pressure(std::int64_t blocks, std::int64_t bytes) {
  if (blocks < 1 || blocks > kMaxPressureBlocks || bytes < 1 || bytes > kMaxPressureBlockBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "allocation pressure of {} blocks of {} bytes, expected 1 to {} blocks of 1 "
                      "to {} bytes",
                      blocks, bytes, kMaxPressureBlocks, kMaxPressureBlockBytes);
  }
  // All are held at once, so that every freed block is handed out again.
  std::vector<std::unique_ptr<device::Arena>> held;
  held.reserve(static_cast<std::size_t>(blocks));
  for (std::int64_t i = 0; i < blocks; ++i) {
    HF_ASSIGN(auto arena, device::Arena::create(runtime_->device(), "pressure",
                                                static_cast<std::size_t>(bytes)));
    HF_TRY(dirty(runtime_->device(), arena->memory()));
    held.push_back(std::move(arena));
  }
  return {};
}

}  // namespace holdfast::engine
