// LiveBytes: the bytes of a live slot as the host reads them: in place where it may, else copied
// from the device. And the digests of live slots, which the device takes. One thread, and no commit
// meanwhile.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/digest.h"
#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::storage {

class LiveBytes {
 public:
  explicit LiveBytes(const Registry& registry) : registry_(registry) {}
  // Of all of a slot, or of `bytes` from `offset` on; valid until the next call, and while this
  // lives. Asserts that they lie in it. Errors: kDevice.
  Result<std::span<const std::byte>> of(SlotId id) &;
  Result<std::span<const std::byte>> of(SlotId id, std::size_t offset, std::size_t bytes) &;
 private:
  const Registry& registry_;
  std::vector<std::byte> copy_;
};

// The tree digest of all of a slot, or of each of several. Errors: kDevice.
Result<base::Digest> live_digest(const Registry& registry, SlotId id);
Result<std::vector<base::Digest>> live_digests(const Registry& registry,
                                               std::span<const SlotId> ids);
// Every slot that commits replace, in the registry's order.
std::vector<SlotId> versioned_slots(const Registry& registry);

}  // namespace holdfast::storage
