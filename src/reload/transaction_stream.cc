// The commit that stages nothing: it reads the source into the live slots in the quiet moment.
#include <map>

#include "base/error.h"
#include "reload/transaction_impl.h"
#include "storage/live_bytes.h"

namespace holdfast::reload {
namespace {

using device::Protection;

Status protect_all(std::span<StagedArena> arenas, Protection protection) {
  for (StagedArena& staged : arenas) HF_TRY(staged.arena->protect(protection));
  return {};
}

}  // namespace

bool restore_image(Staging& image) {
  bool restored = true;
  for (StagedArena& staged : image.arenas()) {
    const device::Memory live = staged.arena->memory();
    const auto back = [&]() -> Status {
      HF_TRY(staged.arena->protect(Protection::kReadWrite));
      HF_TRY(staged.arena->device().write(live.address, staged.backing.memory().address,
                                          live.bytes));
      return staged.arena->protect(Protection::kReadOnly);
    };
    restored = back().ok() && restored;
  }
  return restored;
}

Status Transaction::stream_into_live(Staging& live) {
  // What an injected fault keeps.
  std::map<storage::SlotId, std::vector<std::byte>> stale;
  storage::LiveBytes before(registry_);
  for (const storage::SlotId id : impl_->stale) {
    HF_ASSIGN(const auto bytes, before.of(id));
    stale[id].assign(bytes.begin(), bytes.end());
  }
  HF_TRY(protect_all(live.arenas(), Protection::kReadWrite));
  // Before the first load it holds poison, and whatever in a registry that is to be healed.
  HF_TRY(live.zero_padding());
  HF_TRY(run_stage({.registry = registry_,
                    .plan = plan_,
                    .source = *impl_->stream_input.source,
                    .stream = *impl_->stream_input.stream,
                    .staging = live,
                    .receipts = impl_->receipts,
                    .guard = impl_->guard,
                    .log = impl_->log}));
  for (const auto& [id, bytes] : stale) {
    HF_TRY(live.put(id, 0, bytes));
    live.rewritten(id, 0);
  }
  HF_TRY(impl_->inject_order(live));
  HF_TRY(take_stamps(live));
  return protect_all(live.arenas(), Protection::kReadOnly);
}

std::optional<CommitFailure> Transaction::commit_stream() {
  const auto live = Staging::create_live(registry_, registry_.next_epoch().value);
  const Status status = stream_into_live(*live);
  impl_->note_receipts();
  if (status.ok()) {
    impl_->note_log(registry_, plan_);
    return std::nullopt;
  }
  CommitFailure failure{status.error(), false};
  if (!impl_->log.wrote) {
    failure.restored = protect_all(live->arenas(), Protection::kReadOnly).ok();
  } else if (impl_->staging != nullptr) {
    failure.restored = restore_image(*impl_->staging);
  } else {
    // A stray write must fault while it is poisoned, too; it is poisoned either way.
    static_cast<void>(protect_all(live->arenas(), Protection::kReadOnly).ok());
  }
  return failure;
}

}  // namespace holdfast::reload
