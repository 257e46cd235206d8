// Reloader: the reloads of an engine, one at a time. Opens, validates, plans, stages and prepares
// on a thread of its own, or on those that push; commits on the engine thread between steps;
// verifies and frees the previous weights on its own thread again. Owned by the engine; engine
// thread, except phase(), status(), push() and end_push().
// With ReloaderParts::on_calling_thread there is no other thread, so that a simulation can be
// replayed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "config/model_config.h"
#include "engine/injected_faults.h"
#include "engine/reload_board.h"
#include "engine/reload_request.h"
#include "holdfast/engine.h"
#include "reload/transaction.h"
#include "storage/registry.h"

namespace holdfast::engine {

// The values of all constant slots by slot name.
using ConstantValues = std::map<std::string, std::vector<std::byte>>;

// What a reloader is given from outside.
struct ReloaderParts {
  // Opens what a reload's directory names; empty: the checkpoint in that directory.
  std::function<Result<std::unique_ptr<reload::Source>>(const std::string& directory)> open_source;
  // What a model of that config would put into its constant slots; empty: a config that changes
  // constants is refused, whatever a reload asks for. Called on the reloader's thread too.
  std::function<Result<ConstantValues>(const config::ModelConfig& config)> constants_of;
  // begin() stages and prepares before it returns; settle() and wait_verified() verify. A source
  // may run steps, or abort the reload, while it is read.
  bool on_calling_thread = false;
  // As EngineOptions::on_reload_change.
  std::function<void()> on_change;
};

class Reloader {
 public:
  // All must outlive the reloader; `registry` holds its first epoch. `live` becomes the config of
  // what was committed, in the quiet moment.
  Reloader(storage::Registry& registry, config::ModelConfig& live, const base::Clock& clock,
           ReloaderParts parts = {});
  // Cancels what is staged and waits for the thread.
  ~Reloader();
  Reloader(const Reloader&) = delete;
  Reloader& operator=(const Reloader&) = delete;

  // Errors: kFailedPrecondition while a reload is open. Whatever is wrong with the directory shows
  // as phase kFailed and in failure().
  Status begin(ReloadRequest request);
  ReloadPhase phase() const { return board_.phase(); }
  ReloadStatus status() const { return board_.status(clock_.now_ns()); }
  InFlight in_flight() const { return request_.in_flight; }
  bool wants_commit() const { return phase() == ReloadPhase::kReady && request_.commit_when_ready; }

  // What begin would do with the live weights; touches nothing. Errors: what would fail it.
  Result<reload::ReloadPlan> plan(const ReloadRequest& request) const;

  // A reload whose bytes come by push(), as Engine::begin_push: planned before it returns its id.
  // Whoever pushes may vanish: the reload stays open until its deadline or abort(). Errors: those
  // of begin, of make_push_source and of the plan; no reload is open then.
  Result<std::uint64_t> begin_push(std::span<const TensorInfo> tensors, ReloadRequest request);
  // As Engine::push and Engine::end_push. Any thread, one after the other; the reloader must
  // outlive the call. An abort() meanwhile ends them with kCancelled at the next chunk.
  Status push(std::uint64_t reload_id, const std::string& tensor, std::uint64_t offset_bytes,
              std::span<const std::byte> bytes, const std::string& dtype = {});
  Status end_push(std::uint64_t reload_id, const std::string& version = {});
  // At a boundary: ends a reload that waits for the caller beyond its deadline.
  void expire();

  // In the quiet moment. Allocates nothing and reads no file unless it fails, or streams: then it
  // takes as long as the source does.
  // Errors: kFailedPrecondition when none is ready; whatever the transaction says, and then the
  // weights are as before, or poisoned().
  Status commit();
  // Drops an open reload that is not committed. Errors: kFailedPrecondition.
  Status abort();

  // Until it is no longer staging; with on_calling_thread nobody would push meanwhile, so that a
  // pushed one may still be.
  void wait_staged();
  // Until a committed one is verified, successfully or not.
  void wait_verified();
  // In the quiet moment: whether a committed reload failed its verification; it is then rolled
  // back, or poisoned() when that failed too or nothing was kept to roll back to.
  bool settle();

  // Why the weights are not to be trusted; empty when they are.
  const std::string& poisoned() const { return poisoned_; }
  // Of the last reload that ended.
  std::optional<ReloadReport> last_report() const;
  // How many ended so, as their reports say.
  std::uint64_t commits() const { return commits_; }
  std::uint64_t roll_backs() const { return roll_backs_; }
  // Why the last reload failed. Asserts phase kFailed.
  Error failure() const;

 private:
  enum class Command : std::uint8_t { kNone, kVerify, kDrop };
  struct Planned {
    std::unique_ptr<reload::Source> source;
    reload::ReloadPlan plan;
  };
  Result<Planned> open_and_plan(const ReloadRequest& request) const;
  Result<std::unique_ptr<reload::Source>> open_source(const ReloadRequest& request) const;
  // Aborts the open reload when `request` asks to replace it. Errors: kFailedPrecondition when one
  // is still open.
  Status make_room(const ReloadRequest& request);
  // Closes the last reload's books and opens those of the next, which is then staging.
  void open_books(ReloadRequest request, storage::TransactionId id);
  std::int64_t deadline_of(const ReloadRequest& request) const;
  Result<std::unique_ptr<reload::Transaction>> begin_transaction(const ReloadRequest& request,
                                                                 storage::TransactionId id,
                                                                 std::int64_t deadline_ns,
                                                                 reload::ReloadPlan plan);
  void take_config(const config::ModelConfig& next);
  void run();  // the thread's life
  Command await_command();
  Status stage();
  void end_staging(const Status& staged);
  bool is_over() const;
  void drop(const Error& why);
  void verify();
  bool undo_unverified();
  Status check_taking(std::uint64_t reload_id, const std::string& what) const;
  Status push_one(std::uint64_t reload_id, const reload::Fragment& fragment,
                  std::span<const std::byte> bytes);
  std::uint64_t expected_bytes(const reload::Fragment& fragment, std::uint64_t bytes) const;
  Status stage_pushed();
  Status end_one(std::uint64_t reload_id, const std::string& version);
  // `poisons`: also where the transaction could not say so.
  void finish(ReloadPhase phase, std::optional<Error> error, bool poisons = false);
  ReloadReport make_report() const;

  storage::Registry& registry_;
  config::ModelConfig& live_;
  const base::Clock& clock_;
  const ReloaderParts parts_;
  ReloadRequest request_;
  std::int64_t deadline_ns_ = 0;
  std::thread thread_;
  std::atomic<bool> cancel_{false};
  ReloadBoard board_;
  storage::TransactionId id_;  // of the open or the last reload
  std::string poisoned_;
  bool was_poisoned_ = false;  // before the last commit

  // Held by a push for as long as it takes. A pushed reload leaves kStaging only under it, so that
  // the transaction is the pusher's until then. Taken before mutex_, never by the commit.
  std::mutex push_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Command command_ = Command::kNone;
  // Of the open reload: its config takes the live one's place at the commit, and is the previous
  // one from then on. Source and stream live until then only when the commit reads the source.
  config::ModelConfig other_config_;
  std::unique_ptr<FaultInjector> injector_;  // null: this reload has no fault; outlives the source
  std::unique_ptr<reload::Source> source_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<reload::Transaction> transaction_;
  std::optional<Error> verify_error_;
  std::optional<Error> failure_;
  std::optional<ReloadReport> report_;
  std::atomic<std::uint64_t> commits_{0}, roll_backs_{0};
};

}  // namespace holdfast::engine
