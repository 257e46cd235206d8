#include "reload/plan.h"

#include <algorithm>

#include "base/error.h"
#include "reload/account.h"

namespace holdfast::reload {
namespace {

using storage::SlotClass;

class Planner {
 public:
  Planner(const storage::Registry& registry, const Source& source, const PlanOptions& options)
      : registry_(registry), source_(source), options_(options) {}

  Result<ReloadPlan> make(const config::ModelConfig& live);

 private:
  Status check_config(const config::ModelConfig& live);
  Status add_constant_changes();
  Status check_all_used() const;
  void add_copies();
  void add_derivations(Selection& selection);
  std::vector<std::vector<ByteRange>> written_ranges() const;
  void add_preserved();

  const storage::Registry& registry_;
  const Source& source_;
  const PlanOptions& options_;
  ReloadPlan plan_;
};

Status Planner::check_config(const config::ModelConfig& live) {
  const auto fail = [&](const config::ConfigDifference& field, std::string_view advice) {
    return make_error(ErrorCode::kMismatch, "{}: {} is {} in the live model and {} in the next; {}",
                      source_.describe(), field.field, field.live, field.next, advice);
  };
  plan_.config_changes = config::compare(live, source_.config());
  for (const config::ConfigDifference& field : plan_.config_changes) {
    if (!field.constants_only) {
      return fail(field, "it shapes storage or captured code: load that model anew");
    }
    if (options_.constants == ConstantsPolicy::kRefuse) {
      return fail(field, "it decides constants: declare that they are applied, or keep the config");
    }
    if (options_.constant_values.empty()) {
      return fail(field, "it decides constants, and no new values were given");
    }
  }
  return add_constant_changes();
}

Status Planner::add_constant_changes() {
  if (!options_.constant_values.empty() && options_.constants == ConstantsPolicy::kRefuse) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} new constant values were given and the policy is to refuse them",
                      options_.constant_values.size());
  }
  for (const auto& [name, value] : options_.constant_values) {
    const auto id = registry_.find_slot(name);
    if (!id.has_value() || registry_.slot(*id).spec.slot_class != SlotClass::kConstant) {
      return make_error(ErrorCode::kNotFound, "a new value for {}, which is no constant slot",
                        name);
    }
    const std::size_t bytes = registry_.slot(*id).range.bytes;
    if (value.size() != bytes) {
      return make_error(ErrorCode::kMismatch, "constant slot {} has {} bytes, its new value {}",
                        name, bytes, value.size());
    }
    const auto now = registry_.constant_value(*id);
    if (std::equal(now.begin(), now.end(), value.begin(), value.end())) continue;
    plan_.constant_changes.push_back({.slot = *id, .value = value});
  }
  return {};
}

Status Planner::check_all_used() const {
  std::vector<bool> used(registry_.parameters().size());
  for (const storage::Derivation& derivation : registry_.derivations()) {
    for (const storage::DeriveInput& input : derivation.inputs) {
      const auto* id = std::get_if<storage::ParameterId>(&input);
      if (id != nullptr) used[id->index()] = true;
    }
  }
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const storage::ParameterSpec& parameter = registry_.parameters()[i];
    if (parameter.slot.has_value() || used[i]) continue;
    return make_error(ErrorCode::kFailedPrecondition,
                      "parameter {} has no slot and feeds no derivation: its bytes would be lost; "
                      "bind it to a slot or make it a derivation's input",
                      parameter.name);
  }
  return {};
}

void Planner::add_copies() {
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const storage::ParameterSpec& parameter = registry_.parameters()[i];
    const ParameterFeed& feed = plan_.feeds[i];
    const tensor::DType from = feed.cast_from.value_or(parameter.dtype);
    for (const SourcePiece& piece : feed.pieces) {
      plan_.source_bytes += (piece.end - piece.begin) *
                            static_cast<std::uint64_t>(tensor::dtype_bits(from)) /
                            static_cast<std::uint64_t>(tensor::dtype_bits(parameter.dtype));
      if (!parameter.slot.has_value()) continue;
      plan_.copies.push_back({.source_index = piece.source_index,
                              .parameter = storage::ParameterId{static_cast<std::uint32_t>(i)},
                              .slot = *parameter.slot,
                              .offset_bytes = parameter.offset_bytes + piece.begin,
                              .bytes = piece.end - piece.begin,
                              .parameter_offset = piece.begin});
    }
    if (feed.alias_source.has_value()) {
      // Both names are read once more, to be compared.
      plan_.source_bytes += 2 * tensor::byte_size(from, parameter.shape).value();
    }
    if (!feed.cast_from.has_value()) continue;
    plan_.notes.push_back(
        fmt::format("{} is cast from {} to {} ({})", parameter.name, tensor::dtype_name(from),
                    tensor::dtype_name(parameter.dtype),
                    is_narrowing(from, parameter.dtype) ? "narrowing" : "widening"));
  }
  // In the source's own order, so that a file is read from front to back.
  std::sort(plan_.copies.begin(), plan_.copies.end(),
            [](const CopyStep& a, const CopyStep& b) { return a.source_index < b.source_index; });
}

void Planner::add_derivations(Selection& selection) {
  for (std::size_t index = 0; index < registry_.derivations().size(); ++index) {
    auto& slices = selection.slices_of_derivation[index];
    if (slices.empty()) continue;
    DeriveStep step{.derivation_index = index, .from_source = {}, .slices = std::move(slices)};
    for (const storage::DeriveInput& input : registry_.derivations()[index].inputs) {
      const auto* id = std::get_if<storage::ParameterId>(&input);
      step.from_source.push_back(id != nullptr &&
                                 !registry_.parameters()[id->index()].slot.has_value());
    }
    plan_.derivations.push_back(std::move(step));
  }
}

// By slot: what the copies and derivations write, in order.
std::vector<std::vector<ByteRange>> Planner::written_ranges() const {
  std::vector<std::vector<ByteRange>> written(registry_.slots().size());
  for (const CopyStep& copy : plan_.copies) {
    written[copy.slot.index()].push_back({copy.offset_bytes, copy.offset_bytes + copy.bytes});
  }
  for (const DeriveStep& step : plan_.derivations) {
    const storage::Derivation& derivation = registry_.derivations()[step.derivation_index];
    for (const storage::SlotId id : derivation.outputs) {
      const std::uint64_t slice_bytes =
          registry_.slot(id).range.bytes / static_cast<std::uint64_t>(derivation.slice_count);
      for (const std::int64_t slice : step.slices) {
        const std::uint64_t begin = static_cast<std::uint64_t>(slice) * slice_bytes;
        written[id.index()].push_back({begin, begin + slice_bytes});
      }
    }
  }
  for (auto& ranges : written) {
    std::sort(ranges.begin(), ranges.end(),
              [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  }
  return written;
}

// What no step writes keeps its live bytes. Constants are always written.
void Planner::add_preserved() {
  const auto written = written_ranges();
  for (const storage::Slot& slot : registry_.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    if (slot.spec.slot_class == SlotClass::kConstant) {
      ++plan_.constant_count;
      plan_.versioned_bytes += slot.range.bytes;
      continue;
    }
    std::uint64_t at = 0;
    const auto preserve_until = [&](std::uint64_t end) {
      if (end <= at) return;
      plan_.preserved.push_back({.slot = slot.id, .offset_bytes = at, .bytes = end - at});
      plan_.preserved_bytes += end - at;
    };
    for (const ByteRange& range : written[slot.id.index()]) {
      preserve_until(range.begin);
      plan_.versioned_bytes += range.end - range.begin;
      at = range.end;
    }
    preserve_until(slot.range.bytes);
  }
}

Result<ReloadPlan> Planner::make(const config::ModelConfig& live) {
  plan_.source = source_.describe();
  plan_.from_epoch = registry_.epoch();
  plan_.to_epoch = registry_.next_epoch();
  plan_.scope = options_.scope;
  plan_.undo = options_.undo;
  HF_TRY(check_config(live));
  HF_TRY(check_all_used());
  std::vector<storage::SlotId> changed;
  for (const auto& change : plan_.constant_changes) changed.push_back(change.slot);
  HF_ASSIGN(Selection selection, select(registry_, options_.scope, changed));
  Account account(registry_, source_, options_, selection);
  HF_ASSIGN(plan_.feeds, account.run());
  plan_.notes = account.take_notes();
  add_copies();
  add_derivations(selection);
  add_preserved();
  HF_TRY(declare_cost(registry_, options_, plan_));
  return std::move(plan_);
}

}  // namespace

std::uint64_t transient_slice_bytes(const storage::Derivation& derivation,
                                    const storage::ParameterSpec& parameter) {
  const std::uint64_t bytes = tensor::byte_size(parameter.dtype, parameter.shape).value();
  return bytes / static_cast<std::uint64_t>(std::max<std::int64_t>(derivation.slice_count, 1));
}

std::uint64_t round_to_transient_alignment(std::uint64_t bytes) {
  return (bytes + kTransientAlignment - 1) / kTransientAlignment * kTransientAlignment;
}

std::uint64_t transient_buffer_bytes(const storage::Registry& registry, const DeriveStep& step) {
  const storage::Derivation& derivation = registry.derivations()[step.derivation_index];
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < step.from_source.size(); ++i) {
    if (!step.from_source[i]) continue;
    const auto id = std::get<storage::ParameterId>(derivation.inputs[i]);
    bytes += round_to_transient_alignment(
        transient_slice_bytes(derivation, registry.parameters()[id.index()]));
  }
  return bytes;
}

Result<ReloadPlan> make_plan(const storage::Registry& registry, const config::ModelConfig& live,
                             const Source& source, CommitStrategy strategy) {
  PlanOptions options;
  options.strategy = strategy;
  return make_plan(registry, live, source, options);
}

Result<ReloadPlan> make_plan(const storage::Registry& registry, const config::ModelConfig& live,
                             const Source& source, const PlanOptions& options) {
  if (!registry.sealed()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a reload plan needs a sealed registry: seal it first");
  }
  if (source.tensors().size() > kMaxSourceTensors) {
    return make_error(ErrorCode::kResourceExhausted, "{} lists {} tensors, the limit is {}",
                      source.describe(), source.tensors().size(), kMaxSourceTensors);
  }
  if (!options.scope.whole() && registry.epoch().value == 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "{}: a partial scope ({}) before the first load: nothing is there to be "
                      "preserved",
                      source.describe(), to_text(options.scope));
  }
  if (!options.scope.whole() && registry.poisoned()) {
    return make_error(ErrorCode::kPoisoned,
                      "{}: a partial scope ({}) over weights that are a mixture: a complete reload "
                      "comes first",
                      source.describe(), to_text(options.scope));
  }
  return Planner(registry, source, options).make(live);
}

}  // namespace holdfast::reload
