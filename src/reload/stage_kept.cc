// The parts of staging that need no source: what is preserved, and constants.
#include <set>

#include "base/digest.h"
#include "base/error.h"
#include "reload/stager.h"
#include "storage/live_bytes.h"

namespace holdfast::reload {
namespace {

// Preserving bytes that are no longer what was committed would make the damage permanent.
Status check_live_digest(const storage::Registry& registry, storage::SlotId id) {
  const storage::Slot& slot = registry.slot(id);
  HF_ASSIGN(const base::Digest found, storage::live_digest(registry, id));
  if (slot.digest.has_value() && *slot.digest == found) return {};
  return make_error(ErrorCode::kCorrupt,
                    "slot {} is to be preserved and has digest {}, the commit of epoch {} stamped "
                    "{}: a complete reload is needed",
                    slot.spec.name, found.to_hex(), slot.epoch.value,
                    slot.digest ? slot.digest->to_hex() : "nothing");
}

std::span<const std::byte> constant_bytes(const StageTarget& target, storage::SlotId id) {
  for (const storage::ConstantChange& change : target.plan.constant_changes) {
    if (change.slot == id) return change.value;
  }
  return target.registry.constant_value(id);
}

}  // namespace

Status stage_preserved(const StageTarget& target) {
  std::set<storage::SlotId> checked;
  for (const PreserveStep& step : target.plan.preserved) {
    HF_TRY(target.guard.check("staging"));
    if (checked.insert(step.slot).second) {
      HF_TRY(check_live_digest(target.registry, step.slot));
    }
    if (!target.staging.live()) {
      HF_TRY(target.staging.put_live(step.slot, step.offset_bytes, step.bytes));
    }
    HF_TRY(target.staging.record(step.slot, step.offset_bytes, step.bytes));
  }
  return {};
}

Status stage_constants(const StageTarget& target) {
  for (const storage::SlotId id : target.staging.slots()) {
    const storage::Slot& slot = target.registry.slot(id);
    if (slot.spec.slot_class != storage::SlotClass::kConstant) continue;
    const auto value = constant_bytes(target, id);
    if (value.size() != slot.range.bytes) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "constant slot {} has {} bytes and a value of {}: define it with "
                        "define_constant",
                        slot.spec.name, slot.range.bytes, value.size());
    }
    HF_TRY(target.staging.put(id, 0, value));
    HF_TRY(target.staging.record(id, 0, value.size()));
  }
  return {};
}

}  // namespace holdfast::reload
