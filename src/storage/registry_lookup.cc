// What is asked of a registry once it is sealed, and what a commit records in it.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "storage/arena_record.h"
#include "storage/registry.h"

namespace holdfast::storage {

const Slot& Registry::slot(SlotId id) const {
  HF_ASSERT(id.index() < slots_.size(), "a slot id of another registry");
  return slots_[id.index()];
}

device::Device& Registry::device() const {
  HF_ASSERT(state_ == RegistryState::kSealed, "a registry has a device from seal to close");
  return *device_;
}

std::optional<SlotId> Registry::find_slot(std::string_view name) const {
  const auto found = slot_by_name_.find(std::string(name));
  if (found == slot_by_name_.end()) return std::nullopt;
  return found->second;
}

std::optional<ParameterId> Registry::find_parameter(std::string_view name) const {
  const auto found = parameter_by_name_.find(std::string(name));
  if (found == parameter_by_name_.end()) return std::nullopt;
  return found->second;
}

std::optional<PublishedTensor> Registry::find_published(std::string_view name) const {
  if (const auto whole = find_parameter(name)) return PublishedTensor{.parameter = *whole};
  const auto found = part_by_name_.find(std::string(name));
  if (found == part_by_name_.end()) return std::nullopt;
  return found->second;
}

const tensor::Shape& Registry::published_shape(const PublishedTensor& tensor) const {
  const ParameterSpec& spec = parameters_[tensor.parameter.index()];
  return tensor.row ? spec.part_shape : spec.shape;
}

tensor::TensorView Registry::view(SlotId id) const {
  HF_ASSERT(state_ == RegistryState::kSealed, "a slot has an address from seal to close");
  const Slot& found = slot(id);
  return {reinterpret_cast<std::byte*>(found.range.begin), found.spec.dtype, found.spec.shape};
}

std::optional<SlotId> Registry::resolve(std::uintptr_t address) const {
  auto above = std::upper_bound(
      by_address_.begin(), by_address_.end(), address,
      [this](std::uintptr_t value, SlotId id) { return value < slot(id).range.begin; });
  if (above == by_address_.begin()) return std::nullopt;
  const SlotId below = *std::prev(above);
  if (!slot(below).range.contains({address, 1})) return std::nullopt;
  return below;
}

bool Registry::contains(const device::AddressRange& range) const {
  const std::optional<SlotId> home = resolve(range.begin);
  return home && slot(*home).range.contains(range);
}

std::string Registry::describe(std::uintptr_t address) const {
  auto above = std::upper_bound(
      by_address_.begin(), by_address_.end(), address,
      [this](std::uintptr_t value, SlotId id) { return value < slot(id).range.begin; });
  if (above == by_address_.begin()) {
    return by_address_.empty() ? "no slot (the registry is not sealed)"
                               : "no slot (below them all)";
  }
  const Slot& below = slot(*std::prev(above));
  const std::uintptr_t offset = address - below.range.begin;
  if (offset < below.range.bytes) {
    return fmt::format("slot {} + {} of {} bytes", below.spec.name, offset, below.range.bytes);
  }
  return fmt::format("no slot (nearest below: {} ends {} bytes before)", below.spec.name,
                     offset - below.range.bytes);
}

std::span<const std::byte> Registry::constant_value(SlotId id) const {
  const auto found = constant_values_.find(id);
  if (found == constant_values_.end()) return {};
  return found->second;
}

std::vector<device::Arena*> Registry::versioned_arenas() const {
  HF_ASSERT(state_ == RegistryState::kSealed, "a registry has arenas from seal to close");
  std::vector<device::Arena*> arenas;
  for (const auto& record : arenas_) {
    if (record->versioned) arenas.push_back(record->arena.get());
  }
  return arenas;
}

std::vector<device::Arena*> Registry::all_arenas() const {
  HF_ASSERT(state_ == RegistryState::kSealed, "a registry has arenas from seal to close");
  std::vector<device::Arena*> arenas;
  for (const auto& record : arenas_) arenas.push_back(record->arena.get());
  return arenas;
}

device::Arena& Registry::arena_of(SlotId id) const {
  HF_ASSERT(state_ == RegistryState::kSealed, "a registry has arenas from seal to close");
  HF_ASSERT(id.index() < slots_.size(), "a slot id of another registry");
  return *arenas_[arena_of_slot_[id.index()]]->arena;
}

device::ReplayGate Registry::replay_gate() const {
  const device::ReplayGate gate = gate_.load(std::memory_order_relaxed);
  if (gate != device::ReplayGate::kOpen) return gate;
  return exchanges_ == known_exchanges_ ? gate : device::ReplayGate::kUnpublished;
}

void Registry::begin_apply() {
  HF_ASSERT(state_ == RegistryState::kSealed, "begin_apply needs a sealed registry");
  gate_ = device::ReplayGate::kApplying;
}

void Registry::end_apply(bool restored) {
  known_exchanges_ = exchanges_;
  gate_ = restored ? device::ReplayGate::kOpen : device::ReplayGate::kPoisoned;
}

void Registry::publish(Epoch epoch, std::span<const SlotStamp> stamps, PublishedState& state) {
  publish(epoch, stamps);
  label_.swap(state.label);
  for (ConstantChange& change : state.constants) {
    const auto found = constant_values_.find(change.slot);
    HF_ASSERT(found != constant_values_.end() && found->second.size() == change.value.size(),
              "another value for slot " + slot(change.slot).spec.name + ", of another size");
    found->second.swap(change.value);
  }
}

void Registry::publish(Epoch epoch, std::span<const SlotStamp> stamps) {
  HF_ASSERT(state_ == RegistryState::kSealed, "publish needs a sealed registry");
  const bool commits = epoch == next_epoch();
  HF_ASSERT(commits || (epoch == previous_epoch_ && epoch < epoch_),
            fmt::format("publish of epoch {} over epoch {}", epoch.value, epoch_.value));
  if (commits) {
    previous_epoch_ = epoch_;
    highest_epoch_ = epoch;
  }
  for (Slot& slot : slots_) {
    if (!is_versioned(slot.spec.slot_class)) continue;
    slot.epoch = epoch;
    slot.digest.reset();
  }
  for (const SlotStamp& stamp : stamps) {
    HF_ASSERT(is_versioned(slot(stamp.slot).spec.slot_class),
              "a digest for slot " + slot(stamp.slot).spec.name + ", which no commit replaces");
    slots_[stamp.slot.index()].digest = stamp.digest;
  }
  epoch_ = epoch;
  end_apply(true);
}

}  // namespace holdfast::storage
