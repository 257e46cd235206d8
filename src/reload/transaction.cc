#include "reload/transaction.h"

#include "base/assert.h"
#include "base/error.h"
#include "storage/live_bytes.h"
#include "reload/faults.h"
#include "reload/transaction_impl.h"

namespace holdfast::reload {
namespace {

using State = TransactionState;

// How many slots a failed verification names before it counts the rest.
constexpr std::size_t kNamedSlots = 3;

bool before_commit(State state) {
  return state == State::kPlanned || state == State::kStaging || state == State::kPrepared;
}

}  // namespace

Error wrong_state(std::string_view call, State state, std::string_view wanted) {
  return make_error(ErrorCode::kFailedPrecondition, "{} of a reload that is {}, not {}", call,
                    transaction_state_name(state), wanted);
}

std::string_view transaction_state_name(TransactionState state) {
  switch (state) {
    case State::kPlanned: return "planned";
    case State::kStaging: return "staging";
    case State::kPrepared: return "prepared";
    case State::kApplying: return "applying";
    case State::kCommitted: return "committed";
    case State::kRolledBack: return "rolled_back";
    case State::kPoisoned: return "poisoned";
  }
  return "unknown";
}

std::optional<CommitFailure> Transaction::Impl::apply(CommitStrategy strategy) {
  switch (strategy) {
    case CommitStrategy::kRemap: return exchange_all(staging->arenas());
    case CommitStrategy::kCopy: return swap_all(staging->arenas(), swap_block);
    case CommitStrategy::kStream: break;
  }
  return CommitFailure{Error(ErrorCode::kUnsupported, "nothing is staged to be exchanged"), true};
}

void Transaction::Impl::note_error(const Error& error) {
  const std::lock_guard lock(mutex);
  report.error = error.to_string();
}

Transaction::Transaction(storage::Registry& registry, ReloadPlan plan,
                         const TransactionOptions& options)
    : registry_(registry),
      plan_(std::move(plan)),
      options_(options),
      id_(options.id.value != 0 ? options.id : registry.next_transaction_id()),
      impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<Transaction>> Transaction::begin(storage::Registry& registry,
                                                        ReloadPlan plan,
                                                        const TransactionOptions& options) {
  HF_ASSERT(options.clock != nullptr, "a transaction needs a clock");
  if (!registry.sealed()) {
    return make_error(ErrorCode::kFailedPrecondition, "a reload needs a sealed registry");
  }
  if (registry.epoch() != plan.from_epoch) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "the plan replaces epoch {}, the live epoch is {}: make the plan anew",
                      plan.from_epoch.value, registry.epoch().value);
  }
  std::unique_ptr<Transaction> transaction(new Transaction(registry, std::move(plan), options));
  Impl& impl = *transaction->impl_;
  impl.guard = {.source = transaction->plan_.source,
                .cancel = options.cancel,
                .clock = options.clock,
                .deadline_ns = options.deadline_ns};
  HF_TRY(impl.guard.check("beginning"));
  // Before the first load there are no live weights that a fault could keep.
  if (transaction->plan_.from_epoch.value > 0) {
    HF_ASSIGN(impl.stale, stale_slots(registry, options.fault.kind));
    impl.reordered = reordered_by(registry, options.fault.kind);
    impl.fault = options.fault.kind;
  }
  impl.receipts = ReceiptBook(registry, transaction->plan_);
  const ReloadPlan& kept = transaction->plan_;
  impl.report.source = kept.source;
  impl.report.strategy = kept.strategy;
  impl.report.from_epoch = kept.from_epoch.value;
  impl.report.to_epoch = kept.from_epoch.value;
  impl.report.source_bytes = kept.source_bytes;
  impl.report.versioned_bytes = kept.versioned_bytes;
  impl.report.declared_peak_device_bytes = kept.peak_device_bytes;
  impl.report.declared_peak_host_bytes = kept.peak_host_bytes;
  impl.report.preserved_bytes = kept.preserved_bytes;
  impl.report.id = transaction->id_.value;
  impl.report.scope = to_text(kept.scope);
  impl.report.label = options.label;
  impl.report.warnings = kept.notes;
  impl.published = {.label = options.label, .constants = kept.constant_changes};
  for (const storage::Slot& slot : registry.slots()) impl.addresses.push_back(slot.range.begin);
  impl.report.receipts_expected = impl.receipts.expected_count();
  return transaction;
}

Transaction::~Transaction() {
  abort(Error(ErrorCode::kCancelled, "the transaction ended before its commit"));
}

Status Transaction::commit() {
  if (state() != State::kPrepared) return wrong_state("commit", state(), "prepared");
  if (registry_.epoch() != plan_.from_epoch) {
    const Error error = make_error(ErrorCode::kFailedPrecondition,
                                   "staged over epoch {}, the live epoch is {} by now",
                                   plan_.from_epoch.value, registry_.epoch().value);
    abort(error);
    return error;
  }
  if (const Status status = impl_->guard.check("committing"); !status.ok()) {
    abort(status.error());
    return status;
  }
  const std::int64_t start_ns = options_.clock->now_ns();
  state_.store(State::kApplying, std::memory_order_release);
  impl_->was_poisoned = registry_.poisoned();
  registry_.begin_apply();
  const auto failure = plan_.strategy == CommitStrategy::kStream ? commit_stream()
                                                                 : impl_->apply(plan_.strategy);
  if (failure.has_value()) return end_failed_commit(failure->error, failure->restored);
  publish();
  state_.store(State::kCommitted, std::memory_order_release);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.pause_ns = options_.clock->now_ns() - start_ns;
    impl_->report.to_epoch = registry_.epoch().value;
  }
  note_census();
  return inject_rebind();
}

void Transaction::publish() {
  for (const storage::SlotStamp& stamp : impl_->stamps) {
    const auto& digest = registry_.slot(stamp.slot).digest;
    if (digest.has_value()) {
      impl_->previous_stamps.push_back({.slot = stamp.slot, .digest = *digest});
    }
  }
  impl_->to_epoch = registry_.next_epoch();
  registry_.publish(impl_->to_epoch, impl_->stamps, impl_->published);
}

void Transaction::note_census() {
  const std::lock_guard lock(impl_->mutex);
  impl_->report.slots_moved = 0;
  for (const storage::Slot& slot : registry_.slots()) {
    if (slot.range.begin != impl_->addresses[slot.id.index()]) ++impl_->report.slots_moved;
  }
}

Error Transaction::end_failed_commit(const Error& error, bool restored) {
  impl_->note_error(error);
  impl_->staging.reset();
  registry_.end_apply(restored && !impl_->was_poisoned);
  {
    const std::lock_guard lock(impl_->mutex);
    if (restored) impl_->report.slots_changed = 0;
  }
  state_.store(restored ? State::kRolledBack : State::kPoisoned, std::memory_order_release);
  if (restored) return error;
  return make_error(ErrorCode::kPoisoned,
                    "{}; what was live could not be put back: the weights are a mixture until a "
                    "complete reload succeeds",
                    error.to_string());
}

Status Transaction::inject_rebind() {
  const std::string_view arena = rebound_arena(options_.fault.kind);
  if (arena.empty() || plan_.from_epoch.value == 0) return {};
  // Such an engine keeps nothing to roll back to, and the arena that was exchanged goes away.
  impl_->staging.reset();
  const Status status = registry_.inject_rebind(arena);
  if (!status.ok()) return end_failed_commit(status.error(), false);
  note_census();
  return {};
}

Status Transaction::verify() {
  if (state() != State::kCommitted) return wrong_state("verify", state(), "committed");
  const std::int64_t start_ns = options_.clock->now_ns();
  const Status status = compare_live();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.verify_ns = options_.clock->now_ns() - start_ns;
  }
  if (!status.ok()) {
    impl_->note_error(status.error());
    if (impl_->staging != nullptr || plan_.strategy != CommitStrategy::kStream) return status;
    registry_.poison();
    state_.store(State::kPoisoned, std::memory_order_release);
    return make_error(ErrorCode::kPoisoned, "{}; stream kept no undo image",
                      status.error().to_string());
  }
  impl_->staging.reset();
  return {};
}

Status Transaction::compare_live() const {
  std::vector<std::string_view> changed;
  std::size_t changed_count = 0;
  std::vector<storage::SlotId> ids;
  for (const storage::SlotStamp& stamp : impl_->stamps) ids.push_back(stamp.slot);
  HF_ASSIGN(const auto found, storage::live_digests(registry_, ids));
  for (std::size_t i = 0; i < found.size(); ++i) {
    const storage::SlotStamp& stamp = impl_->stamps[i];
    if (found[i] == stamp.digest) continue;
    if (changed_count++ < kNamedSlots) changed.push_back(registry_.slot(stamp.slot).spec.name);
  }
  if (changed_count > 0) {
    return make_error(ErrorCode::kCorrupt,
                      "epoch {}: {} of {} slots differ from what was staged ({}{}); roll back",
                      registry_.epoch().value, changed_count, impl_->stamps.size(),
                      fmt::join(changed, ", "), changed_count > changed.size() ? ", ..." : "");
  }
  if (impl_->staging != nullptr) return impl_->staging->check_live_padding();
  if (plan_.strategy != CommitStrategy::kStream) return {};
  // A stream that kept no image has no staging that knows where padding lies.
  return Staging::create_live(registry_, registry_.epoch().value)->check_live_padding();
}

Status Transaction::roll_back() {
  if (state() != State::kCommitted) return wrong_state("roll_back", state(), "committed");
  if (impl_->staging == nullptr) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "roll_back to epoch {}: its bytes are gone since the commit was verified, "
                      "or were never kept (stream without an undo image)",
                      plan_.from_epoch.value);
  }
  if (registry_.epoch() != impl_->to_epoch) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "roll_back of epoch {}: the live epoch is {} by now", impl_->to_epoch.value,
                      registry_.epoch().value);
  }
  state_.store(State::kApplying, std::memory_order_release);
  registry_.begin_apply();
  if (plan_.strategy == CommitStrategy::kStream) {
    if (!restore_image(*impl_->staging)) {
      return end_failed_commit(
          Error(ErrorCode::kDevice, "the undo image could not be written back"), false);
    }
  } else if (const auto failure = impl_->apply(plan_.strategy); failure.has_value()) {
    if (!failure->restored) return end_failed_commit(failure->error, false);
    // The commit still stands, and so does the chance to roll it back.
    registry_.end_apply(true);
    state_.store(State::kCommitted, std::memory_order_release);
    return failure->error;
  }
  registry_.publish(plan_.from_epoch, impl_->previous_stamps, impl_->published);
  // The weights before these were a mixture, and are again.
  if (impl_->was_poisoned) registry_.poison();
  impl_->staging.reset();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.to_epoch = plan_.from_epoch.value;
    impl_->report.slots_changed = 0;
    if (impl_->report.error.empty()) impl_->report.error = "rolled back on request";
  }
  state_.store(State::kRolledBack, std::memory_order_release);
  return {};
}

void Transaction::abort(const Error& why) {
  if (!before_commit(state())) return;
  impl_->note_error(why);
  impl_->fragments.reset();
  impl_->staging.reset();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.slots_changed = 0;
  }
  state_.store(State::kRolledBack, std::memory_order_release);
}

TransactionReport Transaction::report() const {
  const std::lock_guard lock(impl_->mutex);
  TransactionReport report = impl_->report;
  report.state = state();
  return report;
}

}  // namespace holdfast::reload
