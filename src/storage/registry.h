// Registry: all slots and parameters of one engine, and the arenas that hold them.
// building -> sealed -> closing. Owned by the engine; define and seal on one thread; after seal the
// const calls are safe from any thread, publish only from the engine thread between steps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
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
inline constexpr std::size_t kMaxParameters = 1u << 20;
inline constexpr std::size_t kMaxSlotAlignment = 4096;
inline constexpr std::size_t kMaxArenaBytes = std::size_t{1} << 46;

// What a commit stamps on a versioned slot.
struct SlotStamp {
  SlotId slot;
  base::Digest digest;
};

// A constant slot and other bytes for it. Whoever is given one by publish swaps the bytes.
struct ConstantChange {
  SlotId slot = {};
  std::vector<std::byte> value = {};
};
// What a commit replaces besides the bytes in the slots. publish exchanges it with the registry's,
// so that the caller holds what was there before and nothing is allocated.
struct PublishedState {
  std::string label = {};
  std::vector<ConstantChange> constants = {};
};

// Identifies a transaction of one registry; monotonic, never 0.
using TransactionId = base::StrongId<struct TransactionIdTag, std::uint64_t>;

class Registry final : public device::AddressHome {
 public:
  Registry();
  ~Registry() override;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // --- building. Every call errors with kFailedPrecondition once sealed.
  // Errors: kInvalidArgument (duplicate or empty name, a shape of no elements or of half a byte, an
  // alignment that is no power of two up to kMaxSlotAlignment, arena mixing versioned and other
  // slots, kConstant: see below, an address table that is versioned or not of 64-bit words),
  // kResourceExhausted over kMaxSlots or kMaxArenaBytes.
  Result<SlotId> define(SlotSpec spec);
  // The way to define a kConstant slot, whose bytes come from the config; every transaction writes
  // `value` anew. Errors as define; kInvalidArgument for another class, kMismatch when value is not
  // the slot's size.
  Result<SlotId> define_constant(SlotSpec spec, std::vector<std::byte> value);
  // Errors: kInvalidArgument (duplicate or empty name, a shape of no elements, unknown slot, a slot
  // that is not kWeight, an offset without a slot), kMismatch (dtype differs from the slot's, range
  // leaves the slot, overlaps another parameter's range; parts that are not its rows),
  // kResourceExhausted over kMaxParameters (parts count).
  Result<ParameterId> bind(ParameterSpec spec);
  // A second name for a parameter that has a slot. Errors: kInvalidArgument (empty name, a name
  // that is taken, an unknown or transient parameter).
  Status bind_alias(std::string name, ParameterId parameter);
  // Errors: kInvalidArgument (duplicate or empty name, no function, no output, slice_count < 1, an
  // output not kDerived or with two derivations, an unknown or unversioned input), kMismatch (a
  // sliced input or output whose first dimension is not slice_count).
  Status derive(Derivation derivation);

  // Lays the slots out, allocates the arenas on `device` and fixes every address. Unversioned
  // arenas are zeroed; versioned ones hold poison until the first commit, then are read-only.
  // Errors: kFailedPrecondition (sealed already; a weight slot not wholly covered by parameters; a
  // derived slot without a derivation; a cycle among derivations, naming it; no slot), allocation
  // errors. On an error the registry is still building and holds no memory.
  Status seal(device::Device& device);

  // --- AddressHome
  bool sealed() const override { return state_ == RegistryState::kSealed; }
  std::uint64_t layout_generation() const override { return layout_generation_; }
  bool contains(const device::AddressRange& range) const override;
  std::string describe(std::uintptr_t address) const override;
  // Engine thread.
  device::ReplayGate replay_gate() const override;

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
  // By its own name or an alias.
  std::optional<ParameterId> find_parameter(std::string_view name) const;
  // By any name that a publisher may use: those, and the names of parts.
  std::optional<PublishedTensor> find_published(std::string_view name) const;
  // The shape that a publisher gives the tensor: the parameter's, or that of its parts.
  const tensor::Shape& published_shape(const PublishedTensor& tensor) const;
  std::span<const ParameterAlias> aliases() const { return aliases_; }
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
  // What the next commit publishes. No number is given twice, not that of a commit which was rolled
  // back either: an epoch names one set of weights for ever.
  Epoch next_epoch() const { return Epoch{highest_epoch_.value + 1}; }
  // Records a commit whose bytes are in place: `epoch` on every versioned slot, the digests given;
  // a versioned slot that is not among the stamps has no digest. Called by Transaction alone.
  // Asserts epoch == next_epoch(), or the roll-back of the last commit to the epoch before it.
  void publish(Epoch epoch, std::span<const SlotStamp> stamps);
  // The same, and exchanges the label and the constants' bytes with `state`'s.
  void publish(Epoch epoch, std::span<const SlotStamp> stamps, PublishedState& state);
  // Says which weights these are, in the words of who published them; empty before the first label.
  const std::string& label() const { return label_; }

  // Around what a commit does to live bytes: from begin_apply no graph is launched, until publish
  // or, when nothing was published, end_apply. Not restored means poisoned until the next publish.
  // Called by Transaction alone.
  void begin_apply();
  void end_apply(bool restored);
  // No graph is launched until the next publish. Any thread.
  void poison() { gate_ = device::ReplayGate::kPoisoned; }
  bool poisoned() const { return gate_.load() == device::ReplayGate::kPoisoned; }
  // Each call gives another id. Any thread.
  TransactionId next_transaction_id() { return TransactionId{++last_transaction_}; }

  // What an engine with the field's defect does (the drill's `rebind-constants`): new storage for
  // every slot of the arena, the old storage freed, the values copied, the graphs not told.
  // layout_generation() deliberately stays. Errors: allocation errors, kNotFound.
  Status inject_rebind(std::string_view arena_name);

  // No slot may be used afterwards: graphs must be gone. Poisons and frees the arenas.
  void close();

 private:
  struct ArenaRecord;
  Status check_building(std::string_view what, std::string_view name) const;
  Status check_spec(const SlotSpec& spec) const;
  Result<SlotId> add_slot(SlotSpec spec);
  Status check_range(const ParameterSpec& spec, std::size_t bytes) const;
  Status check_parts(const ParameterSpec& spec) const;
  Status check_outputs(const Derivation& derivation) const;
  Status check_inputs(const Derivation& derivation) const;
  Status check_complete() const;
  Status order_derivations();
  Result<std::unique_ptr<device::Arena>> lay_out(device::Device& device, const ArenaRecord& record,
                                                 std::vector<device::AddressRange>& ranges) const;
  void index_addresses();
  RegistryState state_ = RegistryState::kBuilding;
  std::uint64_t layout_generation_ = 0;
  device::Device* device_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<ParameterSpec> parameters_;
  std::vector<ParameterAlias> aliases_;
  std::vector<Derivation> derivations_;
  std::unordered_map<std::string, SlotId> slot_by_name_;
  std::unordered_map<std::string, ParameterId> parameter_by_name_;
  std::unordered_map<std::string, PublishedTensor> part_by_name_;
  std::unordered_map<SlotId, std::vector<std::byte>> constant_values_;
  std::unordered_map<SlotId, std::map<std::size_t, ParameterId>> bound_;  // by offset in the slot
  std::unordered_map<SlotId, std::size_t> derivation_of_;  // index while building
  std::unordered_map<std::string, std::size_t> arena_by_name_;
  std::vector<std::size_t> arena_of_slot_;  // index into arenas_
  std::vector<std::unique_ptr<ArenaRecord>> arenas_;
  std::vector<SlotId> by_address_;  // sorted once sealed
  Epoch epoch_;
  Epoch highest_epoch_;   // that was ever published
  Epoch previous_epoch_;  // before the last commit
  std::string label_;
  std::atomic<device::ReplayGate> gate_{device::ReplayGate::kOpen};
  // Of versioned arenas: all, and how many the last publish or seal knew of.
  std::uint64_t exchanges_ = 0;
  std::uint64_t known_exchanges_ = 0;
  std::atomic<std::uint64_t> last_transaction_{0};
};

}  // namespace holdfast::storage
