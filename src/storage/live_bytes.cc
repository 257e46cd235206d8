#include "storage/live_bytes.h"

#include "base/assert.h"

namespace holdfast::storage {

Result<std::span<const std::byte>> LiveBytes::of(SlotId id) & {
  return of(id, 0, registry_.slot(id).range.bytes);
}

Result<std::span<const std::byte>> LiveBytes::of(SlotId id, std::size_t offset,
                                                 std::size_t bytes) & {
  const tensor::TensorView view = registry_.view(id);
  HF_ASSERT(offset <= view.bytes() && bytes <= view.bytes() - offset, "the range leaves its slot");
  if (registry_.device().host_addressable()) return view.const_span().subspan(offset, bytes);
  copy_.resize(bytes);
  const Status read = registry_.device().read(copy_.data(), view.address + offset, bytes);
  if (!read.ok()) return read.error().with_context("slot " + registry_.slot(id).spec.name);
  return std::span<const std::byte>(copy_);
}

Result<base::Digest> live_digest(const Registry& registry, SlotId id) {
  HF_ASSIGN(const auto digests, live_digests(registry, {&id, 1}));
  return digests.front();
}

Result<std::vector<base::Digest>> live_digests(const Registry& registry,
                                               std::span<const SlotId> ids) {
  std::vector<device::Memory> ranges;
  for (const SlotId id : ids) {
    const tensor::TensorView view = registry.view(id);
    ranges.push_back({view.address, view.bytes()});
  }
  return registry.device().digests(ranges);
}

std::vector<SlotId> versioned_slots(const Registry& registry) {
  std::vector<SlotId> ids;
  for (const Slot& slot : registry.slots()) {
    if (is_versioned(slot.spec.slot_class)) ids.push_back(slot.id);
  }
  return ids;
}

}  // namespace holdfast::storage
