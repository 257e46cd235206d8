#include "engine/verify_report.h"

#include <algorithm>

#include "base/error.h"
#include "reload/verify.h"
#include "storage/live_bytes.h"

namespace holdfast::engine {

namespace {

// One line for a slot that is not what its commit stamped; empty for one that is.
Result<std::string> defect_of(const storage::Registry& registry, const storage::Slot& slot) {
  HF_ASSIGN(const base::Digest found, storage::live_digest(registry, slot.id));
  if (slot.digest != found) {
    return fmt::format("{} {} has digest {}, committed {}",
                       storage::slot_class_name(slot.spec.slot_class), slot.spec.name,
                       found.to_hex(), slot.digest ? slot.digest->to_hex() : "nothing");
  }
  const auto value = registry.constant_value(slot.id);
  if (value.empty()) return std::string();
  storage::LiveBytes bytes(registry);
  HF_ASSIGN(const auto live, bytes.of(slot.id));
  if (std::equal(live.begin(), live.end(), value.begin(), value.end())) {
    return std::string();
  }
  return fmt::format("constant {} is not its value", slot.spec.name);
}

}  // namespace

Result<VerifyReport> make_verify_report(const storage::Registry& registry) {
  const auto verified = reload::verify_registry(registry);
  if (verified.ok()) return VerifyReport{.slots = verified->slots, .bytes = verified->bytes};
  if (verified.error().code() != ErrorCode::kCorrupt) return verified.error();
  VerifyReport report;
  for (const storage::Slot& slot : registry.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    ++report.slots;
    report.bytes += slot.range.bytes;
    HF_ASSIGN(std::string defect, defect_of(registry, slot));
    if (!defect.empty()) report.defects.push_back(std::move(defect));
  }
  // Every slot is right: it is what lies between them.
  if (report.defects.empty()) report.defects.push_back(verified.error().message());
  return report;
}

}  // namespace holdfast::engine
