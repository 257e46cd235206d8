// Registry: all slots and parameters of one engine, and the arenas that hold them.
// building -> sealed -> closing. Owned by the engine; define and seal on one thread; after seal the
// const calls are safe from any thread, publish only from the engine thread between steps.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/arena.h"
#include "holdfast/result.h"
#include "storage/slot.h"

namespace holdfast::storage {

enum class RegistryState : std::uint8_t { kBuilding, kSealed, kClosing };

inline constexpr std::size_t kMaxSlots = 1u << 20;

// What a commit stamps on a versioned slot.
struct SlotStamp {
  SlotId slot;
  base::Digest digest;
};

class Registry final : public device::AddressHome {
 public:
  Registry();
  ~Registry() override;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // --- building. Every call errors with kFailedPrecondition once sealed.
  // Errors: kInvalidArgument (duplicate or empty name, empty shape, arena mixing versioned and other
  // slots), kResourceExhausted over kMaxSlots.
  Result<SlotId> define(SlotSpec spec);
  // As define for a kConstant slot whose bytes come from the config; every transaction writes
  // `value` anew. Errors as define; kMismatch when value is not the slot's size.
  Result<SlotId> define_constant(SlotSpec spec, std::vector<std::byte> value);
  // Errors: kInvalidArgument (duplicate name, unknown slot, a slot that is not kWeight), kMismatch
  // (dtype differs from the slot's, range leaves the slot, overlaps another parameter's range).
  Result<ParameterId> bind(ParameterSpec spec);
  // Errors: kInvalidArgument (an output not kDerived or with two derivations, an unknown input),
  // kMismatch (a sliced input or output whose first dimension is not slice_count).
  Status derive(Derivation derivation);

  // Lays the slots out, allocates the arenas on `device` and fixes every address. Unversioned
  // arenas are zeroed; versioned ones hold poison until the first commit, then are read-only.
  // Errors: kFailedPrecondition (sealed already; a weight slot not wholly covered by parameters; a
  // derived slot without a derivation; a cycle among derivations, naming it), allocation errors.
  Status seal(device::Device& device);

  // --- AddressHome
  bool sealed() const override { return state_ == RegistryState::kSealed; }
  std::uint64_t layout_generation() const override { return layout_generation_; }
  bool contains(const device::AddressRange& range) const override;
  std::string describe(std::uintptr_t address) const override;

  // --- sealed
  RegistryState state() const { return state_; }
  device::Device& device() const;  // asserts sealed
  std::span<const Slot> slots() const { return slots_; }
  const Slot& slot(SlotId id) const;
  std::optional<SlotId> find_slot(std::string_view name) const;
  tensor::TensorView view(SlotId id) const;  // asserts sealed
  // The slot whose range holds `address`.
  std::optional<SlotId> resolve(std::uintptr_t address) const;
  std::span<const ParameterSpec> parameters() const { return parameters_; }
  std::optional<ParameterId> find_parameter(std::string_view name) const;
  // In dependency order once sealed.
  std::span<const Derivation> derivations() const { return derivations_; }
  // The bytes that a constant slot must hold; empty for other slots.
  std::span<const std::byte> constant_value(SlotId id) const;
  // Arenas whose slots are versioned: what a transaction stages and swaps.
  std::vector<device::Arena*> versioned_arenas() const;
  std::vector<device::Arena*> all_arenas() const;
  // The arena that holds a slot (asserts sealed).
  device::Arena& arena_of(SlotId id) const;

  Epoch epoch() const { return epoch_; }
  // Records a commit whose bytes are in place: `epoch` on every versioned slot, the digests given.
  // Called by Transaction alone. Asserts epoch == epoch() + 1 or a roll-back to epoch() - 1.
  void publish(Epoch epoch, std::span<const SlotStamp> stamps);

  // What an engine with the field's defect does (the drill's `rebind-constants`): new storage for
  // every slot of the arena, the old storage freed, the values copied, the graphs not told.
  // layout_generation() deliberately stays. Errors: allocation errors, kNotFound.
  Status inject_rebind(std::string_view arena_name);

  // No slot may be used afterwards: graphs must be gone. Poisons and frees the arenas.
  void close();

 private:
  struct ArenaRecord;
  Status check_complete() const;
  Status order_derivations();
  RegistryState state_ = RegistryState::kBuilding;
  std::uint64_t layout_generation_ = 0;
  device::Device* device_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<ParameterSpec> parameters_;
  std::vector<Derivation> derivations_;
  std::unordered_map<std::string, SlotId> slot_by_name_;
  std::unordered_map<std::string, ParameterId> parameter_by_name_;
  std::unordered_map<SlotId, std::vector<std::byte>> constant_values_;
  std::vector<std::unique_ptr<ArenaRecord>> arenas_;
  std::vector<SlotId> by_address_;  // sorted once sealed
  Epoch epoch_;
};

}  // namespace holdfast::storage
