#include "reload/derive.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "device/memory.h"
#include "reload/unwritten.h"

namespace holdfast::reload {
namespace {

using tensor::TensorView;

std::optional<storage::SlotId> stale_input(const DeriveTarget& target,
                                           const storage::Derivation& derivation) {
  for (const storage::DeriveInput& input : derivation.inputs) {
    const auto* id = std::get_if<storage::SlotId>(&input);
    const std::optional<storage::SlotId> slot =
        id != nullptr
            ? *id
            : target.registry.parameters()[std::get<storage::ParameterId>(input).index()].slot;
    if (slot.has_value() && !target.staging.fresh(*slot)) return slot;
  }
  return std::nullopt;
}

// The publisher's tensors that a slice is computed from.
std::vector<std::string> published_inputs(const storage::Registry& registry,
                                          const storage::Derivation& derivation,
                                          std::int64_t slice) {
  std::vector<std::string> names;
  for (const storage::DeriveInput& input : derivation.inputs) {
    const auto* id = std::get_if<storage::ParameterId>(&input);
    if (id == nullptr) continue;
    const storage::ParameterSpec& spec = registry.parameters()[id->index()];
    const bool parted = derivation.slice_count > 1 && !spec.part_names.empty();
    names.push_back(parted ? spec.part_names[static_cast<std::size_t>(slice)] : spec.name);
  }
  return names;
}

// What a derivation computes with: views that the host can follow, and the memory of those that
// stand in for a device's.
struct HostViews {
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  std::vector<std::vector<std::byte>> buffers;  // their bytes stay where they are
};

Result<HostViews> host_views(const DeriveTarget& target, std::span<const TensorView> inputs,
                             std::span<const TensorView> outputs) {
  HostViews host{.inputs = {inputs.begin(), inputs.end()},
                 .outputs = {outputs.begin(), outputs.end()},
                 .buffers = {}};
  if (target.staging.direct()) return host;
  for (TensorView& input : host.inputs) {
    if (!target.staging.holds(input)) continue;
    HF_TRY(target.staging.get(input, host.buffers.emplace_back()));
    input.address = host.buffers.back().data();
  }
  for (TensorView& output : host.outputs) {
    host.buffers.emplace_back(output.bytes(), device::kPoisonByte);
    output.address = host.buffers.back().data();
  }
  return host;
}

Status run(const DeriveTarget& target, const storage::Derivation& derivation, std::int64_t slice,
           std::span<const TensorView> staged_inputs) {
  std::vector<TensorView> staged;
  for (const storage::SlotId id : derivation.outputs) {
    const TensorView whole = target.staging.view(id);
    staged.push_back(derivation.slice_count > 1 ? whole.rows(slice, 1) : whole);
  }
  HF_ASSIGN(const HostViews host, host_views(target, staged_inputs, staged));
  std::uint64_t buffered = 0;
  for (const auto& buffer : host.buffers) buffered += buffer.size();
  target.buffered = std::max(target.buffered, buffered);
  const auto& inputs = host.inputs;
  const auto& outputs = host.outputs;
  if (target.staging.live() && target.staging.direct()) {
    // What lies there is the previous generation; staging starts as poison.
    for (const TensorView& output : outputs) {
      std::memset(output.address, static_cast<int>(device::kPoisonByte), output.bytes());
    }
  }
  const auto compute = [&]() -> Status {
    HF_TRY(derivation.function(target.stream, inputs, outputs));
    // The host buffer is filled again for the next slice.
    return target.stream.synchronize();
  };
  HF_TRY(compute());
  HF_ASSIGN(const auto unwritten, find_unwritten(outputs, compute));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const storage::SlotId id = derivation.outputs[i];
    const auto offset =
        static_cast<std::uint64_t>(staged[i].address - target.staging.view(id).address);
    if (unwritten.has_value() && unwritten->output_index == i) {
      return make_error(ErrorCode::kCorrupt, "byte {} of slot {} was left unwritten",
                        offset + unwritten->byte, target.registry.slot(id).spec.name);
    }
    if (!target.staging.direct()) {
      HF_TRY(target.staging.put(id, offset, outputs[i].const_span()));
    }
    HF_TRY(target.staging.record(id, offset, outputs[i].bytes()));
  }
  return {};
}

}  // namespace

std::uint64_t derive_buffer_bytes(const storage::Registry& registry,
                                  const storage::Derivation& derivation) {
  if (registry.device().host_addressable()) return 0;
  const auto slot_bytes = [&](storage::SlotId id) { return registry.view(id).bytes(); };
  std::uint64_t bytes = 0;
  for (const storage::DeriveInput& input : derivation.inputs) {
    if (const auto* slot = std::get_if<storage::SlotId>(&input)) {
      bytes += slot_bytes(*slot);
      continue;
    }
    const auto& spec = registry.parameters()[std::get<storage::ParameterId>(input).index()];
    if (spec.slot) bytes += tensor::byte_size(spec.dtype, spec.shape).value();
  }
  for (const storage::SlotId output : derivation.outputs) {
    bytes += slot_bytes(output) / static_cast<std::uint64_t>(derivation.slice_count);
  }
  return bytes;
}

bool inputs_fresh(const DeriveTarget& target, const storage::Derivation& derivation) {
  return !stale_input(target, derivation).has_value();
}

Status check_inputs_fresh(const DeriveTarget& target, const storage::Derivation& derivation) {
  const auto stale = stale_input(target, derivation);
  if (!stale.has_value()) return {};
  return make_error(ErrorCode::kFailedPrecondition,
                    "derivation {} would read slot {} before it holds the bytes of epoch {}",
                    derivation.name, target.registry.slot(*stale).spec.name,
                    target.staging.generation());
}

Status derive_slice(const DeriveTarget& target, const storage::Derivation& derivation,
                    std::int64_t slice, std::span<const TensorView> inputs) {
  auto status = run(target, derivation, slice, inputs);
  if (status.ok()) return {};
  // A slice is one expert's.
  const std::string expert =
      derivation.slice_count == 1 ? std::string() : fmt::format(", expert {}", slice);
  const auto read = published_inputs(target.registry, derivation, slice);
  return status.error().with_context(
      fmt::format("derivation {}{}{}", derivation.name, expert,
                  read.empty() ? "" : fmt::format(" (reads {})", fmt::join(read, ", "))));
}

}  // namespace holdfast::reload
