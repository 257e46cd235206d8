// Before the commit: stage, put, finish_staging, prepare.
#include <cstring>

#include "base/assert.h"
#include "base/error.h"
#include "reload/faults.h"
#include "reload/transaction_impl.h"

namespace holdfast::reload {

using State = TransactionState;

Status Transaction::Impl::inject_order(Staging& into) const {
  for (const storage::Derivation* derivation : reordered) {
    const storage::SlotId id = derivation->outputs.front();
    std::vector<std::byte> buffer;
    HF_ASSIGN(const auto held, into.get(into.view(id), buffer));
    std::vector<std::byte> bytes(held.begin(), held.end());
    misapply(*derivation, fault, bytes);
    HF_TRY(into.put(id, 0, bytes));
    into.rewritten(id, 0);
  }
  return {};
}

Status Transaction::Impl::inject_stale() {
  if (stale.empty() && reordered.empty()) return {};
  HF_TRY(staging->finish_writes());
  HF_TRY(inject_order(*staging));
  for (const storage::SlotId id : stale) {
    HF_TRY(staging->put_live(id, 0, staging->view(id).bytes()));
    staging->rewritten(id, 0);
  }
  return {};
}

void Transaction::Impl::note_receipts() {
  const std::lock_guard lock(mutex);
  report.receipts_complete = receipts.complete_count();
}

// Of the stamps: how many are not what the live slots were stamped with, and the warnings that
// need to know.
void Transaction::Impl::note_log(const storage::Registry& registry, const ReloadPlan& plan) {
  const std::lock_guard lock(mutex);
  report.measured_peak_host_bytes = log.peak_host_bytes + swap_block.size();
  std::vector<bool> changed(registry.slots().size());
  std::uint64_t changed_count = 0;
  for (const storage::SlotStamp& stamp : stamps) {
    if (registry.slot(stamp.slot).digest == stamp.digest) continue;
    changed[stamp.slot.index()] = true;
    ++changed_count;
  }
  report.slots_changed = changed_count;
  const auto differs = [&](storage::ParameterId id) {
    if (registry.parameters()[id.index()].slot.has_value()) return true;
    for (const DeriveStep& step : plan.derivations) {
      const storage::Derivation& of = registry.derivations()[step.derivation_index];
      for (const storage::DeriveInput& input : of.inputs) {
        const auto* parameter = std::get_if<storage::ParameterId>(&input);
        if (parameter == nullptr || *parameter != id) continue;
        for (const storage::SlotId output : of.outputs) {
          if (changed[output.index()]) return true;
        }
      }
    }
    return false;
  };
  for (const storage::ParameterId id : log.zeros) {
    if (!differs(id)) continue;
    report.warnings.push_back(
        fmt::format("tensor {} is all zero, and what it replaces was not",
                    registry.parameters()[id.index()].name));
  }
}

// Fresh backing, and the state that says so.
Status Transaction::open_staging() {
  state_.store(State::kStaging, std::memory_order_release);
  device::Device& device = registry_.device();
  impl_->live_bytes_before = device.usage().live_bytes;
  device.reset_peak();
  HF_TRY(impl_->guard.check("staging"));
  if (plan_.strategy == CommitStrategy::kStream) return {};
  HF_ASSIGN(impl_->staging, Staging::create(registry_, registry_.next_epoch().value));
  return {};
}

void Transaction::end_staging(std::int64_t start_ns) {
  impl_->note_receipts();
  const std::lock_guard lock(impl_->mutex);
  impl_->report.stage_ns += options_.clock->now_ns() - start_ns;
  impl_->report.measured_peak_host_bytes = impl_->log.peak_host_bytes;
  impl_->report.measured_peak_device_bytes =
      registry_.device().usage().peak_bytes - impl_->live_bytes_before;
}

Status Transaction::stage(Source& source, device::Stream& stream) {
  if (state() != State::kPlanned) return wrong_state("stage", state(), "planned");
  const std::int64_t start_ns = options_.clock->now_ns();
  const auto run = [&]() -> Status {
    HF_TRY(open_staging());
    if (plan_.strategy == CommitStrategy::kStream) {
      impl_->stream_input = {.source = &source, .stream = &stream};
      return check_source(registry_, plan_, source);
    }
    HF_TRY(run_stage({.registry = registry_,
                      .plan = plan_,
                      .source = source,
                      .stream = stream,
                      .staging = *impl_->staging,
                      .receipts = impl_->receipts,
                      .guard = impl_->guard,
                      .log = impl_->log}));
    return impl_->inject_stale();
  };
  const Status status = run();
  end_staging(start_ns);
  if (!status.ok()) {
    abort(status.error());
    return status;
  }
  impl_->staged = true;
  return {};
}

Status Transaction::run_put(const Fragment& fragment, std::span<const std::byte> bytes,
                            device::Stream& stream) {
  HF_TRY(impl_->guard.check("staging"));
  HF_ASSIGN(const PlacedFragment placed, impl_->fragments->place(fragment, bytes));
  auto status = impl_->fragments->take(placed, bytes, stream);
  if (!status.ok()) abort(status.error());
  return status;
}

Status Transaction::put(const Fragment& fragment, std::span<const std::byte> bytes,
                        device::Stream& stream) {
  if (fragment.transaction != id_) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a fragment of {} belongs to transaction {}, this is transaction {}: it came "
                      "late",
                      fragment.tensor, fragment.transaction.value, id_.value);
  }
  const bool first = state() == State::kPlanned;
  if (!first && (state() != State::kStaging || impl_->fragments == nullptr || impl_->staged)) {
    return wrong_state("put", state(), "planned or taking fragments");
  }
  if (plan_.strategy == CommitStrategy::kStream) {
    return make_error(ErrorCode::kUnsupported,
                      "a source that pushes needs staging: plan it with remap or copy, not stream");
  }
  const std::int64_t start_ns = options_.clock->now_ns();
  if (first) {
    const auto open = [&]() -> Status {
      HF_TRY(open_staging());
      impl_->fragments = std::make_unique<FragmentStager>(
          FragmentJob{.registry = registry_,
                      .plan = plan_,
                      .staging = *impl_->staging,
                      .receipts = impl_->receipts,
                      .guard = impl_->guard,
                      .log = impl_->log});
      return impl_->fragments->start();
    };
    const Status opened = open();
    if (!opened.ok()) {
      end_staging(start_ns);
      abort(opened.error());
      return opened;
    }
    const std::lock_guard lock(impl_->mutex);
    impl_->report.declared_peak_host_bytes =
        plan_.peak_host_bytes_pushed +
        (plan_.strategy == CommitStrategy::kCopy ? kSwapBlockBytes : 0);
  }
  if (const Status guarded = impl_->guard.check("staging"); !guarded.ok()) {
    abort(guarded.error());
    return guarded;
  }
  const Status status = run_put(fragment, bytes, stream);
  end_staging(start_ns);
  return status;
}

Status Transaction::finish_staging(device::Stream& stream) {
  if (state() != State::kStaging || impl_->fragments == nullptr || impl_->staged) {
    return wrong_state("finish_staging", state(), "taking fragments");
  }
  const std::int64_t start_ns = options_.clock->now_ns();
  Status status = impl_->fragments->finish(stream);
  if (status.ok()) status = impl_->inject_stale();
  end_staging(start_ns);
  if (!status.ok()) {
    abort(status.error());
    return status;
  }
  impl_->fragments.reset();
  impl_->staged = true;
  return {};
}

Status Transaction::take_stamps(Staging& staging) {
  HF_TRY(impl_->receipts.check_complete());
  HF_TRY(staging.check_complete());
  HF_TRY(staging.take_digests());
  for (const storage::SlotId id : staging.slots()) {
    HF_TRY(impl_->guard.check("preparing"));
    impl_->stamps.push_back({.slot = id, .digest = staging.digest(id)});
  }
  // A slot that is preserved whole must end with the digest that it had.
  for (const PreserveStep& step : plan_.preserved) {
    const storage::Slot& slot = registry_.slot(step.slot);
    if (step.bytes != slot.range.bytes) continue;
    const base::Digest staged = staging.digest(step.slot);
    if (slot.digest.has_value() && *slot.digest == staged) continue;
    return make_error(ErrorCode::kCorrupt, "slot {} was to be preserved: digest {} became {}",
                      slot.spec.name, slot.digest ? slot.digest->to_hex() : "none",
                      staged.to_hex());
  }
  return {};
}

// What an exchange would do in the quiet moment.
Status Transaction::protect_staged() {
  if (plan_.strategy != CommitStrategy::kRemap) return {};
  for (StagedArena& staged : impl_->staging->arenas()) {
    HF_TRY(staged.backing.protect(staged.arena->protection()));
  }
  return {};
}

void Transaction::set_label(const std::string& label) {
  HF_ASSERT(state() == State::kPlanned || state() == State::kStaging, "prepared with its label");
  options_.label = label;
  impl_->published.label = label;
  const std::lock_guard lock(impl_->mutex);
  impl_->report.label = label;
}

Status Transaction::prepare() {
  if (state() != State::kStaging || !impl_->staged) {
    return wrong_state("prepare", state(), "staged");
  }
  const std::int64_t start_ns = options_.clock->now_ns();
  const auto run = [&]() -> Status {
    impl_->stamps.reserve(registry_.slots().size());
    impl_->previous_stamps.reserve(registry_.slots().size());
    HF_TRY(impl_->guard.check("preparing"));
    if (plan_.strategy != CommitStrategy::kStream) {
      HF_TRY(take_stamps(*impl_->staging));
      return protect_staged();
    }
    if (plan_.undo == UndoPolicy::kNone) return {};
    HF_ASSIGN(impl_->staging, Staging::create(registry_, registry_.next_epoch().value));
    for (StagedArena& staged : impl_->staging->arenas()) {
      HF_TRY(impl_->guard.check("preparing"));
      const device::Memory live = staged.arena->memory();
      HF_TRY(registry_.device().read(staged.backing.memory().address, live.address, live.bytes));
    }
    return {};
  };
  const Status status = run();
  // What commit needs is allocated here: commit allocates nothing.
  if (plan_.strategy == CommitStrategy::kCopy) impl_->swap_block.resize(kSwapBlockBytes);
  if (plan_.strategy != CommitStrategy::kStream) impl_->note_log(registry_, plan_);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->report.prepare_ns = options_.clock->now_ns() - start_ns;
    impl_->report.measured_peak_device_bytes =
        registry_.device().usage().peak_bytes - impl_->live_bytes_before;
  }
  if (!status.ok()) {
    abort(status.error());
    return status;
  }
  state_.store(State::kPrepared, std::memory_order_release);
  return {};
}

}  // namespace holdfast::reload
