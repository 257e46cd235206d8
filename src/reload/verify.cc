#include "reload/verify.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "reload/staging.h"
#include "storage/live_bytes.h"

namespace holdfast::reload {
namespace {

// How many slots an error names before it counts the rest.
constexpr std::size_t kNamedSlots = 3;

}  // namespace

Result<VerifyReport> verify_registry(const storage::Registry& registry) {
  if (!registry.sealed() || registry.epoch().value == 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "nothing was loaded yet, so there is nothing to verify");
  }
  if (registry.poisoned()) {
    return make_error(ErrorCode::kPoisoned,
                      "a commit failed half-way: the weights are a mixture until a complete reload "
                      "succeeds");
  }
  VerifyReport report;
  storage::LiveBytes bytes(registry);
  std::vector<std::string> wrong;
  std::size_t wrong_count = 0;
  const std::vector<storage::SlotId> ids = storage::versioned_slots(registry);
  HF_ASSIGN(const auto digests, storage::live_digests(registry, ids));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const storage::Slot& slot = registry.slot(ids[i]);
    const base::Digest found = digests[i];
    bool constant_differs = false;
    if (slot.spec.slot_class == storage::SlotClass::kConstant) {
      HF_ASSIGN(const auto live, bytes.of(slot.id));
      const auto value = registry.constant_value(slot.id);
      constant_differs = !std::equal(live.begin(), live.end(), value.begin(), value.end());
    }
    ++report.slots;
    report.bytes += slot.range.bytes;
    if (slot.digest == found && !constant_differs) continue;
    if (wrong_count++ < kNamedSlots) {
      wrong.push_back(fmt::format("{} {} has digest {}, stamped {}{}",
                                  storage::slot_class_name(slot.spec.slot_class), slot.spec.name,
                                  found.to_hex(), slot.digest ? slot.digest->to_hex() : "nothing",
                                  constant_differs ? ", and is not its value" : ""));
    }
  }
  if (wrong_count > 0) {
    return make_error(ErrorCode::kCorrupt, "epoch {}: {} of {} slots differ: {}{}; reload",
                      registry.epoch().value, wrong_count, report.slots, fmt::join(wrong, "; "),
                      wrong_count > wrong.size() ? "; ..." : "");
  }
  HF_TRY(Staging::create_live(registry, registry.epoch().value)->check_live_padding());
  for (const device::Arena* arena : registry.versioned_arenas()) {
    report.padding_bytes += arena->memory().bytes;
  }
  report.padding_bytes -= report.bytes;
  return report;
}

}  // namespace holdfast::reload
