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

Result<base::Digest> LiveBytes::digest(SlotId id) {
  HF_ASSIGN(const auto bytes, of(id));
  return base::digest_of(bytes);
}

}  // namespace holdfast::storage
