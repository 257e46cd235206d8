#include "reload/plan.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

namespace holdfast::reload {
namespace {

// Fitted to reload_bench on a 2-core AMD EPYC (Zen 5) with other work running: the two mremap calls
// alone take 410 to 510 us per GiB there, and the rest of a swap is system calls per arena.
constexpr double kRemapUsPerGib = 800.0;
constexpr double kRemapUsPerArena = 60.0;
// Two reads and two writes of memory per byte, on the one thread that commits.
constexpr double kSwapBytesPerUs = 8000.0;

// How many defects an error spells out before it counts the rest.
constexpr std::size_t kSpelledDefects = 3;
constexpr std::size_t kNearestNames = 3;

class Planner {
 public:
  Planner(const storage::Registry& registry, const Source& source)
      : registry_(registry), source_(source) {}

  Result<ReloadPlan> make(CommitStrategy strategy);

 private:
  Status account();
  void account_source_tensor(std::size_t index);
  void account_parameter(std::size_t index);
  void defect(ErrorCode code, std::string text);
  std::string nearest_parameters(std::string_view name) const;
  std::string nearest_sources(std::string_view name) const;
  Status add_copies(ReloadPlan& plan) const;
  Status add_derivations(ReloadPlan& plan);
  Result<DeriveStep> derive_step(std::size_t index);
  Status check_all_used() const;
  void declare_cost(ReloadPlan& plan) const;

  const storage::Registry& registry_;
  const Source& source_;
  std::vector<std::optional<std::size_t>> source_of_parameter_;
  std::vector<bool> used_;  // by parameter: some step reads it
  std::vector<std::string> defects_;
  std::size_t defect_count_ = 0;
  ErrorCode first_code_ = ErrorCode::kMismatch;
};

std::string nearest_text(const std::vector<std::string>& names) {
  if (names.empty()) return "none are known";
  return fmt::format("nearest: {}", fmt::join(names, ", "));
}

void Planner::defect(ErrorCode code, std::string text) {
  if (defect_count_++ == 0) first_code_ = code;
  if (defects_.size() < kSpelledDefects) defects_.push_back(std::move(text));
}

std::string Planner::nearest_parameters(std::string_view name) const {
  std::vector<std::string> known;
  for (const auto& parameter : registry_.parameters()) known.push_back(parameter.name);
  return nearest_text(checkpoint::nearest_names(name, known, kNearestNames));
}

std::string Planner::nearest_sources(std::string_view name) const {
  std::vector<std::string> known;
  for (const auto& tensor : source_.tensors()) known.push_back(tensor.name);
  return nearest_text(checkpoint::nearest_names(name, known, kNearestNames));
}

void Planner::account_source_tensor(std::size_t index) {
  const SourceTensor& tensor = source_.tensors()[index];
  const auto id = registry_.find_parameter(tensor.name);
  if (!id.has_value()) {
    // The nearest names cost a pass over all names: only for defects that will be spelled out.
    const bool spelled = defects_.size() < kSpelledDefects;
    return defect(ErrorCode::kMismatch,
                  fmt::format("tensor {} is not a parameter of the live model ({})", tensor.name,
                              spelled ? nearest_parameters(tensor.name) : ""));
  }
  auto& source_index = source_of_parameter_[id->index()];
  if (source_index.has_value()) {
    return defect(ErrorCode::kMismatch,
                  fmt::format("tensor {} comes twice, as number {} and number {} of the source",
                              tensor.name, *source_index, index));
  }
  source_index = index;
  const storage::ParameterSpec& parameter = registry_.parameters()[id->index()];
  if (tensor.dtype != parameter.dtype) {
    defect(ErrorCode::kMismatch,
           fmt::format("tensor {}: dtype {}, expected {}; nothing is cast in silence", tensor.name,
                       tensor::dtype_name(tensor.dtype), tensor::dtype_name(parameter.dtype)));
  } else if (tensor.shape != parameter.shape) {
    defect(ErrorCode::kMismatch,
           fmt::format("tensor {}: shape {}, expected {}", tensor.name, tensor.shape.to_string(),
                       parameter.shape.to_string()));
  }
}

void Planner::account_parameter(std::size_t index) {
  if (source_of_parameter_[index].has_value()) return;
  const std::string& name = registry_.parameters()[index].name;
  const bool spelled = defects_.size() < kSpelledDefects;
  defect(ErrorCode::kNotFound,
         fmt::format("tensor {} is missing ({})", name, spelled ? nearest_sources(name) : ""));
}

Status Planner::account() {
  source_of_parameter_.assign(registry_.parameters().size(), std::nullopt);
  for (std::size_t i = 0; i < source_.tensors().size(); ++i) account_source_tensor(i);
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) account_parameter(i);
  if (defect_count_ == 0) return {};
  const std::size_t rest = defect_count_ - defects_.size();
  return make_error(first_code_, "{}: {}{}", source_.describe(), fmt::join(defects_, "; "),
                    rest == 0 ? "" : fmt::format("; and {} more", rest));
}

Status Planner::add_copies(ReloadPlan& plan) const {
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const storage::ParameterSpec& parameter = registry_.parameters()[i];
    if (!parameter.slot.has_value()) continue;
    HF_ASSIGN(const std::size_t bytes, tensor::byte_size(parameter.dtype, parameter.shape));
    plan.copies.push_back({.source_index = *source_of_parameter_[i],
                           .parameter = storage::ParameterId{static_cast<std::uint32_t>(i)},
                           .slot = *parameter.slot,
                           .offset_bytes = parameter.offset_bytes,
                           .bytes = bytes});
    plan.source_bytes += bytes;
  }
  // In the source's own order, so that a file is read from front to back.
  std::sort(plan.copies.begin(), plan.copies.end(),
            [](const CopyStep& a, const CopyStep& b) { return a.source_index < b.source_index; });
  return {};
}

Result<DeriveStep> Planner::derive_step(std::size_t index) {
  const storage::Derivation& derivation = registry_.derivations()[index];
  DeriveStep step{.derivation_index = index, .source_of_input = {}};
  for (const storage::DeriveInput& input : derivation.inputs) {
    if (const auto* slot = std::get_if<storage::SlotId>(&input)) {
      if (!storage::is_versioned(registry_.slot(*slot).spec.slot_class)) {
        return make_error(ErrorCode::kFailedPrecondition,
                          "derivation {} reads slot {}, whose class {} is not replaced by a reload",
                          derivation.name, registry_.slot(*slot).spec.name,
                          storage::slot_class_name(registry_.slot(*slot).spec.slot_class));
      }
      step.source_of_input.emplace_back(std::nullopt);
      continue;
    }
    const auto id = std::get<storage::ParameterId>(input);
    used_[id.index()] = true;
    const bool transient = !registry_.parameters()[id.index()].slot.has_value();
    step.source_of_input.push_back(transient ? source_of_parameter_[id.index()] : std::nullopt);
  }
  return step;
}

Status Planner::add_derivations(ReloadPlan& plan) {
  used_.assign(registry_.parameters().size(), false);
  for (std::size_t index = 0; index < registry_.derivations().size(); ++index) {
    HF_ASSIGN(DeriveStep step, derive_step(index));
    const storage::Derivation& derivation = registry_.derivations()[index];
    for (std::size_t i = 0; i < step.source_of_input.size(); ++i) {
      if (!step.source_of_input[i].has_value()) continue;
      const auto id = std::get<storage::ParameterId>(derivation.inputs[i]);
      const storage::ParameterSpec& parameter = registry_.parameters()[id.index()];
      HF_ASSIGN(const std::size_t bytes, tensor::byte_size(parameter.dtype, parameter.shape));
      plan.source_bytes += bytes;
    }
    plan.peak_host_bytes = std::max(plan.peak_host_bytes, transient_buffer_bytes(registry_, step));
    plan.derivations.push_back(std::move(step));
  }
  return {};
}

Status Planner::check_all_used() const {
  for (std::size_t i = 0; i < registry_.parameters().size(); ++i) {
    const storage::ParameterSpec& parameter = registry_.parameters()[i];
    if (parameter.slot.has_value() || used_[i]) continue;
    return make_error(ErrorCode::kFailedPrecondition,
                      "parameter {} has no slot and feeds no derivation: its bytes would be lost; "
                      "bind it to a slot or make it a derivation's input",
                      parameter.name);
  }
  return {};
}

void Planner::declare_cost(ReloadPlan& plan) const {
  for (const storage::Slot& slot : registry_.slots()) {
    if (!storage::is_versioned(slot.spec.slot_class)) continue;
    plan.versioned_bytes += slot.range.bytes;
    if (slot.spec.slot_class == storage::SlotClass::kConstant) ++plan.constant_count;
  }
  const auto arenas = registry_.versioned_arenas();
  for (const device::Arena* arena : arenas) plan.peak_device_bytes += arena->memory().bytes;
  const double bytes = static_cast<double>(plan.peak_device_bytes);
  switch (plan.strategy) {
    case CommitStrategy::kRemap:
      plan.expected_pause_us = static_cast<double>(arenas.size()) * kRemapUsPerArena +
                               bytes / static_cast<double>(1u << 30) * kRemapUsPerGib;
      break;
    case CommitStrategy::kCopy:
      plan.expected_pause_us = bytes / kSwapBytesPerUs;
      plan.peak_host_bytes += kSwapBlockBytes;
      break;
  }
}

Result<ReloadPlan> Planner::make(CommitStrategy strategy) {
  ReloadPlan plan;
  plan.source = source_.describe();
  plan.from_epoch = registry_.epoch();
  plan.strategy = strategy;
  HF_TRY(account());
  HF_TRY(add_copies(plan));
  HF_TRY(add_derivations(plan));
  HF_TRY(check_all_used());
  declare_cost(plan);
  return plan;
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
  for (std::size_t i = 0; i < step.source_of_input.size(); ++i) {
    if (!step.source_of_input[i].has_value()) continue;
    const auto id = std::get<storage::ParameterId>(derivation.inputs[i]);
    bytes += round_to_transient_alignment(
        transient_slice_bytes(derivation, registry.parameters()[id.index()]));
  }
  return bytes;
}

Result<ReloadPlan> make_plan(const storage::Registry& registry, const config::ModelConfig& live,
                             const Source& source, CommitStrategy strategy) {
  if (!registry.sealed()) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a reload plan needs a sealed registry: seal it first");
  }
  if (source.tensors().size() > kMaxSourceTensors) {
    return make_error(ErrorCode::kResourceExhausted, "{} lists {} tensors, the limit is {}",
                      source.describe(), source.tensors().size(), kMaxSourceTensors);
  }
  if (auto status = config::check_replaceable(live, source.config()); !status.ok()) {
    return status.error().with_context(source.describe());
  }
  return Planner(registry, source).make(strategy);
}

}  // namespace holdfast::reload
