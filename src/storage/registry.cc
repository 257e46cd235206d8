// Building a registry: define, bind, derive. The rest is in registry_layout.cc (seal to close) and
// registry_lookup.cc (what is asked of a sealed one).
#include "storage/registry.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "storage/arena_record.h"

namespace holdfast::storage {
namespace {

std::size_t align_up(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// Bytes of something that must hold at least one element.
Result<std::size_t> positive_bytes(std::string_view what, const std::string& name,
                                   tensor::DType dtype, const tensor::Shape& shape) {
  auto bytes = tensor::byte_size(dtype, shape);
  if (!bytes.ok()) {
    return make_error(ErrorCode::kInvalidArgument, "{} {}: {}", what, name,
                      bytes.error().message());
  }
  if (*bytes == 0) {
    return make_error(ErrorCode::kInvalidArgument, "{} {}: shape {} has no elements", what, name,
                      shape.to_string());
  }
  return bytes;
}

}  // namespace

Registry::Registry() = default;

Registry::~Registry() { close(); }

Status Registry::check_building(std::string_view what, std::string_view name) const {
  if (state_ == RegistryState::kBuilding) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "{} {} after seal: what graphs may see is fixed from seal to close; define it "
                    "before, or build another registry",
                    what, name);
}

Status Registry::check_spec(const SlotSpec& spec) const {
  if (spec.name.empty()) return make_error(ErrorCode::kInvalidArgument, "a slot without a name");
  if (slot_by_name_.contains(spec.name)) {
    return make_error(ErrorCode::kInvalidArgument, "slot {} is defined twice", spec.name);
  }
  const std::size_t alignment = spec.alignment;
  if (alignment == 0 || alignment > kMaxSlotAlignment || (alignment & (alignment - 1)) != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "slot {}: alignment {} is no power of two from 1 to {}", spec.name, alignment,
                      kMaxSlotAlignment);
  }
  if (slots_.size() >= kMaxSlots) {
    return make_error(ErrorCode::kResourceExhausted, "slot {}: a registry holds at most {} slots",
                      spec.name, kMaxSlots);
  }
  if (!spec.address_table) return {};
  if (is_versioned(spec.slot_class)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "slot {} is a table of addresses, and a commit would replace class {}: no "
                      "publisher knows this process's addresses; use state, input, scratch or sync",
                      spec.name, slot_class_name(spec.slot_class));
  }
  if (tensor::dtype_bits(spec.dtype) != 64) {
    return make_error(ErrorCode::kInvalidArgument,
                      "slot {} is a table of addresses, which have 64 bits, and {} has {}",
                      spec.name, tensor::dtype_name(spec.dtype), tensor::dtype_bits(spec.dtype));
  }
  return {};
}

Result<SlotId> Registry::define(SlotSpec spec) {
  if (spec.slot_class == SlotClass::kConstant) {
    return make_error(ErrorCode::kInvalidArgument,
                      "slot {} is a constant: define_constant says what its bytes are", spec.name);
  }
  return add_slot(std::move(spec));
}

Result<SlotId> Registry::define_constant(SlotSpec spec, std::vector<std::byte> value) {
  if (spec.slot_class != SlotClass::kConstant) {
    return make_error(ErrorCode::kInvalidArgument, "slot {} has a value, and class {} has none",
                      spec.name, slot_class_name(spec.slot_class));
  }
  HF_ASSIGN(const std::size_t bytes, positive_bytes("slot", spec.name, spec.dtype, spec.shape));
  if (value.size() != bytes) {
    return make_error(ErrorCode::kMismatch, "slot {}: {} {} is {} bytes, its value has {}",
                      spec.name, tensor::dtype_name(spec.dtype), spec.shape.to_string(), bytes,
                      value.size());
  }
  HF_ASSIGN(const SlotId id, add_slot(std::move(spec)));
  constant_values_.emplace(id, std::move(value));
  return id;
}

Result<SlotId> Registry::add_slot(SlotSpec spec) {
  HF_TRY(check_building("slot", spec.name));
  HF_TRY(check_spec(spec));
  HF_ASSIGN(const std::size_t bytes, positive_bytes("slot", spec.name, spec.dtype, spec.shape));
  const bool versioned = is_versioned(spec.slot_class);
  if (spec.arena.empty()) spec.arena = versioned ? "weights" : "working";
  const auto known = arena_by_name_.find(spec.arena);
  std::size_t used = 0;
  if (known != arena_by_name_.end()) {
    const ArenaRecord& record = *arenas_[known->second];
    used = record.bytes;
    if (record.versioned != versioned) {
      return make_error(ErrorCode::kInvalidArgument,
                        "slot {} of class {} cannot share arena {} with slot {} of class {}: a "
                        "commit replaces the one and not the other",
                        spec.name, slot_class_name(spec.slot_class), spec.arena,
                        slot(record.slots[0]).spec.name,
                        slot_class_name(slot(record.slots[0]).spec.slot_class));
    }
  }
  const std::size_t offset = align_up(used, spec.alignment);
  if (bytes > kMaxArenaBytes - std::min(offset, kMaxArenaBytes)) {
    return make_error(ErrorCode::kResourceExhausted,
                      "slot {}: {} bytes do not fit in arena {}, which has {} of at most {}",
                      spec.name, bytes, spec.arena, used, kMaxArenaBytes);
  }
  if (known == arena_by_name_.end()) {
    arena_by_name_.emplace(spec.arena, arenas_.size());
    arenas_.push_back(std::make_unique<ArenaRecord>());
    arenas_.back()->name = spec.arena;
    arenas_.back()->versioned = versioned;
  }
  const SlotId id{static_cast<std::uint32_t>(slots_.size())};
  const std::size_t arena = arena_by_name_.at(spec.arena);
  arenas_[arena]->slots.push_back(id);
  arenas_[arena]->bytes = offset + bytes;
  arena_of_slot_.push_back(arena);
  slot_by_name_.emplace(spec.name, id);
  slots_.push_back(Slot{.spec = std::move(spec), .id = id, .range = {0, bytes}});
  return id;
}

Status Registry::check_range(const ParameterSpec& spec, std::size_t bytes) const {
  const auto fail = [&](const std::string& why) {
    return make_error(ErrorCode::kMismatch, "parameter {}: {}", spec.name, why);
  };
  const Slot& target = slot(*spec.slot);
  if (spec.dtype != target.spec.dtype) {
    return fail(fmt::format("dtype {} does not fit slot {} of dtype {}",
                            tensor::dtype_name(spec.dtype), target.spec.name,
                            tensor::dtype_name(target.spec.dtype)));
  }
  const std::size_t room = target.range.bytes - std::min(target.range.bytes, spec.offset_bytes);
  if (bytes > room) {
    return fail(fmt::format("{} bytes at offset {} leave slot {} of {} bytes", bytes,
                            spec.offset_bytes, target.spec.name, target.range.bytes));
  }
  const auto bound = bound_.find(*spec.slot);
  if (bound == bound_.end()) return {};
  const auto next = bound->second.lower_bound(spec.offset_bytes);
  const auto overlap = [&](ParameterId other) {
    return fail(fmt::format("bytes {} to {} of slot {} overlap parameter {}", spec.offset_bytes,
                            spec.offset_bytes + bytes, target.spec.name,
                            parameters_[other.index()].name));
  };
  if (next != bound->second.end() && next->first < spec.offset_bytes + bytes) {
    return overlap(next->second);
  }
  if (next == bound->second.begin()) return {};
  const auto& [offset, previous] = *std::prev(next);
  const ParameterSpec& before = parameters_[previous.index()];
  const std::size_t end = offset + tensor::byte_size(before.dtype, before.shape).value();
  return end > spec.offset_bytes ? Status(overlap(previous)) : Status();
}

Status Registry::check_parts(const ParameterSpec& spec) const {
  if (spec.part_names.empty()) return {};
  const auto rows = spec.shape.rank() > 0 ? spec.shape[0] : 0;
  const std::int64_t elements = spec.part_shape.element_count();
  if (static_cast<std::int64_t>(spec.part_names.size()) != rows ||
      elements * rows != spec.shape.element_count()) {
    return make_error(ErrorCode::kMismatch,
                      "parameter {} of shape {} is published as {} parts of shape {}, expected one "
                      "for each row",
                      spec.name, spec.shape.to_string(), spec.part_names.size(),
                      spec.part_shape.to_string());
  }
  std::unordered_set<std::string_view> names{spec.name};
  for (const std::string& part : spec.part_names) {
    if (!part.empty() && !find_published(part) && names.insert(part).second) continue;
    return make_error(ErrorCode::kInvalidArgument, "parameter {}: the name of its part '{}' {}",
                      spec.name, part, part.empty() ? "is empty" : "is taken");
  }
  return {};
}

Result<ParameterId> Registry::bind(ParameterSpec spec) {
  HF_TRY(check_building("parameter", spec.name));
  if (spec.name.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "a parameter without a name");
  }
  if (find_published(spec.name)) {
    return make_error(ErrorCode::kInvalidArgument, "parameter {} is bound twice", spec.name);
  }
  HF_TRY(check_parts(spec));
  if (std::max(parameters_.size(), part_by_name_.size() + spec.part_names.size()) >=
      kMaxParameters) {
    return make_error(ErrorCode::kResourceExhausted,
                      "parameter {}: a registry holds at most {} parameters", spec.name,
                      kMaxParameters);
  }
  HF_ASSIGN(const std::size_t bytes,
            positive_bytes("parameter", spec.name, spec.dtype, spec.shape));
  const ParameterId id{static_cast<std::uint32_t>(parameters_.size())};
  if (spec.slot) {
    if (spec.slot->index() >= slots_.size()) {
      return make_error(ErrorCode::kInvalidArgument, "parameter {}: slot id {} of {} slots",
                        spec.name, spec.slot->value, slots_.size());
    }
    const Slot& target = slot(*spec.slot);
    if (target.spec.slot_class != SlotClass::kWeight) {
      return make_error(ErrorCode::kInvalidArgument,
                        "parameter {}: slot {} has class {}, and only weight slots are loaded",
                        spec.name, target.spec.name, slot_class_name(target.spec.slot_class));
    }
    HF_TRY(check_range(spec, bytes));
    bound_[*spec.slot].emplace(spec.offset_bytes, id);
  } else if (spec.offset_bytes != 0) {
    return make_error(ErrorCode::kInvalidArgument, "parameter {}: offset {} without a slot",
                      spec.name, spec.offset_bytes);
  }
  parameter_by_name_.emplace(spec.name, id);
  for (std::size_t row = 0; row < spec.part_names.size(); ++row) {
    part_by_name_.emplace(spec.part_names[row],
                          PublishedTensor{.parameter = id, .row = static_cast<std::int64_t>(row)});
  }
  if (spec.layer < 0) spec.layer = layer_of_name(spec.name);
  parameters_.push_back(std::move(spec));
  return id;
}

Status Registry::bind_alias(std::string name, ParameterId parameter) {
  HF_TRY(check_building("alias", name));
  if (name.empty()) return make_error(ErrorCode::kInvalidArgument, "an alias without a name");
  if (parameter.index() >= parameters_.size()) {
    return make_error(ErrorCode::kInvalidArgument, "alias {}: parameter id {} of {} parameters",
                      name, parameter.value, parameters_.size());
  }
  const ParameterSpec& spec = parameters_[parameter.index()];
  if (!spec.slot.has_value()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "alias {}: parameter {} has no slot, so two arrivals could not be compared",
                      name, spec.name);
  }
  if (const auto taken = find_published(name)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "alias {} of parameter {}: the name is taken by {}", name, spec.name,
                      parameters_[taken->parameter.index()].name);
  }
  parameter_by_name_.emplace(name, parameter);
  aliases_.push_back({.name = std::move(name), .parameter = parameter});
  return {};
}

namespace {

Status check_slice(const Derivation& derivation, std::string_view what, const std::string& name,
                   const tensor::Shape& shape) {
  if (derivation.slice_count == 1) return {};
  if (shape.rank() >= 1 && shape[0] == derivation.slice_count) return {};
  return make_error(ErrorCode::kMismatch,
                    "derivation {} has {} slices, {} {} has shape {}: its first dimension must be "
                    "the slices",
                    derivation.name, derivation.slice_count, what, name, shape.to_string());
}

}  // namespace

Status Registry::check_outputs(const Derivation& derivation) const {
  for (std::size_t i = 0; i < derivation.outputs.size(); ++i) {
    const SlotId id = derivation.outputs[i];
    if (id.index() >= slots_.size()) {
      return make_error(ErrorCode::kInvalidArgument, "derivation {}: output slot id {} of {} slots",
                        derivation.name, id.value, slots_.size());
    }
    const Slot& output = slot(id);
    if (output.spec.slot_class != SlotClass::kDerived) {
      return make_error(ErrorCode::kInvalidArgument,
                        "derivation {}: output slot {} has class {}, not derived", derivation.name,
                        output.spec.name, slot_class_name(output.spec.slot_class));
    }
    const auto other = derivation_of_.find(id);
    const bool twice = std::count(derivation.outputs.begin(), derivation.outputs.end(), id) > 1;
    if (other != derivation_of_.end() || twice) {
      return make_error(ErrorCode::kInvalidArgument, "slot {} is an output of {} and of {}",
                        output.spec.name,
                        twice ? derivation.name : derivations_[other->second].name,
                        derivation.name);
    }
    HF_TRY(check_slice(derivation, "output slot", output.spec.name, output.spec.shape));
  }
  return {};
}

Status Registry::check_inputs(const Derivation& derivation) const {
  for (const DeriveInput& input : derivation.inputs) {
    if (const auto* parameter = std::get_if<ParameterId>(&input)) {
      if (parameter->index() >= parameters_.size()) {
        return make_error(ErrorCode::kInvalidArgument,
                          "derivation {}: input parameter id {} of {} parameters", derivation.name,
                          parameter->value, parameters_.size());
      }
      const ParameterSpec& spec = parameters_[parameter->index()];
      if (!spec.slot) HF_TRY(check_slice(derivation, "input parameter", spec.name, spec.shape));
      continue;
    }
    const SlotId id = std::get<SlotId>(input);
    if (id.index() >= slots_.size()) {
      return make_error(ErrorCode::kInvalidArgument, "derivation {}: input slot id {} of {} slots",
                        derivation.name, id.value, slots_.size());
    }
    const SlotSpec& spec = slot(id).spec;
    if (!is_versioned(spec.slot_class)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "derivation {}: input slot {} has class {}, which no commit replaces",
                        derivation.name, spec.name, slot_class_name(spec.slot_class));
    }
  }
  return {};
}

Status Registry::derive(Derivation derivation) {
  HF_TRY(check_building("derivation", derivation.name));
  if (derivation.name.empty() || !derivation.function || derivation.outputs.empty() ||
      derivation.slice_count < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "derivation '{}' needs a name, a function, outputs and slices; it has {} "
                      "outputs and {} slices",
                      derivation.name, derivation.outputs.size(), derivation.slice_count);
  }
  for (const Derivation& other : derivations_) {
    if (other.name == derivation.name) {
      return make_error(ErrorCode::kInvalidArgument, "derivation {} is defined twice",
                        derivation.name);
    }
  }
  HF_TRY(check_outputs(derivation));
  HF_TRY(check_inputs(derivation));
  for (SlotId id : derivation.outputs) derivation_of_.emplace(id, derivations_.size());
  derivations_.push_back(std::move(derivation));
  return {};
}

}  // namespace holdfast::storage
