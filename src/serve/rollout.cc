#include "serve/rollout.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <utility>

#include "base/error.h"

namespace holdfast::serve {
namespace {

namespace fs = std::filesystem;

ReloadOptions reload_options(const UpdateOptions& options) {
  ReloadOptions reload;
  reload.commit = options.commit;
  reload.version = options.version;
  reload.in_flight = options.in_flight;
  reload.deadline_ms = options.deadline_ms;
  reload.scope = options.scope;
  reload.scope.parameters.insert(reload.scope.parameters.end(), options.names.begin(),
                                 options.names.end());
  // A trainer that begins anew has given up what it had begun.
  reload.replace_open = true;
  return reload;
}

Error no_bracket(const char* call) {
  return make_error(ErrorCode::kFailedPrecondition,
                    "{}: no weight update is open; call /start_weight_update first", call);
}

// Nothing ends while it is frozen, so that a drain would wait for its own resume.
Status check_can_drain(const EngineHost& host, const UpdateOptions& options) {
  if (options.in_flight != InFlight::kDrain) return {};
  const HostSnapshot now = host.snapshot();
  if (!now.paused || now.stats.running == 0) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "in_flight is \"drain\" and {} requests are frozen by a pause: resume first, "
                    "or say what becomes of them",
                    now.stats.running);
}

bool is_below(const fs::path& path, const fs::path& root) {
  const auto [end, rest] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  static_cast<void>(rest);
  return end == root.end();
}

std::map<std::string, std::string> digests_of(const CensusReport& census) {
  std::map<std::string, std::string> digests;
  for (const CensusEntry& slot : census.slots) {
    if (!slot.digest.empty()) digests.emplace(slot.name, slot.digest);
  }
  return digests;
}

}  // namespace

std::string Rollout::version() const {
  const std::string version = context_.host.snapshot().version;
  return version.empty() ? kNoVersion : version;
}

Result<std::string> Rollout::allowed_directory(const std::string& directory) const {
  if (directory.find('\0') != std::string::npos) {
    return make_error(ErrorCode::kInvalidArgument,
                      "model path \"{}\" goes on behind a zero byte, where a file name ends",
                      directory.c_str());
  }
  std::error_code error;
  const fs::path path = fs::canonical(directory, error);
  if (error) {
    return make_error(ErrorCode::kNotFound, "model path \"{}\": {}", directory, error.message());
  }
  std::vector<std::string> roots = context_.options.model_roots;
  if (roots.empty()) {
    const fs::path model = fs::canonical(context_.host.model_directory(), error);
    roots.push_back(model.parent_path().string());
  }
  for (const std::string& root : roots) {
    const fs::path canonical = fs::canonical(root, error);
    if (!error && is_below(path, canonical)) return path.string();
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "model path \"{}\" is below none of the allowed roots ({}); name more with "
                    "--model-roots",
                    directory, fmt::join(roots, ", "));
}

// ------------------------------------------------------------------------------ updates

Rollout::BracketPtr Rollout::take_bracket() {
  const std::lock_guard lock(mutex_);
  return std::exchange(bracket_, nullptr);
}

void Rollout::drop(const BracketPtr& bracket, Done done) {
  std::optional<std::uint64_t> push;
  if (bracket != nullptr) {
    const std::lock_guard lock(mutex_);
    push = bracket->push_id;
  }
  if (!push) {
    if (done) done({});
    return;
  }
  context_.host.abort_reload(*push, [done = std::move(done)](const Status&) {
    // That it has ended already is as good.
    if (done) done({});
  });
}

void Rollout::start_update(UpdateOptions options, Done done) {
  auto next = std::make_shared<Bracket>();
  next->options = std::move(options);
  BracketPtr previous;
  {
    const std::lock_guard lock(mutex_);
    previous = std::exchange(bracket_, std::move(next));
  }
  drop(previous, std::move(done));
}

bool Rollout::bracket_open() const {
  const std::lock_guard lock(mutex_);
  return bracket_ != nullptr;
}

void Rollout::update_in_bracket(const std::string& directory, UpdateOptions options,
                                DoneReport done) {
  Result<std::string> allowed = allowed_directory(directory);
  if (!allowed.ok()) return done(allowed.error());
  std::unique_lock lock(mutex_);
  if (bracket_ == nullptr) {
    lock.unlock();
    return load(std::move(*allowed), options, std::move(done));
  }
  if (bracket_->push_id || bracket_->opening || !bracket_->directory.empty()) {
    lock.unlock();
    return done(make_error(ErrorCode::kFailedPrecondition,
                           "this weight update has weights already; finish it, or start anew"));
  }
  bracket_->directory = std::move(*allowed);
  if (!options.version.empty()) bracket_->options.version = options.version;
  if (options.in_flight != InFlight::kContinue) bracket_->options.in_flight = options.in_flight;
  lock.unlock();
  done(ReloadReport{});
}

void Rollout::update_from_disk(const std::string& directory, const UpdateOptions& options,
                               DoneReport done) {
  Result<std::string> allowed = allowed_directory(directory);
  if (!allowed.ok()) return done(allowed.error());
  // Its reload takes the place of what the bracket had pushed.
  take_bracket();
  load(std::move(*allowed), options, std::move(done));
}

void Rollout::load(std::string allowed, const UpdateOptions& options, DoneReport done) {
  const Status drains = check_can_drain(context_.host, options);
  if (!drains.ok()) return done(drains.error());
  auto shared = std::make_shared<DoneReport>(std::move(done));
  context_.host.reload(
      std::move(allowed), reload_options(options),
      [shared](const Result<std::uint64_t>& begun) {
        if (!begun.ok()) (*shared)(begun.error());
      },
      [shared](Result<ReloadReport> report) { (*shared)(std::move(report)); });
}

void Rollout::begin_from_disk(const std::string& directory, UpdateOptions options,
                              std::function<void(Result<std::uint64_t>)> begun) {
  Result<std::string> allowed = allowed_directory(directory);
  if (!allowed.ok()) return begun(allowed.error());
  const Status drains = check_can_drain(context_.host, options);
  if (!drains.ok()) return begun(drains.error());
  take_bracket();
  context_.host.reload(std::move(*allowed), reload_options(options), std::move(begun),
                       [](const Result<ReloadReport>&) {});
}

void Rollout::begin_push(std::vector<TensorInfo> tensors, UpdateOptions options,
                         std::function<void(Result<std::uint64_t>)> begun, DoneReport done) {
  const Status drains = check_can_drain(context_.host, options);
  if (!drains.ok()) return begun(drains.error());
  context_.host.begin_push(std::move(tensors), reload_options(options), std::move(begun),
                           std::move(done));
}

void Rollout::open_push(std::function<void(Result<std::uint64_t>)> done) {
  BracketPtr bracket;
  {
    std::unique_lock lock(mutex_);
    bracket = bracket_;
    if (bracket == nullptr) {
      lock.unlock();
      return done(no_bracket("/update_weights"));
    }
    if (!bracket->directory.empty()) {
      lock.unlock();
      return done(make_error(ErrorCode::kFailedPrecondition,
                             "this weight update is to be read from {}; finish it, or start anew",
                             bracket->directory));
    }
    if (bracket->push_id) {
      const std::uint64_t id = *bracket->push_id;
      lock.unlock();
      return done(id);
    }
    bracket->waiting.push_back(std::move(done));
    if (std::exchange(bracket->opening, true)) return;
  }
  begin_push({}, bracket->options,
             [this, bracket](const Result<std::uint64_t>& id) { on_push_begun(bracket, id); },
             [this, bracket](const Result<ReloadReport>& report) {
               on_push_ended(bracket, report);
             });
}

void Rollout::on_push_begun(const BracketPtr& bracket, const Result<std::uint64_t>& id) {
  std::vector<std::function<void(Result<std::uint64_t>)>> waiting;
  bool dropped = false;
  {
    const std::lock_guard lock(mutex_);
    bracket->opening = false;
    if (id.ok()) bracket->push_id = *id;
    waiting = std::exchange(bracket->waiting, {});
    dropped = bracket_ != bracket;
  }
  // The bracket was given up while its push began.
  if (dropped) drop(bracket, {});
  for (const auto& done : waiting) done(id);
}

void Rollout::on_push_ended(const BracketPtr& bracket, const Result<ReloadReport>& report) {
  DoneReport finished;
  {
    const std::lock_guard lock(mutex_);
    finished = std::exchange(bracket->finished, {});
    if (!finished) bracket->ended = report;
  }
  if (finished) finished(report);
}

void Rollout::fail_push(std::uint64_t reload_id) {
  {
    const std::lock_guard lock(mutex_);
    if (bracket_ != nullptr && bracket_->push_id == reload_id) bracket_ = nullptr;
  }
  std::promise<void> ended;
  // That it has ended already is as good.
  context_.host.abort_reload(reload_id, [&ended](const Status&) { ended.set_value(); });
  ended.get_future().wait();
}

void Rollout::finish_update(const std::string& version, DoneReport done) {
  const BracketPtr bracket = take_bracket();
  if (bracket == nullptr) return done(no_bracket("/finish_weight_update"));
  if (!version.empty()) bracket->options.version = version;
  if (!bracket->directory.empty()) {
    return load(bracket->directory, bracket->options, std::move(done));
  }
  {
    std::unique_lock lock(mutex_);
    if (!bracket->push_id) {
      lock.unlock();
      return done(make_error(ErrorCode::kFailedPrecondition,
                             "/finish_weight_update: no weights came since /start_weight_update"));
    }
    if (bracket->ended) {
      const Result<ReloadReport> ended = *bracket->ended;
      lock.unlock();
      return done(ended);
    }
    bracket->finished = std::move(done);
  }
  run_blocking([this, bracket, version] { end_push(bracket, version); });
}

void Rollout::end_push(const BracketPtr& bracket, const std::string& version) {
  const Status ended = context_.host.end_push(*bracket->push_id, version);
  if (ended.ok()) return;
  // What has failed ends by itself, with this error or an earlier one; what is no longer open does
  // not end again.
  if (ended.error().code() == ErrorCode::kFailedPrecondition) {
    on_push_ended(bracket, ended.error());
  }
}

void Rollout::abort_update(Done done) {
  const BracketPtr bracket = take_bracket();
  if (bracket == nullptr) return done(no_bracket("abort"));
  drop(bracket, std::move(done));
}

// ------------------------------------------------------------------------------ checks

void Rollout::checksums(std::function<void(Result<Checksums>)> done) {
  context_.host.post([done = std::move(done)](Engine& engine) {
    const Result<CensusReport> census = engine.census();
    if (!census.ok()) return done(census.error());
    done(digests_of(*census));
  });
}

void Rollout::snapshot_checksums(Done done) {
  checksums([this, done = std::move(done)](Result<Checksums> now) {
    if (!now.ok()) return done(now.error());
    {
      const std::lock_guard lock(mutex_);
      snapshot_ = std::move(*now);
    }
    done({});
  });
}

void Rollout::compare_with_snapshot(
    std::function<void(Result<std::vector<std::string>>)> done) {
  checksums([this, done = std::move(done)](const Result<Checksums>& now) {
    if (!now.ok()) return done(now.error());
    std::optional<Checksums> before;
    {
      const std::lock_guard lock(mutex_);
      before = snapshot_;
    }
    if (!before) {
      return done(make_error(ErrorCode::kFailedPrecondition,
                             "compare: there is no snapshot; take one with action \"snapshot\""));
    }
    std::vector<std::string> differ;
    for (const auto& [name, digest] : *now) {
      const auto found = before->find(name);
      if (found == before->end() || found->second != digest) differ.push_back(name);
    }
    done(std::move(differ));
  });
}

}  // namespace holdfast::serve
