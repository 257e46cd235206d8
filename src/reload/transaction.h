// Transaction: begin -> stage -> prepare -> commit, or abort. A weight update that commits at once
// or changes nothing. stage, put and prepare may run on another thread while the engine serves;
// commit, roll_back and abort-after-commit belong to the engine thread in the quiet moment between
// steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "device/arena.h"
#include "reload/plan.h"
#include "reload/source.h"
#include "storage/registry.h"

namespace holdfast::reload {

class Staging;
struct CommitFailure;

enum class TransactionState : std::uint8_t {
  kPlanned,
  kStaging,
  kPrepared,
  kApplying,
  kCommitted,
  kRolledBack,
  kPoisoned,
};
std::string_view transaction_state_name(TransactionState state);  // "planned", ...

// What an engine with a field defect does, for the drill: the fault acts below the transaction's
// own bookkeeping (receipts are forged), so that only an outside check can see it.
struct InjectedFault {
  enum class Kind : std::uint8_t {
    kNone,
    kRebindConstants,  // the experts' constants are rebuilt in fresh storage
    kStaleDerived,     // one derived slot keeps its old bytes
    kSkipLayer,        // one layer's parameters keep their old bytes
    kDropSink,         // attention sinks keep their old bytes
    kRebuiltWorkspace,    // the experts' locks are rebuilt in fresh storage
    kReregisteredScale,   // the experts' chain of scales is
    kStaleSortIndex,      // act-order's sort indices keep their old bytes
    kStalePermutation,    // act-order's permutation of activations does
    kStaleAlpha,          // the accumulators' alphas do
    kShuffleTwice,        // a packing that moves units is applied to what is packed already
    kNoShuffle,           // it is left out
  };
  Kind kind = Kind::kNone;
};
std::string_view fault_kind_name(InjectedFault::Kind kind);  // "rebind-constants", ...
std::optional<InjectedFault::Kind> fault_kind_from_name(std::string_view name);

struct TransactionOptions {
  const base::Clock* clock = nullptr;  // must outlive the transaction; required
  InjectedFault fault = {};
  // Polled between chunks of staging; true means stop with kCancelled. May be null.
  const std::atomic<bool>* cancel = nullptr;
  // Of `clock`; checked at begin, between chunks, for each slot of prepare and before the commit.
  std::int64_t deadline_ns = 0;  // 0: none
  // What Registry::label() says after the commit.
  std::string label = {};
  // Of the registry's next_transaction_id(); 0: the transaction asks for one.
  storage::TransactionId id = {};
};

// A piece of a tensor from a source that pushes.
struct Fragment {
  storage::TransactionId transaction;
  std::string tensor = {};
  // Where the bytes belong: these rows, else bytes from `offset_bytes` of the whole tensor.
  std::optional<RowRange> rows = {};
  std::uint64_t offset_bytes = 0;
  bool overwrite = false;  // bytes that came before are replaced instead of refused
  // What the bytes are, where that is not what the plan says of the tensor.
  std::optional<tensor::DType> dtype = {};
};

struct TransactionReport {
  std::uint64_t id = 0;
  std::string source, scope, label;
  TransactionState state = TransactionState::kPlanned;
  CommitStrategy strategy = CommitStrategy::kRemap;
  std::uint64_t from_epoch = 0, to_epoch = 0;
  std::uint64_t source_bytes = 0, versioned_bytes = 0, preserved_bytes = 0;
  std::int64_t stage_ns = 0, prepare_ns = 0, pause_ns = 0, verify_ns = 0;
  std::uint64_t declared_peak_device_bytes = 0, measured_peak_device_bytes = 0;
  std::uint64_t declared_peak_host_bytes = 0, measured_peak_host_bytes = 0;
  std::uint64_t receipts_expected = 0, receipts_complete = 0;
  // Against the census at the beginning: slots at another address (must be 0), and slots whose
  // digest this reload has changed.
  std::uint64_t slots_moved = 0, slots_changed = 0;
  std::vector<std::string> warnings;
  std::string error;  // why it rolled back or poisoned; empty otherwise
};

class Transaction {
 public:
  // Errors: kFailedPrecondition when the plan was made for another epoch; kCancelled,
  // kDeadlineExceeded.
  static Result<std::unique_ptr<Transaction>> begin(storage::Registry& registry, ReloadPlan plan,
                                                    const TransactionOptions& options);
  // Rolls back if prepared, staging or planned.
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  TransactionState state() const { return state_.load(std::memory_order_acquire); }
  storage::TransactionId id() const { return id_; }

  // Allocates poisoned backing for every versioned arena and fills it: what is preserved, copies,
  // constants, then derivations in order. Any error rolls back: nothing live was touched. `stream`
  // runs the derivations. Values are checked as they arrive, because transient inputs are gone
  // afterwards: an e8m0 scale of 0xFF or a non-finite float is kCorrupt naming tensor and element.
  // With kStream nothing is read yet: source and stream must live until the commit has ended.
  // Errors: those of run_stage, kResourceExhausted.
  Status stage(Source& source, device::Stream& stream);

  // Instead of stage, for a source that pushes: fragments in any order, then finish_staging.
  // A fragment that is refused changes nothing, and the transaction goes on: kFailedPrecondition
  // for one of another transaction (naming both ids), kNotFound for a tensor that the plan has not,
  // kMismatch for bytes that do not fit, kCorrupt for bytes that came before. Everything else
  // (an insane value, a cancel, a derivation that fails) rolls back. One thread at a time.
  Status put(const Fragment& fragment, std::span<const std::byte> bytes, device::Stream& stream);
  // Runs what waits for its inputs. Errors: kCorrupt naming what never came; kFailedPrecondition.
  Status finish_staging(device::Stream& stream);

  // Every tensor arrived once and whole, every byte of every versioned slot was written for this
  // generation (derived slots in dependency order), digests taken. With kStream: allocates the undo
  // image if asked for. An error rolls back. Errors: kCorrupt naming tensor or slot and its first
  // hole, kCancelled, kDeadlineExceeded, kFailedPrecondition.
  Status prepare();
  // The quiet moment: exchanges, copies or streams, publishes the next epoch and the label.
  // Allocates nothing, reads no file; kStream is the exception, and reads the whole source. On an
  // error the registry is as before (kRolledBack), or kPoisoned when it cannot be.
  Status commit();
  // Compares the live bytes with the staged digests, and the padding with zero; then frees the
  // previous backing. On a mismatch nothing is freed: call roll_back; without a way back (kStream
  // and no undo image) it is poisoned. Any thread. Errors: kCorrupt, kPoisoned naming the slots.
  Status verify();
  // After a commit whose previous bytes are still held: puts them back. Errors:
  // kFailedPrecondition.
  Status roll_back();
  // Before commit: drops what was staged. Idempotent.
  void abort(const Error& why);

  // Another label than the options gave; before prepare, on the staging thread.
  void set_label(const std::string& label);

  const ReloadPlan& plan() const { return plan_; }
  TransactionReport report() const;

 private:
  struct Impl;
  Transaction(storage::Registry& registry, ReloadPlan plan, const TransactionOptions& options);
  Status open_staging();
  Status take_stamps(Staging& staging);
  Status protect_staged();
  Status run_put(const Fragment& fragment, std::span<const std::byte> bytes,
                 device::Stream& stream);
  void end_staging(std::int64_t start_ns);
  Status stream_into_live(Staging& live);
  std::optional<CommitFailure> commit_stream();
  void publish();
  // Ends as rolled back or poisoned; gives the error that the caller returns.
  Error end_failed_commit(const Error& error, bool restored);
  // The drill's fault, after the exchange.
  Status inject_rebind();
  Status compare_live() const;
  void note_census();

  storage::Registry& registry_;
  ReloadPlan plan_;
  TransactionOptions options_;
  storage::TransactionId id_;
  std::atomic<TransactionState> state_{TransactionState::kPlanned};
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::reload
