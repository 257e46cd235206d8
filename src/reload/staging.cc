#include "reload/staging.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/error.h"

namespace holdfast::reload {

Result<std::unique_ptr<Staging>> Staging::create(const storage::Registry& registry,
                                                 std::uint64_t generation) {
  HF_ASSERT(generation > 0, "generation 0 means never written");
  std::unique_ptr<Staging> staging(new Staging(registry, generation));
  for (device::Arena* arena : registry.versioned_arenas()) {
    auto backing = arena->create_backing();
    if (!backing.ok()) {
      return backing.error().with_context(
          fmt::format("staging arena {} ({} bytes)", arena->name(), arena->memory().bytes));
    }
    StagedArena& staged = staging->arenas_.emplace_back();
    staged.arena = arena;
    staged.backing = std::move(backing).value();
  }
  staging->place_slots();
  staging->zero_padding();
  return staging;
}

void Staging::place_slots() {
  progress_.resize(registry_.slots().size());
  for (const storage::Slot& slot : registry_.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    const device::Arena* arena = &registry_.arena_of(slot.id);
    const auto staged = std::find_if(arenas_.begin(), arenas_.end(),
                                     [&](const StagedArena& a) { return a.arena == arena; });
    HF_ASSERT(staged != arenas_.end(), "a versioned slot lies in a versioned arena");
    const auto live = reinterpret_cast<std::uintptr_t>(arena->memory().address);
    progress_[slot.id.index()].address =
        staged->backing.memory().address + (slot.range.begin - live);
    slots_.push_back(slot.id);
  }
}

void Staging::zero_padding() {
  std::vector<storage::SlotId> by_address(slots_);
  std::sort(by_address.begin(), by_address.end(), [this](storage::SlotId a, storage::SlotId b) {
    return progress_[a.index()].address < progress_[b.index()].address;
  });
  auto next = by_address.begin();
  // Slots of one arena follow each other, but the arenas' backings may lie in any order.
  std::vector<StagedArena*> in_order;
  for (StagedArena& staged : arenas_) in_order.push_back(&staged);
  std::sort(in_order.begin(), in_order.end(), [](const StagedArena* a, const StagedArena* b) {
    return a->backing.memory().address < b->backing.memory().address;
  });
  for (const StagedArena* staged : in_order) {
    const device::Memory memory = staged->backing.memory();
    std::byte* at = memory.address;
    std::byte* const end = at + memory.bytes;
    for (; next != by_address.end() && progress_[next->index()].address < end; ++next) {
      std::byte* const slot = progress_[next->index()].address;
      std::memset(at, 0, static_cast<std::size_t>(slot - at));
      at = slot + registry_.slot(*next).range.bytes;
    }
    std::memset(at, 0, static_cast<std::size_t>(end - at));
  }
}

tensor::TensorView Staging::view(storage::SlotId id) const {
  std::byte* address = progress_[id.index()].address;
  HF_ASSERT(address != nullptr, "only versioned slots are staged");
  const storage::SlotSpec& spec = registry_.slot(id).spec;
  return {.address = address, .dtype = spec.dtype, .shape = spec.shape};
}

Status Staging::record(storage::SlotId id, std::uint64_t offset, std::uint64_t bytes) {
  const storage::Slot& slot = registry_.slot(id);
  Progress& progress = progress_[id.index()];
  if (bytes == 0 || offset > slot.range.bytes || bytes > slot.range.bytes - offset) {
    return make_error(ErrorCode::kCorrupt, "slot {}: {} bytes written at offset {}, it has {}",
                      slot.spec.name, bytes, offset, slot.range.bytes);
  }
  if (!progress.written.add(offset, offset + bytes)) {
    return make_error(ErrorCode::kCorrupt, "slot {}: bytes [{}, {}) were written a second time",
                      slot.spec.name, offset, offset + bytes);
  }
  if (progress.written.covers(slot.range.bytes)) progress.generation = generation_;
  return {};
}

bool Staging::fresh(storage::SlotId id) const {
  return progress_[id.index()].generation == generation_;
}

Status Staging::check_complete() const {
  for (const storage::SlotId id : slots_) {
    if (fresh(id)) continue;
    const storage::Slot& slot = registry_.slot(id);
    const auto hole = progress_[id.index()].written.first_hole(slot.range.bytes);
    HF_ASSERT(hole.has_value(), "a slot without a hole is stamped");
    return make_error(ErrorCode::kCorrupt,
                      "{} slot {}: bytes [{}, {}) of {} were not written for epoch {}",
                      storage::slot_class_name(slot.spec.slot_class), slot.spec.name, hole->begin,
                      hole->end, slot.range.bytes, generation_);
  }
  return {};
}

}  // namespace holdfast::reload
