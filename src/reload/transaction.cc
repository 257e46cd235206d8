#include "reload/transaction.h"

#include <cstring>
#include <mutex>

#include "base/assert.h"
#include "base/error.h"
#include "reload/commit.h"
#include "reload/faults.h"
#include "reload/receipts.h"
#include "reload/stager.h"
#include "reload/staging.h"

namespace holdfast::reload {
namespace {

using State = TransactionState;

// How many slots a failed verification names before it counts the rest.
constexpr std::size_t kNamedSlots = 3;

bool before_commit(State state) {
  return state == State::kPlanned || state == State::kStaging || state == State::kPrepared;
}

Error wrong_state(std::string_view call, State state, std::string_view wanted) {
  return make_error(ErrorCode::kFailedPrecondition, "{} of a reload that is {}, not {}", call,
                    transaction_state_name(state), wanted);
}

}  // namespace

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

struct Transaction::Impl {
  std::optional<CommitFailure> apply(CommitStrategy strategy);
  void inject_stale(const storage::Registry& registry);
  void note_receipts();
  void note_error(const Error& error);

  ReceiptBook receipts;
  // After a commit it holds the previous content, until verify.
  std::unique_ptr<Staging> staging;
  bool staged = false;  // stage has finished
  std::vector<std::byte> swap_block;
  std::vector<storage::SlotStamp> stamps;
  std::vector<storage::SlotStamp> previous_stamps;
  std::vector<storage::SlotId> stale;  // by an injected fault
  mutable std::mutex mutex;            // guards report, which any thread may ask for
  TransactionReport report;
};

// By the same call a second time what it did is undone.
std::optional<CommitFailure> Transaction::Impl::apply(CommitStrategy strategy) {
  switch (strategy) {
    case CommitStrategy::kRemap: return exchange_all(staging->arenas());
    case CommitStrategy::kCopy: return swap_all(staging->arenas(), swap_block);
  }
  return CommitFailure{Error(ErrorCode::kUnsupported, "unknown commit strategy"), true};
}

void Transaction::Impl::inject_stale(const storage::Registry& registry) {
  for (const storage::SlotId id : stale) {
    const auto live = registry.view(id).const_span();
    std::memcpy(staging->bytes(id).data(), live.data(), live.size());
  }
}

void Transaction::Impl::note_receipts() {
  const std::lock_guard lock(mutex);
  report.receipts_complete = receipts.complete_count();
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
      impl_(std::make_unique<Impl>()) {}

Result<std::unique_ptr<Transaction>> Transaction::begin(storage::Registry& registry,
                                                        ReloadPlan plan,
                                                        const TransactionOptions& options) {
  HF_ASSERT(options.clock != nullptr, "a transaction needs a clock");
  if (!registry.sealed()) {
    return make_error(ErrorCode::kFailedPrecondition, "a reload needs a sealed registry");
  }
  if (!registry.device().host_addressable()) {
    return make_error(ErrorCode::kUnsupported,
                      "reload on {}: staging writes through host addresses",
                      registry.device().name());
  }
  if (registry.epoch() != plan.from_epoch) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "the plan replaces epoch {}, the live epoch is {}: make the plan anew",
                      plan.from_epoch.value, registry.epoch().value);
  }
  std::unique_ptr<Transaction> transaction(new Transaction(registry, std::move(plan), options));
  Impl& impl = *transaction->impl_;
  // Before the first load there are no live weights that a fault could keep.
  if (transaction->plan_.from_epoch.value > 0) {
    HF_ASSIGN(impl.stale, stale_slots(registry, options.fault.kind));
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
  impl.report.receipts_expected = impl.receipts.expected_count();
  return transaction;
}

Transaction::~Transaction() {
  abort(Error(ErrorCode::kCancelled, "the transaction ended before its commit"));
}

Status Transaction::stage(Source& source, device::Stream& stream) {
  if (state() != State::kPlanned) return wrong_state("stage", state(), "planned");
  state_.store(State::kStaging, std::memory_order_release);
  const std::int64_t start_ns = options_.clock->now_ns();
  device::Device& device = registry_.device();
  const std::size_t live_bytes = device.usage().live_bytes;
  device.reset_peak();

  const auto run = [&]() -> Status {
    HF_ASSIGN(impl_->staging, Staging::create(registry_, plan_.from_epoch.value + 1));
    return run_stage({.registry = registry_,
                      .plan = plan_,
                      .source = source,
                      .stream = stream,
                      .staging = *impl_->staging,
                      .receipts = impl_->receipts,
                      .cancel = options_.cancel});
  };
  const Status status = run();
  impl_->note_receipts();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.stage_ns = options_.clock->now_ns() - start_ns;
    impl_->report.measured_peak_device_bytes = device.usage().peak_bytes - live_bytes;
  }
  if (!status.ok()) {
    abort(status.error());
    return status;
  }
  impl_->inject_stale(registry_);
  impl_->staged = true;
  return {};
}

Status Transaction::prepare() {
  if (state() != State::kStaging || !impl_->staged) {
    return wrong_state("prepare", state(), "staged");
  }
  const std::int64_t start_ns = options_.clock->now_ns();
  const auto run = [&]() -> Status {
    HF_TRY(impl_->receipts.check_complete());
    HF_TRY(impl_->staging->check_complete());
    const auto slots = impl_->staging->slots();
    impl_->stamps.reserve(slots.size());
    for (const storage::SlotId id : slots) {
      if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
        return make_error(ErrorCode::kCancelled, "cancelled while preparing {}", plan_.source);
      }
      impl_->stamps.push_back({.slot = id, .digest = base::digest_of(impl_->staging->bytes(id))});
    }
    return {};
  };
  const Status status = run();
  // What commit needs is allocated here: commit allocates nothing.
  impl_->previous_stamps.reserve(impl_->stamps.size());
  if (plan_.strategy == CommitStrategy::kCopy) impl_->swap_block.resize(kSwapBlockBytes);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.prepare_ns = options_.clock->now_ns() - start_ns;
  }
  if (!status.ok()) {
    abort(status.error());
    return status;
  }
  state_.store(State::kPrepared, std::memory_order_release);
  return {};
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
  const std::int64_t start_ns = options_.clock->now_ns();
  state_.store(State::kApplying, std::memory_order_release);
  if (const auto failure = impl_->apply(plan_.strategy); failure.has_value()) {
    return end_failed_commit(failure->error, failure->restored);
  }
  for (const storage::SlotStamp& stamp : impl_->stamps) {
    const auto& digest = registry_.slot(stamp.slot).digest;
    if (digest.has_value()) {
      impl_->previous_stamps.push_back({.slot = stamp.slot, .digest = *digest});
    }
  }
  registry_.publish(storage::Epoch{plan_.from_epoch.value + 1}, impl_->stamps);
  state_.store(State::kCommitted, std::memory_order_release);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.pause_ns = options_.clock->now_ns() - start_ns;
    impl_->report.to_epoch = plan_.from_epoch.value + 1;
  }
  return inject_rebind();
}

Error Transaction::end_failed_commit(const Error& error, bool restored) {
  impl_->note_error(error);
  impl_->staging.reset();
  state_.store(restored ? State::kRolledBack : State::kPoisoned, std::memory_order_release);
  if (restored) return error;
  return make_error(ErrorCode::kPoisoned,
                    "{}; what was live could not be put back: the weights are a mixture until a "
                    "complete reload succeeds",
                    error.to_string());
}

Status Transaction::inject_rebind() {
  const bool asked = options_.fault.kind == InjectedFault::Kind::kRebindConstants;
  if (!asked || plan_.from_epoch.value == 0) return {};
  // Such an engine keeps nothing to roll back to, and the arena that was exchanged goes away.
  impl_->staging.reset();
  const Status status = registry_.inject_rebind(kConstantsArena);
  if (!status.ok()) return end_failed_commit(status.error(), false);
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
    return status;
  }
  impl_->staging.reset();
  return {};
}

Status Transaction::compare_live() const {
  std::vector<std::string_view> changed;
  std::size_t changed_count = 0;
  for (const storage::SlotStamp& stamp : impl_->stamps) {
    if (base::digest_of(registry_.view(stamp.slot).const_span()) == stamp.digest) continue;
    if (changed_count++ < kNamedSlots) changed.push_back(registry_.slot(stamp.slot).spec.name);
  }
  if (changed_count > 0) {
    return make_error(ErrorCode::kCorrupt,
                      "epoch {}: {} of {} slots differ from what was staged ({}{}); roll back",
                      registry_.epoch().value, changed_count, impl_->stamps.size(),
                      fmt::join(changed, ", "), changed_count > changed.size() ? ", ..." : "");
  }
  if (impl_->staging == nullptr) return {};
  return impl_->staging->check_live_padding();
}

Status Transaction::roll_back() {
  if (state() != State::kCommitted) return wrong_state("roll_back", state(), "committed");
  if (impl_->staging == nullptr) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "roll_back to epoch {}: its bytes are gone since the commit was verified",
                      plan_.from_epoch.value);
  }
  if (registry_.epoch().value != plan_.from_epoch.value + 1) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "roll_back of epoch {}: the live epoch is {} by now",
                      plan_.from_epoch.value + 1, registry_.epoch().value);
  }
  state_.store(State::kApplying, std::memory_order_release);
  if (const auto failure = impl_->apply(plan_.strategy); failure.has_value()) {
    if (!failure->restored) return end_failed_commit(failure->error, false);
    // The commit still stands, and so does the chance to roll it back.
    state_.store(State::kCommitted, std::memory_order_release);
    return failure->error;
  }
  registry_.publish(plan_.from_epoch, impl_->previous_stamps);
  impl_->staging.reset();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.to_epoch = plan_.from_epoch.value;
    if (impl_->report.error.empty()) impl_->report.error = "rolled back on request";
  }
  state_.store(State::kRolledBack, std::memory_order_release);
  return {};
}

void Transaction::abort(const Error& why) {
  if (!before_commit(state())) return;
  impl_->note_error(why);
  impl_->staging.reset();
  state_.store(State::kRolledBack, std::memory_order_release);
}

TransactionReport Transaction::report() const {
  const std::lock_guard lock(impl_->mutex);
  TransactionReport report = impl_->report;
  report.state = state();
  return report;
}

}  // namespace holdfast::reload
