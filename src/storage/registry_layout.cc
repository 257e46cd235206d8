// From seal to close: completeness, the order of derivations, addresses, and the deliberately wrong
// rebind of the drill.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "storage/arena_record.h"
#include "storage/registry.h"

namespace holdfast::storage {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

Status zero(device::Device& device, device::Memory memory) {
  const std::vector<std::byte> zeros(std::min(kChunkBytes, memory.bytes));
  for (std::size_t at = 0; at < memory.bytes; at += zeros.size()) {
    const std::size_t bytes = std::min(zeros.size(), memory.bytes - at);
    HF_TRY(device.write(memory.address + at, zeros.data(), bytes));
  }
  return {};
}

Status copy_through_host(device::Device& device, device::Memory to, device::Memory from) {
  std::vector<std::byte> chunk(std::min(kChunkBytes, from.bytes));
  for (std::size_t at = 0; at < from.bytes; at += chunk.size()) {
    const std::size_t bytes = std::min(chunk.size(), from.bytes - at);
    HF_TRY(device.read(chunk.data(), from.address + at, bytes));
    HF_TRY(device.write(to.address + at, chunk.data(), bytes));
  }
  return {};
}

}  // namespace

Status Registry::check_complete() const {
  if (slots_.empty()) {
    return make_error(ErrorCode::kFailedPrecondition, "seal of a registry without slots");
  }
  for (const Slot& slot : slots_) {
    if (slot.spec.slot_class == SlotClass::kDerived && !derivation_of_.contains(slot.id)) {
      return make_error(ErrorCode::kFailedPrecondition, "derived slot {} has no derivation",
                        slot.spec.name);
    }
    if (slot.spec.slot_class != SlotClass::kWeight) continue;
    // Ranges do not overlap (bind saw to that), so a hole is where the next one does not begin.
    std::size_t covered = 0;
    if (const auto bound = bound_.find(slot.id); bound != bound_.end()) {
      for (const auto& [offset, id] : bound->second) {
        if (offset != covered) break;
        const ParameterSpec& parameter = parameters_[id.index()];
        covered += tensor::byte_size(parameter.dtype, parameter.shape).value();
      }
    }
    if (covered != slot.range.bytes) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "weight slot {} of {} bytes: no parameter covers byte {}", slot.spec.name,
                        slot.range.bytes, covered);
    }
  }
  return {};
}

// Depth first in the order of definition: a derivation comes after those that make its inputs, and
// otherwise where it was defined.
Status Registry::order_derivations() {
  enum class Mark : std::uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(derivations_.size(), Mark::kNew);
  std::vector<std::size_t> open;  // the path from a root to the derivation being visited
  std::vector<std::size_t> order;
  const std::function<Status(std::size_t)> visit = [&](std::size_t index) -> Status {
    if (marks[index] == Mark::kDone) return {};
    if (marks[index] == Mark::kOpen) {
      std::string cycle;
      for (auto it = std::find(open.begin(), open.end(), index); it != open.end(); ++it) {
        cycle += derivations_[*it].name + " <- ";
      }
      return make_error(ErrorCode::kFailedPrecondition, "a cycle among derivations: {}{}", cycle,
                        derivations_[index].name);
    }
    marks[index] = Mark::kOpen;
    open.push_back(index);
    for (const DeriveInput& input : derivations_[index].inputs) {
      const auto* slot_id = std::get_if<SlotId>(&input);
      if (slot_id == nullptr) continue;
      const auto producer = derivation_of_.find(*slot_id);
      if (producer != derivation_of_.end()) HF_TRY(visit(producer->second));
    }
    open.pop_back();
    marks[index] = Mark::kDone;
    order.push_back(index);
    return {};
  };
  for (std::size_t index = 0; index < derivations_.size(); ++index) HF_TRY(visit(index));

  std::vector<Derivation> ordered;
  ordered.reserve(order.size());
  for (std::size_t index : order) ordered.push_back(std::move(derivations_[index]));
  derivations_ = std::move(ordered);
  for (std::size_t index = 0; index < derivations_.size(); ++index) {
    for (SlotId id : derivations_[index].outputs) derivation_of_[id] = index;
  }
  return {};
}

// One arena with every slot of `record` placed; `ranges` (by slot) receives where.
Result<std::unique_ptr<device::Arena>> Registry::lay_out(
    device::Device& device, const ArenaRecord& record,
    std::vector<device::AddressRange>& ranges) const {
  HF_ASSIGN(std::unique_ptr<device::Arena> arena,
            device::Arena::create(device, record.name, record.bytes));
  for (SlotId id : record.slots) {
    const Slot& placed = slot(id);
    HF_ASSIGN(const std::byte* address,
              arena->allocate(placed.range.bytes, placed.spec.alignment));
    ranges[id.index()] = {reinterpret_cast<std::uintptr_t>(address), placed.range.bytes};
  }
  arena->seal();
  if (record.versioned) {
    HF_TRY(arena->protect(device::Protection::kReadOnly));
  } else {
    HF_TRY(zero(device, arena->memory()));
  }
  return arena;
}

Status Registry::seal(device::Device& device) {
  if (state_ != RegistryState::kBuilding) {
    return make_error(ErrorCode::kFailedPrecondition, "seal of a registry that is {} already",
                      state_ == RegistryState::kSealed ? "sealed" : "closing");
  }
  HF_TRY(check_complete());
  HF_TRY(order_derivations());
  std::vector<device::AddressRange> ranges(slots_.size());
  std::vector<std::unique_ptr<device::Arena>> arenas;
  for (const auto& record : arenas_) {
    HF_ASSIGN(std::unique_ptr<device::Arena> arena, lay_out(device, *record, ranges));
    arenas.push_back(std::move(arena));
  }
  // Nothing below fails: either all addresses are installed or none.
  for (std::size_t i = 0; i < arenas.size(); ++i) {
    arenas[i]->count_exchanges(&exchanges_);
    arenas_[i]->arena = std::move(arenas[i]);
  }
  for (Slot& slot : slots_) slot.range = ranges[slot.id.index()];
  device_ = &device;
  state_ = RegistryState::kSealed;
  ++layout_generation_;
  index_addresses();
  return {};
}

void Registry::index_addresses() {
  by_address_.clear();
  for (const Slot& slot : slots_) by_address_.push_back(slot.id);
  std::sort(by_address_.begin(), by_address_.end(), [this](SlotId a, SlotId b) {
    return slot(a).range.begin < slot(b).range.begin;
  });
}

Status Registry::inject_rebind(std::string_view arena_name) {
  HF_ASSERT(state_ == RegistryState::kSealed, "inject_rebind needs a sealed registry");
  const auto found = arena_by_name_.find(std::string(arena_name));
  if (found == arena_by_name_.end()) {
    return make_error(ErrorCode::kNotFound, "inject_rebind: no arena {}", arena_name);
  }
  ArenaRecord& record = *arenas_[found->second];
  // The old storage is alive while the new is allocated, so no slot keeps its address by chance.
  HF_ASSIGN(std::unique_ptr<device::Arena> fresh,
            device::Arena::create(*device_, record.name, record.bytes));
  HF_TRY(copy_through_host(*device_, fresh->memory(), record.arena->memory()));
  fresh->seal();
  fresh->count_exchanges(&exchanges_);
  HF_TRY(fresh->protect(record.arena->protection()));
  const auto from = reinterpret_cast<std::uintptr_t>(record.arena->memory().address);
  const auto to = reinterpret_cast<std::uintptr_t>(fresh->memory().address);
  for (SlotId id : record.slots) {
    slots_[id.index()].range.begin = slots_[id.index()].range.begin - from + to;
  }
  record.arena = std::move(fresh);
  index_addresses();
  return {};
}

void Registry::close() {
  if (state_ == RegistryState::kClosing) return;
  // A graph that outlives its registry's memory is refused at its next launch.
  if (state_ == RegistryState::kSealed) ++layout_generation_;
  state_ = RegistryState::kClosing;
  by_address_.clear();
  for (auto& record : arenas_) record->arena.reset();
}

}  // namespace holdfast::storage
