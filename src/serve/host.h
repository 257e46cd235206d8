// EngineHost: the engine thread. Owns the engine; everything that other threads want of it goes
// through here: requests with their sinks, pauses, reloads, and closures that run between two
// steps. No HTTP and no JSON. Thread-safe; sinks and callbacks run on the engine thread and must
// neither block nor call back into wait-like functions.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/engine.h"

namespace holdfast::serve {

enum class PauseMode : std::uint8_t {
  kKeep,   // freeze: running requests stay as they are and go on after resume
  kWait,   // those that run end first; those that wait stay
  kAbort,  // all end with their tokens so far
};

// What a sink is given: an event, and the label of the weights that made its token.
struct Output {
  const Event& event;
  const std::string& version;
};
// Called for every event of one request, in order; never after the one with a finish_reason.
using Sink = std::function<void(const Output&)>;

// A device error is not final: the step is tried again this often before the host fails.
inline constexpr int kMaxStepRetries = 3;

// A reload that has ended, for the timeline.
struct ReloadRecord {
  ReloadReport report;
  std::int64_t began_unix_ms = 0;
  std::int64_t ended_unix_ms = 0;
};

// What is there now, as of the last step boundary; a copy.
struct HostSnapshot {
  EngineStats stats;
  std::uint64_t epoch = 0;
  std::string version;
  bool paused = false, pausing = false, sleeping = false, draining = false;
  bool poisoned = false;
  bool failed = false;          // no step will run again; `failure` says why
  std::string failure;          // why poisoned or failed
  ReloadStatus reload;
  std::vector<ReloadRecord> reloads;  // the last kMaxReloadRecords, oldest first
  double paused_seconds = 0;          // in all, since start
  // The longest time from the end of a step to the end of the next one, which a commit came before.
  std::uint64_t step_gap_us_max_at_commit = 0;
};
inline constexpr std::size_t kMaxReloadRecords = 64;

// What the engine thread tells for metrics; called on it, so it must be quick. All may be empty.
struct HostObserver {
  std::function<void(double seconds, std::uint64_t rows)> on_step;
  std::function<void(const ReloadReport&)> on_reload;
  // "paused", "resumed", "asleep", "awake", "poisoned", "recovered", "failed", "not finite" (the
  // weights make logits that are no numbers; those requests end).
  std::function<void(std::string_view state, const std::string& why)> on_state;
};

class HostLoop;  // serve/host_loop.h: the thread itself

class EngineHost {
 public:
  // Opens the engine (options.on_reload_change is the host's own) and starts the thread. Errors: of
  // Engine::open.
  static Result<std::unique_ptr<EngineHost>> open(EngineOptions options,
                                                  HostObserver observer = {});
  // Ends every request with kAbort, drops an open reload, joins.
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  // --- requests. `accepted` gets the id, or why it was refused (kInvalidArgument,
  // kResourceExhausted, kPoisoned); it is called before the sink's first event.
  void submit(Request request, Sink sink, std::function<void(Result<RequestId>)> accepted);
  // The sink gets its last event (kAbort) unless it has had one. Unknown ids are ignored.
  void cancel(RequestId request);
  // As cancel, for all that run and wait; `done` gets their number.
  void cancel_all(std::function<void(std::size_t)> done);

  // --- pausing. `done` is called once no step runs any more, at once where that is so already:
  // idempotent. A pause on top of another one, reached or not, adds what its mode does (kKeep
  // freezes those that kWait waits for; kAbort ends all that are there). New requests are accepted
  // and wait.
  void pause(PauseMode mode, std::function<void()> done);
  // Errors (to done): kPoisoned, kFailedPrecondition while asleep. Resume while not paused is done
  // at once.
  void resume(std::function<void(Status)> done);
  // Pauses (kAbort) and forgets cached prefixes; weights stay where they are.
  void sleep(std::function<void()> done);
  void wake(std::function<void()> done);

  // --- reloads. `done` gets the report once committed and verified, or why it failed. `begun` gets
  // the id (or the error of begin, and then `done` is not called). A reload commits while paused,
  // too.
  void reload(std::string directory, ReloadOptions options,
              std::function<void(Result<std::uint64_t>)> begun,
              std::function<void(Result<ReloadReport>)> done);
  // The same for bytes that are pushed: push() and end_push() are then called on other threads.
  void begin_push(std::vector<TensorInfo> tensors, ReloadOptions options,
                  std::function<void(Result<std::uint64_t>)> begun,
                  std::function<void(Result<ReloadReport>)> done);
  // Errors: as Engine::push and Engine::end_push. Block; never on the engine thread.
  Status push(std::uint64_t reload_id, const std::string& tensor, std::uint64_t offset_bytes,
              std::span<const std::byte> bytes, const std::string& dtype = {});
  Status end_push(std::uint64_t reload_id, const std::string& version = {});
  // Errors (to done): kFailedPrecondition when none is open, or it is another one (0: whichever).
  void abort_reload(std::uint64_t reload_id, std::function<void(Status)> done);

  // The label of the weights from the next token on, until a commit brings another. (One that
  // brings none leaves it.)
  void set_version(std::string version, std::function<void()> done);

  // Runs between two steps, in order of the calls; also while paused.
  void post(std::function<void(Engine&)> task);

  // No new request is accepted (kFailedPrecondition); `done` once those that are there have ended
  // (frozen ones do not end: resume, or cancel_all).
  void drain(std::function<void()> done);

  // As Engine::check_loadable; any thread.
  Status check_loadable(std::span<const TensorInfo> tensors) const;
  HostSnapshot snapshot() const;
  ReloadStatus reload_status() const;
  // Immutable facts; any thread.
  const Tokenizer& tokenizer() const;
  std::int64_t max_context() const;
  std::int64_t vocab_size() const;
  std::vector<std::int32_t> eos_token_ids() const;
  const std::string& model_directory() const;

 private:
  explicit EngineHost(std::unique_ptr<HostLoop> loop);
  std::unique_ptr<HostLoop> loop_;
};

}  // namespace holdfast::serve
