#include "engine/reloader.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "reload/plan.h"
#include "reload/source.h"

namespace holdfast::engine {

namespace {

constexpr std::int64_t kNsPerMs = 1'000'000;

double to_ms(std::int64_t ns) { return static_cast<double>(ns) * 1e-6; }
double to_us(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

bool is_open(ReloadPhase phase) {
  return phase == ReloadPhase::kStaging || phase == ReloadPhase::kReady ||
         phase == ReloadPhase::kVerifying;
}

// A checkpoint that need not be complete by itself is accounted for by the plan alone.
Result<std::unique_ptr<reload::Source>> open_checkpoint(const ReloadRequest& request) {
  const bool whole = request.plan.scope.whole() && request.plan.casts.empty();
  HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
            whole ? checkpoint::Checkpoint::open(request.directory)
                  : checkpoint::Checkpoint::open_for_inspection(request.directory));
  return reload::make_checkpoint_source(std::move(checkpoint));
}

Error aborted() { return Error(ErrorCode::kCancelled, "aborted before its commit"); }

Error too_late(std::int64_t deadline_ns) {
  return make_error(ErrorCode::kDeadlineExceeded,
                    "not committed at its deadline, {} ns: whoever was to push or to commit it did "
                    "not come; begin anew",
                    deadline_ns);
}

const char* phase_text(ReloadPhase phase) {
  switch (phase) {
    case ReloadPhase::kNone: return "not open";
    case ReloadPhase::kStaging: return "still staging";
    case ReloadPhase::kReady: return "ready to commit";
    case ReloadPhase::kVerifying: return "committed and being verified";
    case ReloadPhase::kDone: return "done";
    case ReloadPhase::kFailed: return "failed";
  }
  return "not open";
}

// A thread that begins, or wakes, is often put where the one that woke it runs, and takes its core
// for a slice of 3 ms: the engine thread's, in the middle of a boundary. Batch threads get their
// share but never take a core from another (sched(7)); where it cannot be had, no result changes.
void let_steps_go_first() {
  const sched_param none{};
  static_cast<void>(sched_setscheduler(0, SCHED_BATCH, &none));
  sched_yield();
}

}  // namespace

Reloader::Reloader(storage::Registry& registry, config::ModelConfig& live,
                   const base::Clock& clock, ReloaderParts parts)
    : registry_(registry),
      live_(live),
      clock_(clock),
      parts_(std::move(parts)),
      board_(parts_.on_change) {}

Reloader::~Reloader() {
  cancel_.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    if (command_ == Command::kNone) command_ = Command::kDrop;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status Reloader::make_room(const ReloadRequest& request) {
  // It cannot when that one is committed by now, or when it is its source that calls; or it has
  // failed meanwhile, and there is room.
  if (request.replace_open && is_open(phase())) static_cast<void>(abort().ok());
  if (!is_open(phase())) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "the reload of {} is {}; finish or abort it before beginning {}",
                    request_.directory, phase_text(phase()), request.directory);
}

std::int64_t Reloader::deadline_of(const ReloadRequest& request) const {
  return request.deadline_ms > 0 ? clock_.now_ns() + request.deadline_ms * kNsPerMs : 0;
}

void Reloader::open_books(ReloadRequest request, storage::TransactionId id) {
  request_ = std::move(request);
  id_ = id;
  command_ = Command::kNone;
  verify_error_.reset();
  failure_.reset();
  board_.begin({.id = id.value,
                .source = request_.directory,
                .version = request_.version,
                .pushed = request_.pushed},
               deadline_ns_);
}

Status Reloader::begin(ReloadRequest request) {
  HF_TRY(make_room(request));
  if (thread_.joinable()) thread_.join();
  cancel_.store(false, std::memory_order_release);
  deadline_ns_ = deadline_of(request);
  injector_.reset();
  if (!request.inject.empty()) {
    HF_ASSIGN(injector_,
              FaultInjector::create(request.inject, registry_.device(), clock_, cancel_));
    deadline_ns_ = injector_->deadline_ns(deadline_ns_);
  }
  open_books(std::move(request), registry_.next_transaction_id());
  board_.announce();
  if (parts_.on_calling_thread) {
    end_staging(stage());
    board_.announce();
  } else {
    thread_ = std::thread([this] { run(); });
  }
  return {};
}

// ------------------------------------------------------------------------------ the thread

void Reloader::run() {
  let_steps_go_first();
  if (!request_.pushed) {
    end_staging(stage());
    board_.announce();
  }
  switch (await_command()) {
    case Command::kNone: break;
    case Command::kVerify: verify(); break;
    case Command::kDrop: drop(aborted()); break;
  }
}

// kNone: the reload has failed, and nothing is left to do.
Reloader::Command Reloader::await_command() {
  std::unique_lock lock(mutex_);
  const auto has_command = [this] {
    return command_ != Command::kNone || phase() == ReloadPhase::kFailed;
  };
  while (deadline_ns_ > 0 && !has_command() && !is_over()) {
    changed_.wait_for(lock, std::chrono::nanoseconds(deadline_ns_ - clock_.now_ns() + 1),
                      has_command);
  }
  if (!has_command()) {
    if (deadline_ns_ > 0) {
      lock.unlock();
      // Of one that is ready it is the engine thread that decides: commit() or expire().
      if (phase() == ReloadPhase::kStaging) drop(too_late(deadline_ns_));
      board_.mark_changed();
      board_.announce();
      lock.lock();
    }
    changed_.wait(lock, has_command);
  }
  return phase() == ReloadPhase::kFailed ? Command::kNone : command_;
}

bool Reloader::is_over() const { return deadline_ns_ > 0 && clock_.now_ns() > deadline_ns_; }

void Reloader::end_staging(const Status& staged) {
  const std::lock_guard lock(mutex_);
  if (!staged.ok()) return finish(ReloadPhase::kFailed, staged.error());
  board_.move_to(ReloadPhase::kReady);
  changed_.notify_all();
}

// Ends a reload that is not committed; waits for a push that is under way. Where a thread stages
// from a source, only that thread may.
void Reloader::drop(const Error& why) {
  {
    const std::lock_guard push_lock(push_mutex_);
    const std::lock_guard lock(mutex_);
    if (phase() != ReloadPhase::kStaging && phase() != ReloadPhase::kReady) return;
    transaction_->abort(why);
    finish(ReloadPhase::kFailed, why);
  }
  board_.announce();
}

void Reloader::verify() {
  const Status verified = transaction_->verify();
  {
    const std::lock_guard lock(mutex_);
    if (verified.ok()) {
      finish(ReloadPhase::kDone, std::nullopt);
    } else {
      // Rolling back belongs to the engine thread: settle().
      verify_error_ = verified.error();
      board_.mark_changed();
      changed_.notify_all();
    }
  }
  board_.announce();
}

Result<std::unique_ptr<reload::Source>> Reloader::open_source(const ReloadRequest& request) const {
  std::unique_ptr<reload::Source> source;
  if (request.memory) {
    source = reload::make_memory_source(request.directory, live_, request.memory);
  } else {
    HF_ASSIGN(source, parts_.open_source ? parts_.open_source(request.directory)
                                         : open_checkpoint(request));
  }
  if (request.plan.scope.whole()) return source;
  return reload::make_scoped_source(std::move(source), registry_, request.plan.scope);
}

Result<Reloader::Planned> Reloader::open_and_plan(const ReloadRequest& request) const {
  reload::PlanOptions options = request.plan;
  if (!request.digests_file.empty()) {
    HF_ASSIGN(options.expected_digests, read_digests(request.digests_file));
  }
  Planned planned;
  HF_ASSIGN(planned.source, open_source(request));
  const config::ModelConfig& next = planned.source->config();
  const auto changes = config::compare(live_, next);
  const bool constants_only = std::all_of(changes.begin(), changes.end(),
                                          [](const auto& change) { return change.constants_only; });
  if (options.constants == reload::ConstantsPolicy::kApply && !changes.empty() && constants_only &&
      parts_.constants_of) {
    HF_ASSIGN(options.constant_values, parts_.constants_of(next));
  }
  HF_ASSIGN(planned.plan, reload::make_plan(registry_, live_, *planned.source, options));
  return planned;
}

Result<reload::ReloadPlan> Reloader::plan(const ReloadRequest& request) const {
  HF_ASSIGN(Planned planned, open_and_plan(request));
  return std::move(planned.plan);
}

Result<std::unique_ptr<reload::Transaction>> Reloader::begin_transaction(
    const ReloadRequest& request, storage::TransactionId id, std::int64_t deadline_ns,
    reload::ReloadPlan plan) {
  reload::TransactionOptions options;
  options.clock = &clock_;
  options.fault = request.fault;
  options.cancel = &cancel_;
  options.deadline_ns = deadline_ns;
  options.label = request.version;
  options.id = id;
  return reload::Transaction::begin(registry_, std::move(plan), options);
}

// What decides no slot stays: the token ids are the tokenizer's, and requests know them.
void Reloader::take_config(const config::ModelConfig& next) {
  other_config_ = next;
  other_config_.eos_token_ids = live_.eos_token_ids;
  other_config_.bos_token_id = live_.bos_token_id;
  other_config_.pad_token_id = live_.pad_token_id;
}

Status Reloader::stage() {
  ReloadRequest request = request_;
  if (injector_) {
    HF_ASSIGN(request.directory, injector_->stand_in(request_.directory));
  }
  HF_ASSIGN(Planned planned, open_and_plan(request));
  if (injector_) {
    HF_TRY(injector_->check(planned.plan));
    planned.source = injector_->wrap(std::move(planned.source));
  }
  const bool streams = planned.plan.strategy == reload::CommitStrategy::kStream;
  source_ = make_counted_source(std::move(planned.source), board_);
  board_.expect(std::string(reload::commit_strategy_name(planned.plan.strategy)),
                source_->tensors());
  take_config(source_->config());
  // One worker: the steps keep the other cores. No step runs beside a commit that streams.
  HF_ASSIGN(stream_, registry_.device().create_stream(streams ? request_.threads : 1));
  if (injector_) {
    stream_ = injector_->wrap(std::move(stream_));
    injector_->before_staging();
  }
  HF_ASSIGN(auto transaction,
            begin_transaction(request_, id_, deadline_ns_, std::move(planned.plan)));
  {
    const std::lock_guard lock(mutex_);
    transaction_ = std::move(transaction);
  }
  HF_TRY(transaction_->stage(*source_, *stream_));
  HF_TRY(transaction_->prepare());
  if (streams) return {};
  source_.reset();
  stream_.reset();
  return {};
}

// With the lock held; whoever calls announces once no lock is held.
void Reloader::finish(ReloadPhase phase, std::optional<Error> error, bool poisons) {
  using State = reload::TransactionState;
  failure_ = std::move(error);
  report_ = make_report();
  if (poisons) report_->state = reload::transaction_state_name(State::kPoisoned);
  if (report_->state == reload::transaction_state_name(State::kCommitted)) ++commits_;
  if (report_->state == reload::transaction_state_name(State::kRolledBack)) ++roll_backs_;
  // Whatever it still holds of the device's memory is given back, also when it could not roll back.
  transaction_.reset();
  source_.reset();
  stream_.reset();
  // The engine thread asks for nothing more from the transaction once the phase says so.
  board_.move_to(phase, failure_ ? failure_->to_string() : std::string());
  changed_.notify_all();
}

ReloadReport Reloader::make_report() const {
  ReloadReport report;
  report.id = id_.value;
  report.source = request_.directory;
  report.scope = reload::to_text(request_.plan.scope);
  report.version = request_.version;
  report.strategy = request_.plan.strategy
                        ? reload::commit_strategy_name(*request_.plan.strategy)
                        : "auto";  // and nothing was chosen
  report.state = reload::transaction_state_name(reload::TransactionState::kRolledBack);
  report.from_epoch = report.to_epoch = registry_.epoch().value;
  if (transaction_ != nullptr) {
    const reload::TransactionReport inner = transaction_->report();
    report.source = inner.source;
    report.strategy = reload::commit_strategy_name(inner.strategy);
    report.state = reload::transaction_state_name(inner.state);
    report.from_epoch = inner.from_epoch;
    report.to_epoch = inner.to_epoch;
    report.source_bytes = inner.source_bytes;
    report.versioned_bytes = inner.versioned_bytes;
    report.preserved_bytes = inner.preserved_bytes;
    report.stage_ms = to_ms(inner.stage_ns);
    report.prepare_ms = to_ms(inner.prepare_ns);
    report.verify_ms = to_ms(inner.verify_ns);
    report.pause_us = to_us(inner.pause_ns);
    report.expected_pause_us = transaction_->plan().expected_pause_us;
    report.declared_peak_bytes = inner.declared_peak_device_bytes;
    report.measured_peak_bytes = inner.measured_peak_device_bytes;
    report.declared_host_peak_bytes = inner.declared_peak_host_bytes;
    report.measured_host_peak_bytes = inner.measured_peak_host_bytes;
    report.slots_moved = inner.slots_moved;
    report.slots_changed = inner.slots_changed;
    report.warnings = inner.warnings;
  }
  if (failure_) report.error = failure_->to_string();
  return report;
}

// ------------------------------------------------------------------------------ the engine thread

Status Reloader::commit() {
  if (phase() != ReloadPhase::kReady) {
    return make_error(ErrorCode::kFailedPrecondition, "no reload is ready to commit: it is {}",
                      phase_text(phase()));
  }
  // The thread waits for a command, so the transaction is this thread's alone.
  if (injector_) injector_->before_commit(registry_.versioned_arenas().size());
  const Status committed = transaction_->commit();
  if (injector_) injector_->after_commit();
  {
    const std::lock_guard lock(mutex_);
    if (committed.ok()) {
      was_poisoned_ = !poisoned_.empty();
      poisoned_.clear();
      std::swap(live_, other_config_);
      command_ = Command::kVerify;
      board_.move_to(ReloadPhase::kVerifying);
    } else {
      if (transaction_->state() == reload::TransactionState::kPoisoned) {
        poisoned_ = committed.error().to_string();
      }
      command_ = Command::kDrop;
      finish(ReloadPhase::kFailed, committed.error());
    }
    changed_.notify_all();
  }
  board_.announce();
  return committed;
}

Status Reloader::abort() {
  {
    std::unique_lock lock(mutex_);
    if (phase() != ReloadPhase::kStaging && phase() != ReloadPhase::kReady) {
      return make_error(ErrorCode::kFailedPrecondition, "no reload can be aborted: it is {}",
                        phase_text(phase()));
    }
    cancel_.store(true, std::memory_order_release);
    command_ = Command::kDrop;
    if (!parts_.on_calling_thread) {
      changed_.notify_all();
      changed_.wait(lock, [this] { return phase() == ReloadPhase::kFailed; });
      return {};
    }
  }
  // While staging from a source it is the source that calls, and staging ends at its return.
  if (phase() == ReloadPhase::kReady || request_.pushed) drop(aborted());
  return {};
}

void Reloader::expire() {
  if (!is_over()) return;
  const bool waits = !request_.commit_when_ready || request_.in_flight == InFlight::kDrain;
  const bool ready = phase() == ReloadPhase::kReady && waits;
  const bool pushes = phase() == ReloadPhase::kStaging && request_.pushed;
  if (ready || (pushes && parts_.on_calling_thread)) drop(too_late(deadline_ns_));
}

void Reloader::wait_staged() {
  if (parts_.on_calling_thread) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return phase() != ReloadPhase::kStaging; });
}

void Reloader::wait_verified() {
  if (parts_.on_calling_thread && phase() == ReloadPhase::kVerifying) verify();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return phase() != ReloadPhase::kVerifying || verify_error_.has_value();
  });
}

bool Reloader::settle() {
  if (phase() != ReloadPhase::kVerifying) return false;
  if (parts_.on_calling_thread && !verify_error_) verify();
  const bool undone = undo_unverified();
  board_.announce();
  return undone;
}

bool Reloader::undo_unverified() {
  const std::lock_guard lock(mutex_);
  if (!verify_error_) return false;
  if (transaction_->state() == reload::TransactionState::kPoisoned) {
    // Streamed, and nothing was kept.
    poisoned_ = verify_error_->to_string();
    finish(ReloadPhase::kFailed, *verify_error_);
    return true;
  }
  const Status rolled_back = transaction_->roll_back();
  if (!rolled_back.ok()) {
    poisoned_ = rolled_back.error().with_context("rolling back failed").to_string();
  } else {
    std::swap(live_, other_config_);
    if (was_poisoned_) {
      poisoned_ = "the reload that was to replace poisoned weights was rolled back";
    }
  }
  finish(ReloadPhase::kFailed, *verify_error_, !rolled_back.ok());
  if (!rolled_back.ok()) registry_.poison();
  return true;
}

std::optional<ReloadReport> Reloader::last_report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

Error Reloader::failure() const {
  const std::lock_guard lock(mutex_);
  HF_ASSERT(failure_.has_value(), "the last reload did not fail");
  return *failure_;
}

}  // namespace holdfast::engine
