// Transaction: begin -> stage -> prepare -> commit, or abort. A weight update that commits at once
// or changes nothing. stage and prepare may run on another thread while the engine serves; commit,
// roll_back and abort-after-commit belong to the engine thread in the quiet moment between steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "device/arena.h"
#include "reload/plan.h"
#include "reload/source.h"
#include "storage/registry.h"

namespace holdfast::reload {

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
  };
  Kind kind = Kind::kNone;
};
std::string_view fault_kind_name(InjectedFault::Kind kind);  // "rebind-constants", ...
std::optional<InjectedFault::Kind> fault_kind_from_name(std::string_view name);

struct TransactionOptions {
  const base::Clock* clock = nullptr;  // must outlive the transaction; required
  InjectedFault fault;
  // Polled between chunks of staging; true means stop with kCancelled. May be null.
  const std::atomic<bool>* cancel = nullptr;
};

struct TransactionReport {
  std::string source;
  TransactionState state = TransactionState::kPlanned;
  CommitStrategy strategy = CommitStrategy::kRemap;
  std::uint64_t from_epoch = 0, to_epoch = 0;
  std::uint64_t source_bytes = 0, versioned_bytes = 0;
  std::int64_t stage_ns = 0, prepare_ns = 0, pause_ns = 0, verify_ns = 0;
  std::uint64_t declared_peak_device_bytes = 0, measured_peak_device_bytes = 0;
  std::uint64_t receipts_expected = 0, receipts_complete = 0;
  std::string error;  // why it rolled back or poisoned; empty otherwise
};

class Transaction {
 public:
  // Errors: kFailedPrecondition when the plan was made for another epoch.
  static Result<std::unique_ptr<Transaction>> begin(storage::Registry& registry, ReloadPlan plan,
                                                    const TransactionOptions& options);
  // Rolls back if prepared, staging or planned.
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  TransactionState state() const { return state_.load(std::memory_order_acquire); }

  // Allocates poisoned backing for every versioned arena and fills it: copies, then constants, then
  // derivations in order. Any error rolls back: nothing live was touched. `stream` runs the
  // derivations. Values are checked as they arrive, because transient inputs are gone afterwards:
  // an e8m0 scale of 0xFF or a non-finite float is kCorrupt naming tensor and element. Errors:
  // kResourceExhausted, kIo, kCorrupt, kMismatch (a source that the plan was not made from),
  // kCancelled, whatever a derivation says.
  Status stage(Source& source, device::Stream& stream);
  // Every tensor arrived once and whole, every byte of every versioned slot was written for this
  // generation (derived slots in dependency order), digests taken. An error rolls back. Errors:
  // kCorrupt naming tensor or slot and its first hole, kCancelled, kFailedPrecondition.
  Status prepare();
  // The quiet moment: exchanges or copies, publishes epoch + 1. Allocates nothing, reads no file.
  // On an error the registry is as before (kRolledBack), or kPoisoned when it cannot be.
  Status commit();
  // Compares the live bytes with the staged digests, and the padding with zero; then frees the
  // previous backing. On a mismatch nothing is freed: call roll_back. Any thread. Errors: kCorrupt
  // naming the slots.
  Status verify();
  // After a commit whose previous backing is still held: puts it back. Errors: kFailedPrecondition.
  Status roll_back();
  // Before commit: drops what was staged. Idempotent.
  void abort(const Error& why);

  const ReloadPlan& plan() const { return plan_; }
  TransactionReport report() const;

 private:
  struct Impl;
  Transaction(storage::Registry& registry, ReloadPlan plan, const TransactionOptions& options);
  // Ends as rolled back or poisoned; gives the error that the caller returns.
  Error end_failed_commit(const Error& error, bool restored);
  // The drill's fault, after the exchange.
  Status inject_rebind();
  Status compare_live() const;

  storage::Registry& registry_;
  ReloadPlan plan_;
  TransactionOptions options_;
  std::atomic<TransactionState> state_{TransactionState::kPlanned};
  std::unique_ptr<Impl> impl_;
};

}  // namespace holdfast::reload
