#include "engine/reloader.h"

#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "reload/plan.h"
#include "reload/source.h"

namespace holdfast::engine {

namespace {

double to_ms(std::int64_t ns) { return static_cast<double>(ns) * 1e-6; }
double to_us(std::int64_t ns) { return static_cast<double>(ns) * 1e-3; }

bool is_open(ReloadPhase phase) {
  return phase == ReloadPhase::kStaging || phase == ReloadPhase::kReady ||
         phase == ReloadPhase::kVerifying;
}

Result<std::unique_ptr<reload::Source>> open_checkpoint(const std::string& directory) {
  HF_ASSIGN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
            checkpoint::Checkpoint::open(directory));
  return reload::make_checkpoint_source(std::move(checkpoint));
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

}  // namespace

Reloader::Reloader(storage::Registry& registry, const config::ModelConfig& live,
                   const base::Clock& clock, ReloaderParts parts)
    : registry_(registry), live_(live), clock_(clock), parts_(std::move(parts)) {}

Reloader::~Reloader() {
  cancel_.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    if (command_ == Command::kNone) command_ = Command::kDrop;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Status Reloader::begin(ReloadRequest request) {
  if (is_open(phase())) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "the reload of {} is {}; finish or abort it before beginning {}",
                      request_.directory, phase_text(phase()), request.directory);
  }
  if (thread_.joinable()) thread_.join();
  request_ = std::move(request);
  cancel_.store(false, std::memory_order_release);
  command_ = Command::kNone;
  transaction_.reset();
  verify_error_.reset();
  failure_.reset();
  phase_.store(ReloadPhase::kStaging, std::memory_order_release);
  if (parts_.on_calling_thread) {
    end_staging(stage());
  } else {
    thread_ = std::thread([this] { run(); });
  }
  return {};
}

// ------------------------------------------------------------------------------ the thread

void Reloader::run() {
  end_staging(stage());
  {
    std::unique_lock lock(mutex_);
    if (phase() == ReloadPhase::kFailed) return;
    changed_.wait(lock, [this] { return command_ != Command::kNone; });
    if (command_ == Command::kDrop) {
      // A failed commit has ended the reload already.
      if (phase() == ReloadPhase::kReady) drop();
      return;
    }
  }
  verify();
}

void Reloader::end_staging(const Status& staged) {
  const std::lock_guard lock(mutex_);
  if (!staged.ok()) return finish(ReloadPhase::kFailed, staged.error());
  phase_.store(ReloadPhase::kReady, std::memory_order_release);
  changed_.notify_all();
}

// With the lock held.
void Reloader::drop() {
  const Error why(ErrorCode::kCancelled, "aborted before its commit");
  transaction_->abort(why);
  finish(ReloadPhase::kFailed, why);
}

void Reloader::verify() {
  const Status verified = transaction_->verify();
  const std::lock_guard lock(mutex_);
  if (verified.ok()) return finish(ReloadPhase::kDone, std::nullopt);
  // Rolling back belongs to the engine thread: settle().
  verify_error_ = verified.error();
  changed_.notify_all();
}

Status Reloader::stage() {
  HF_ASSIGN(const auto source, parts_.open_source ? parts_.open_source(request_.directory)
                                                  : open_checkpoint(request_.directory));
  HF_ASSIGN(reload::ReloadPlan plan,
            reload::make_plan(registry_, live_, *source, request_.strategy));
  // One worker: the steps keep the other cores.
  HF_ASSIGN(const auto stream, registry_.device().create_stream(1));
  reload::TransactionOptions options;
  options.clock = &clock_;
  options.fault = request_.fault;
  options.cancel = &cancel_;
  HF_ASSIGN(auto transaction, reload::Transaction::begin(registry_, std::move(plan), options));
  {
    const std::lock_guard lock(mutex_);
    transaction_ = std::move(transaction);
  }
  HF_TRY(transaction_->stage(*source, *stream));
  return transaction_->prepare();
}

// With the lock held.
void Reloader::finish(ReloadPhase phase, std::optional<Error> error) {
  failure_ = std::move(error);
  report_ = make_report();
  // Whatever it still holds of the device's memory is given back, also when it could not roll back.
  transaction_.reset();
  // The engine thread asks for nothing more from the transaction once the phase says so.
  phase_.store(phase, std::memory_order_release);
  changed_.notify_all();
}

ReloadReport Reloader::make_report() const {
  ReloadReport report;
  report.source = request_.directory;
  report.strategy = reload::commit_strategy_name(request_.strategy);
  report.state = reload::transaction_state_name(reload::TransactionState::kRolledBack);
  report.from_epoch = report.to_epoch = registry_.epoch().value;
  if (transaction_ != nullptr) {
    const reload::TransactionReport inner = transaction_->report();
    report.source = inner.source;
    report.state = reload::transaction_state_name(inner.state);
    report.from_epoch = inner.from_epoch;
    report.to_epoch = inner.to_epoch;
    report.source_bytes = inner.source_bytes;
    report.versioned_bytes = inner.versioned_bytes;
    report.stage_ms = to_ms(inner.stage_ns);
    report.prepare_ms = to_ms(inner.prepare_ns);
    report.verify_ms = to_ms(inner.verify_ns);
    report.pause_us = to_us(inner.pause_ns);
    report.declared_peak_bytes = inner.declared_peak_device_bytes;
    report.measured_peak_bytes = inner.measured_peak_device_bytes;
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
  const Status committed = transaction_->commit();
  const std::lock_guard lock(mutex_);
  if (committed.ok()) {
    was_poisoned_ = !poisoned_.empty();
    poisoned_.clear();
    command_ = Command::kVerify;
    phase_.store(ReloadPhase::kVerifying, std::memory_order_release);
  } else {
    if (transaction_->state() == reload::TransactionState::kPoisoned) {
      poisoned_ = committed.error().to_string();
    }
    command_ = Command::kDrop;
    finish(ReloadPhase::kFailed, committed.error());
  }
  changed_.notify_all();
  return committed;
}

Status Reloader::abort() {
  std::unique_lock lock(mutex_);
  if (phase() != ReloadPhase::kStaging && phase() != ReloadPhase::kReady) {
    return make_error(ErrorCode::kFailedPrecondition, "no reload can be aborted: it is {}",
                      phase_text(phase()));
  }
  cancel_.store(true, std::memory_order_release);
  command_ = Command::kDrop;
  if (parts_.on_calling_thread) {
    // While staging it is the source that calls, and staging ends at its return.
    if (phase() == ReloadPhase::kReady) drop();
    return {};
  }
  changed_.notify_all();
  changed_.wait(lock, [this] { return phase() == ReloadPhase::kFailed; });
  return {};
}

void Reloader::wait_staged() {
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
  const std::lock_guard lock(mutex_);
  if (!verify_error_) return false;
  const Status rolled_back = transaction_->roll_back();
  if (!rolled_back.ok()) {
    poisoned_ = rolled_back.error().with_context("rolling back failed").to_string();
  } else if (was_poisoned_) {
    poisoned_ = "the reload that was to replace poisoned weights was rolled back";
  }
  finish(ReloadPhase::kFailed, *verify_error_);
  if (!rolled_back.ok()) {
    report_->state = reload::transaction_state_name(reload::TransactionState::kPoisoned);
  }
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
