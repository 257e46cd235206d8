// Rollout: what a trainer does to a server between steps, in no dialect: pauses, weight updates in
// brackets, labels, checks. The routes of every dialect call this and only translate. Thread-safe;
// what is passed as `done` is called on the engine thread or on Rollout's own, and must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/context.h"
#include "serve/worker.h"

namespace holdfast::serve {

inline constexpr const char* kNoVersion = "default";  // what replies say before the first label

struct UpdateOptions {
  std::string version = {};
  InFlight in_flight = InFlight::kContinue;
  std::string commit = {};            // a strategy; empty: the engine's own
  std::int64_t deadline_ms = 0;
  std::vector<std::string> names = {};  // only these tensors come; empty: all
  ReloadScope scope = {};               // by layers and experts
};

class Rollout {
 public:
  using Done = std::function<void(Status)>;
  using DoneReport = std::function<void(Result<ReloadReport>)>;

  explicit Rollout(ServeContext& context) : context_(context) {}
  Rollout(const Rollout&) = delete;
  Rollout& operator=(const Rollout&) = delete;

  EngineHost& host() const { return context_.host; }
  ServeContext& context() const { return context_; }
  // The label of the live weights.
  std::string version() const;
  // That `directory` names something below an allowed root, symbolic links followed; its canonical
  // path. Errors: kInvalidArgument naming it and the roots, kNotFound.
  Result<std::string> allowed_directory(const std::string& directory) const;

  // --- updates. A bracket is opened by start_update and closed by finish_update or abort_update;
  // one more start drops what the one before had sent.
  void start_update(UpdateOptions options, Done done);
  // A whole update at once, which ends a bracket that is open.
  void update_from_disk(const std::string& directory, const UpdateOptions& options,
                        DoneReport done);
  // Inside a bracket: what finish_update will load; of the options, version and in_flight then
  // take the place of the start's, and `done` is called at once. Outside: as update_from_disk.
  // Errors besides those of the reload: kFailedPrecondition when the bracket has bytes already.
  void update_in_bracket(const std::string& directory, UpdateOptions options, DoneReport done);
  // A whole update; `begun` gets its id, and how it ends is for whoever asks.
  void begin_from_disk(const std::string& directory, UpdateOptions options,
                       std::function<void(Result<std::uint64_t>)> begun);
  bool bracket_open() const;
  // The reload that takes the bracket's pushed bytes, begun by the first call. Errors (to done):
  // kFailedPrecondition when no bracket is open.
  void open_push(std::function<void(Result<std::uint64_t>)> done);
  // A push of its own, for one body that is the whole update.
  void begin_push(std::vector<TensorInfo> tensors, UpdateOptions options,
                  std::function<void(Result<std::uint64_t>)> begun, DoneReport done);
  // The bracket's bytes are not what they should be, or their sender is gone: drops it,
  // and blocks until its reload has ended and is on record. Not on the engine thread.
  void fail_push(std::uint64_t reload_id);
  // Commits what the bracket has. `version` replaces the one of the start, where it is not empty.
  void finish_update(const std::string& version, DoneReport done);
  void abort_update(Done done);

  // --- checks: XXH3-128 of every versioned slot by its name.
  using Checksums = std::map<std::string, std::string>;
  void checksums(std::function<void(Result<Checksums>)> done);
  void snapshot_checksums(Done done);
  // Names that differ from the snapshot. Errors: kFailedPrecondition when there is none.
  void compare_with_snapshot(std::function<void(Result<std::vector<std::string>>)> done);

  // Runs `task` where it may block.
  void run_blocking(std::function<void()> task) { worker_.run(std::move(task)); }

 private:
  // Guarded by mutex_; a callback of a bracket that is no longer the open one still finds its own.
  struct Bracket {
    UpdateOptions options = {};
    std::string directory = {};
    std::optional<std::uint64_t> push_id = {};
    bool opening = false;      // begin_push is under way
    std::vector<std::function<void(Result<std::uint64_t>)>> waiting = {};
    std::optional<Result<ReloadReport>> ended = {};  // of the push
    DoneReport finished = {};                        // who waits for that
  };
  using BracketPtr = std::shared_ptr<Bracket>;
  void on_push_begun(const BracketPtr& bracket, const Result<std::uint64_t>& id);
  void on_push_ended(const BracketPtr& bracket, const Result<ReloadReport>& report);
  void end_push(const BracketPtr& bracket, const std::string& version);
  void load(std::string allowed, const UpdateOptions& options, DoneReport done);
  BracketPtr take_bracket();
  void drop(const BracketPtr& bracket, Done done);

  ServeContext& context_;
  mutable std::mutex mutex_;
  BracketPtr bracket_;  // null: none is open
  std::optional<Checksums> snapshot_;
  Worker worker_;  // last: it ends first
};

}  // namespace holdfast::serve
