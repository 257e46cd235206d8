#include "serve/host_loop.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace holdfast::serve {
namespace {

constexpr std::size_t kMaxVersions = 64;  // epochs whose labels are remembered

std::int64_t unix_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

bool has_ended(ReloadPhase phase) {
  return phase == ReloadPhase::kDone || phase == ReloadPhase::kFailed;
}

void call_all(std::vector<std::function<void()>>& callbacks) {
  for (const auto& callback : std::exchange(callbacks, {})) callback();
}

}  // namespace

Result<std::unique_ptr<HostLoop>> HostLoop::open(EngineOptions options, HostObserver observer) {
  std::unique_ptr<HostLoop> loop(new HostLoop(std::move(observer)));
  options.on_reload_change = [host = loop.get()] { host->wake(); };
  loop->model_directory_ = options.model_directory;
  HF_ASSIGN(loop->engine_, Engine::open(options));
  loop->vocab_size_ = loop->engine_->vocab_size();
  loop->eos_token_ids_ = loop->engine_->eos_token_ids();
  loop->notice_epoch();
  loop->publish();
  loop->thread_ = std::thread([host = loop.get()] { host->run(); });
  return loop;
}

HostLoop::~HostLoop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// --- any thread

void HostLoop::post(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void HostLoop::wake() {
  {
    const std::lock_guard lock(mutex_);
    reload_changed_ = true;
  }
  changed_.notify_all();
}

HostSnapshot HostLoop::snapshot() const {
  HostSnapshot snapshot;
  {
    const std::lock_guard lock(mutex_);
    snapshot = snapshot_;
  }
  snapshot.reload = engine_->reload_status();
  return snapshot;
}

// --- the loop

void HostLoop::run() {
  while (wait()) {
    run_tasks();
    if (can_step()) {
      step();
      boundary_due_ = true;
    } else {
      steps_in_a_row_ = false;
      boundary_due_ = false;
      take(engine_->between_steps());
    }
    notice_reload();
    reach_pause();
    finish_drain();
    publish();
  }
  end();
}

bool HostLoop::can_step() const {
  return pause_ != Pause::kPaused && !failed_ && !poisoned_ && !engine_->idle();
}

// With nothing to do it sleeps, but for the boundary that follows the last step: a reload may have
// waited for the end of just those requests.
bool HostLoop::wait() {
  const bool sleeps = !can_step() && !boundary_due_;
  std::unique_lock lock(mutex_);
  if (sleeps) changed_.wait(lock, [&] { return ending_ || reload_changed_ || !tasks_.empty(); });
  reload_changed_ = false;
  return !ending_;
}

void HostLoop::run_tasks() {
  std::deque<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) task(*this);
}

void HostLoop::step() {
  const Clock::time_point began = Clock::now();
  const std::uint64_t epoch_before = epoch_;
  take(engine_->step());
  measure_step(began, epoch_before);
}

void HostLoop::measure_step(Clock::time_point began, std::uint64_t epoch_before) {
  const Clock::time_point now = Clock::now();
  const std::uint64_t rows = engine_->stats().last_step_rows;
  if (steps_in_a_row_ && epoch_ != epoch_before) {
    const auto gap = std::chrono::duration_cast<std::chrono::microseconds>(now - last_step_end_);
    longest_gap_us_ = std::max(longest_gap_us_, static_cast<std::uint64_t>(gap.count()));
  }
  last_step_end_ = now;
  steps_in_a_row_ = rows > 0;
  if (observer_.on_step && rows > 0) {
    observer_.on_step(std::chrono::duration<double>(now - began).count(), rows);
  }
}

void HostLoop::take(Result<std::vector<Event>> events) {
  notice_epoch();
  const bool poisoned = engine_->poisoned();
  const bool was_poisoned = std::exchange(poisoned_, poisoned);
  if (was_poisoned && !poisoned) {
    failure_ = {};
    tell("recovered");
  }
  if (!events.ok()) {
    on_step_error(events.error());
    if (!was_poisoned && poisoned) tell("poisoned");
    return;
  }
  retries_ = 0;
  if (!events->empty()) publish();  // whoever is answered finds the step in the snapshot
  dispatch(std::move(events).value());
}

void HostLoop::on_step_error(const Error& error) {
  if (failed_) return;
  if (error.code() == ErrorCode::kPoisoned) {
    failure_ = error.message();
    return abort_sinks();
  }
  // The weights' numbers, not the device: those requests have ended, and other weights heal it.
  if (error.code() == ErrorCode::kCorrupt) {
    if (!std::exchange(not_finite_, true)) tell("not finite", error.message());
    return;
  }
  // A launch that failed has changed no request.
  if (error.code() == ErrorCode::kDevice && retries_++ < kMaxStepRetries) return;
  failed_ = true;
  failure_ = error.to_string();
  abort_sinks();
  tell("failed");
}

void HostLoop::dispatch(std::vector<Event> events) {
  for (const Event& event : events) {
    if (event.token) not_finite_ = false;
    const auto found = sinks_.find(event.request.value);
    if (found == sinks_.end()) continue;  // its sink has had its last event
    const Output output{.event = event, .version = version_of(event)};
    if (!event.finish_reason) {
      found->second(output);
      continue;
    }
    const Sink last = std::move(found->second);
    sinks_.erase(found);
    last(output);
  }
}

// Ends every request here, for an engine that gives no events any more.
void HostLoop::abort_sinks() {
  static_cast<void>(engine_->cancel_all(true));
  for (const auto& [id, sink] : std::exchange(sinks_, {})) {
    Event event;
    event.request = RequestId{id};
    event.finish_reason = FinishReason::kAbort;
    sink({.event = event, .version = version_});
  }
}

// --- versions

void HostLoop::notice_epoch() {
  const std::uint64_t epoch = engine_->epoch();
  if (epoch == epoch_ && !versions_.empty()) return;
  epoch_ = epoch;
  const auto known = versions_.find(epoch);
  if (known != versions_.end()) {
    version_ = known->second;
    return;
  }
  if (std::string label = engine_->version(); !label.empty()) version_ = std::move(label);
  versions_[epoch] = version_;
  if (versions_.size() > kMaxVersions) versions_.erase(versions_.begin());
}

const std::string& HostLoop::version_of(const Event& event) const {
  if (!event.token || event.token->epoch == epoch_) return version_;
  const auto known = versions_.find(event.token->epoch);
  return known == versions_.end() ? version_ : known->second;
}

void HostLoop::set_version(std::string version) {
  version_ = std::move(version);
  versions_[epoch_] = version_;
  publish();
}

// --- requests

void HostLoop::submit(Request request, Sink sink,
                      const std::function<void(Result<RequestId>)>& accepted) {
  if (failed_) return accepted(Error(ErrorCode::kDevice, failure_));
  if (draining_) {
    return accepted(Error(ErrorCode::kFailedPrecondition,
                          "the server is ending and takes no new requests"));
  }
  const Result<RequestId> id = engine_->submit(std::move(request));
  if (id.ok()) sinks_.emplace(id->value, std::move(sink));
  accepted(id);
}

std::size_t HostLoop::cancel_all() { return engine_->cancel_all(true); }

void HostLoop::drain(std::function<void()> done) {
  draining_ = true;
  draining_done_.push_back(std::move(done));
}

void HostLoop::finish_drain() {
  if (draining_ && sinks_.empty() && engine_->idle()) call_all(draining_done_);
}

// --- pausing

void HostLoop::pause(PauseMode mode, std::function<void()> done) {
  pausing_.push_back(std::move(done));
  switch (mode) {
    case PauseMode::kAbort:
      static_cast<void>(engine_->cancel_all(true));
      take(engine_->between_steps());
      return enter_pause();
    case PauseMode::kKeep:
      return enter_pause();
    case PauseMode::kWait:
      if (pause_ == Pause::kPaused) return enter_pause();
      if (pause_ == Pause::kRunning) quiet_before_ = false;
      pause_ = Pause::kPausing;
      engine_->hold_admission(true);
  }
}

void HostLoop::enter_pause() {
  const bool new_pause = std::exchange(pause_, Pause::kPaused) != Pause::kPaused;
  if (new_pause) {
    paused_since_ = Clock::now();
    tell("paused");
  }
  engine_->hold_admission(false);
  steps_in_a_row_ = false;
  publish();  // whoever is told finds it in the snapshot; so in every change of state
  call_all(pausing_);
}

// One that was put back to waiting runs again before those that are held, in the next step: only
// two boundaries with nobody running mean that all have ended.
void HostLoop::reach_pause() {
  if (pause_ != Pause::kPausing) return;
  const bool quiet = engine_->stats().running == 0;
  if (engine_->idle() || failed_ || poisoned_ || (quiet && quiet_before_)) return enter_pause();
  quiet_before_ = quiet;
}

void HostLoop::end_pause() {
  if (pause_ == Pause::kPaused) {
    paused_seconds_ += std::chrono::duration<double>(Clock::now() - paused_since_).count();
    tell("resumed");
  }
  pause_ = Pause::kRunning;
  engine_->hold_admission(false);
  publish();
  call_all(pausing_);
}

Status HostLoop::resume() {
  if (failed_) return Error(ErrorCode::kDevice, failure_);
  if (engine_->poisoned()) {
    return Error(ErrorCode::kPoisoned,
                 "the weights are not to be trusted; a complete reload recovers, then resume");
  }
  if (sleeping_) {
    return Error(ErrorCode::kFailedPrecondition, "the engine sleeps; wake it up instead");
  }
  end_pause();
  return {};
}

void HostLoop::sleep() {
  pause(PauseMode::kAbort, [] {});
  engine_->reset_prefix_cache();
  sleeping_ = true;
  tell("asleep");
  publish();
}

void HostLoop::wake_up() {
  if (!std::exchange(sleeping_, false)) return;
  tell("awake");
  end_pause();
}

// --- reloads

void HostLoop::record_ended() {
  const ReloadStatus status = engine_->reload_status();
  if (!has_ended(status.phase) || status.id == recorded_reload_) return;
  recorded_reload_ = status.id;
  const std::optional<ReloadReport> report = engine_->last_reload();
  if (!report) return;
  const std::int64_t now = unix_ms();
  const bool ours = reload_ && reload_->id == status.id;
  if (records_.size() == kMaxReloadRecords) records_.erase(records_.begin());
  records_.push_back({.report = *report,
                      .began_unix_ms = ours ? reload_->began_unix_ms : now,
                      .ended_unix_ms = now});
  if (observer_.on_reload) observer_.on_reload(*report);
}

void HostLoop::notice_reload() {
  const ReloadPhase phase = engine_->reload_phase();
  if (!has_ended(phase)) return;
  const ReloadStatus status = engine_->reload_status();
  if (status.id == noticed_reload_) return;
  noticed_reload_ = status.id;
  const Result<ReloadReport> result = engine_->finish_reload();  // it has ended: waits for nothing
  notice_epoch();
  record_ended();
  if (!reload_ || reload_->id != status.id) return;
  const OpenReload ended = *std::exchange(reload_, std::nullopt);
  publish();  // whoever is told finds the reload in the snapshot
  ended.done(result);
}

void HostLoop::make_room(bool replace_open) {
  notice_reload();
  if (!replace_open) return;
  static_cast<void>(engine_->abort_reload());  // refused when there is none, or it is committed
  record_ended();
}

void HostLoop::expect_reload(OpenReload reload) {
  const std::optional<OpenReload> replaced = std::exchange(reload_, std::move(reload));
  if (!replaced) return;
  replaced->done(make_error(ErrorCode::kCancelled, "reload {} was given up for reload {}",
                            replaced->id, reload_->id));
}

Status HostLoop::abort_reload(std::uint64_t id) {
  const ReloadStatus status = engine_->reload_status();
  if (id != 0 && id != status.id) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "reload {} cannot be aborted: the last one that began is {}", id, status.id);
  }
  Status aborted = engine_->abort_reload();
  notice_reload();  // whoever is told finds the reload in the snapshot, also one that had failed
  return aborted;
}

// --- what others see

void HostLoop::tell(std::string_view state) const { tell(state, failure_); }

void HostLoop::tell(std::string_view state, const std::string& why) const {
  if (observer_.on_state) observer_.on_state(state, why);
}

void HostLoop::publish() {
  HostSnapshot next;
  next.stats = engine_->stats();
  next.epoch = epoch_;
  next.version = version_;
  next.paused = pause_ == Pause::kPaused;
  next.pausing = pause_ == Pause::kPausing;
  next.sleeping = sleeping_;
  next.draining = draining_;
  next.poisoned = poisoned_;
  next.failed = failed_;
  next.failure = failure_;
  next.paused_seconds = paused_seconds_;
  if (next.paused) {
    next.paused_seconds += std::chrono::duration<double>(Clock::now() - paused_since_).count();
  }
  next.step_gap_us_max_at_commit = longest_gap_us_;
  const std::lock_guard lock(mutex_);
  const bool same = snapshot_.reloads.size() == records_.size() &&
                    (records_.empty() ||
                     snapshot_.reloads.back().report.id == records_.back().report.id);
  next.reloads = same ? std::move(snapshot_.reloads) : records_;
  snapshot_ = std::move(next);
}

void HostLoop::end() {
  draining_ = true;  // what was posted is answered; new requests are refused
  run_tasks();
  abort_sinks();
  notice_reload();
  if (reload_) {
    static_cast<void>(engine_->abort_reload());
    const OpenReload open = *std::exchange(reload_, std::nullopt);
    open.done(Error(ErrorCode::kCancelled, "the server has ended before the reload did"));
  }
  call_all(pausing_);
  call_all(draining_done_);
}

}  // namespace holdfast::serve
