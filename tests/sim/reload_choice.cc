#include "reload_choice.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>

#include <fmt/format.h>

#include "simulation.h"

namespace holdfast::sim {
namespace {

constexpr std::size_t kPlainVersions = 3;  // the others are made of these
constexpr std::size_t kMaxVersions = 14;

constexpr FaultKind kReadFaults[] = {
    FaultKind::kShortRead,         FaultKind::kSourceDies,       FaultKind::kFileReplaced,
    FaultKind::kFileTruncated,     FaultKind::kNanInWeights,     FaultKind::kInfinityInWeights,
    FaultKind::kStallUntilCancel,  FaultKind::kE8M0Nan,          FaultKind::kGarbageBytes,
    FaultKind::kStallUntilDeadline};
constexpr FaultKind kManifestFaults[] = {
    FaultKind::kTensorMissing, FaultKind::kTensorUnknown, FaultKind::kTensorTwice,
    FaultKind::kWrongDtype,    FaultKind::kWrongShape,    FaultKind::kWrongConfig};
constexpr FaultKind kRequestFaults[] = {FaultKind::kDirectoryMissing, FaultKind::kHeaderGarbage,
                                        FaultKind::kOtherConstants, FaultKind::kScopeCutsUnit,
                                        FaultKind::kScopeUnknown};

bool is_one_of(std::span<const FaultKind> kinds, FaultKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// Tensors that are a whole unit by themselves.
bool stands_alone(const std::string& name) {
  for (const char* fused : {"q_proj", "k_proj", "v_proj", "_blocks", "_scales"}) {
    if (name.find(fused) != std::string::npos) return false;
  }
  return true;
}

std::string text_of(const ReloadScope& scope) {
  std::string text;
  for (const auto layer : scope.layers) text += fmt::format(" layer {}", layer);
  for (const auto& [layer, expert] : scope.experts) {
    text += fmt::format(" expert {}/{}", layer, expert);
  }
  for (const auto& name : scope.parameters) text += " " + name;
  return text;
}

}  // namespace

bool ReloadChoice::refused_by_plan() const {
  return is_one_of(kManifestFaults, fault) || is_one_of(kRequestFaults, fault) ||
         fault == FaultKind::kPartWhilePoisoned;
}

// ------------------------------------------------------------------------------ versions

Result<std::string> Simulation::directory_of(std::size_t version) {
  Version& wanted = versions_.at(version);
  if (!wanted.written) {
    HF_TRY(write_checkpoint(shape_, wanted.weights, wanted.directory));
    wanted.written = true;
  }
  return wanted.directory;
}

std::size_t Simulation::add_version(const WeightsSpec& weights) {
  versions_.push_back({.weights = weights,
                       .directory = temp_ / fmt::format("version-{}", versions_.size())});
  return versions_.size() - 1;
}

// What is live, with part of another version over it.
std::size_t Simulation::compose(std::size_t source, const std::vector<WeightsPart>& parts) {
  WeightsSpec weights = versions_[expected_.version].weights;
  for (WeightsPart part : parts) {
    part.seed = versions_[source].weights.seed;
    weights.parts.push_back(part);
  }
  return add_version(weights);
}

std::vector<WeightsPart> Simulation::draw_scope(ReloadScope& scope) {
  std::vector<WeightsPart> parts;
  const auto layers = static_cast<std::uint64_t>(shape_.layers);
  for (std::uint64_t i = 1 + below(2); i > 0; --i) {
    const auto layer = static_cast<std::int64_t>(below(layers));
    switch (below(3)) {
      case 0:
        scope.layers.push_back(layer);
        parts.push_back({.layer = layer});
        break;
      case 1: {
        const auto expert =
            static_cast<std::int64_t>(below(static_cast<std::uint64_t>(shape_.experts)));
        scope.experts.emplace_back(layer, expert);
        parts.push_back({.layer = layer, .expert = expert});
        break;
      }
      default: {
        const auto names = tensor_names(shape_);
        std::size_t at = below(names.size());
        while (!stands_alone(names[at])) at = (at + 1) % names.size();
        scope.parameters.push_back(names[at]);
        parts.push_back({.tensor = names[at]});
      }
    }
  }
  return parts;
}

// A scope that no reload may have.
void Simulation::draw_bad_scope(FaultKind kind, ReloadScope& scope) {
  const auto layer = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(shape_.layers)));
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  if (kind == FaultKind::kScopeCutsUnit) {
    const bool scales = shape_.mxfp4 && one_in(2);
    scope.parameters.push_back(prefix + (scales ? "mlp.experts.down_proj_scales"
                                                : "self_attn.k_proj.weight"));
    return;
  }
  switch (below(3)) {
    case 0: scope.layers.push_back(shape_.layers); break;
    case 1: scope.experts.emplace_back(layer, shape_.experts); break;
    default: scope.parameters.push_back(prefix + "no_such.weight");
  }
}

// ------------------------------------------------------------------------------ one reload

FaultKind Simulation::draw_reload_fault() {
  const std::uint64_t draw = below(24);
  const auto pick = [this](std::span<const FaultKind> kinds) { return kinds[below(kinds.size())]; };
  if (draw < 7) return pick(kReadFaults);
  if (draw < 10) return pick(kManifestFaults);
  if (draw < 13) return pick(kRequestFaults);
  if (draw == 13) return FaultKind::kZeroTensor;
  return FaultKind::kNone;
}

void Simulation::draw_strategy(ReloadOptions& options) {
  constexpr const char* kStrategies[] = {"remap", "copy", "stream", "auto"};
  options.commit = kStrategies[below(std::size(kStrategies))];
  options.undo_image = options.commit == "stream" && one_in(2);
}

// Which weights, and whether all of them.
void Simulation::draw_weights(bool may_fail, ReloadChoice& choice) {
  const std::size_t source = below(kPlainVersions);
  const bool others = versions_[source].weights.other_constants !=
                      versions_[expected_.version].weights.other_constants;
  choice.version = source;
  choice.directory = directory_of(source).value();
  choice.options.apply_constants = others || one_in(4);
  if (choice.fault == FaultKind::kZeroTensor) {
    WeightsSpec zero = versions_[source].weights;
    zero.has_zero_tensor = true;
    zero.all_zero = rng_.next();
    if (zero_version_ == 0) zero_version_ = add_version(zero);
    choice.version = zero_version_;
    choice.directory = directory_of(zero_version_).value();
    choice.options.apply_constants = true;
    return;
  }
  if (choice.fault == FaultKind::kScopeCutsUnit || choice.fault == FaultKind::kScopeUnknown) {
    draw_bad_scope(choice.fault, choice.options.scope);
    return;
  }
  const bool may_be_part = may_fail && !others && versions_.size() < kMaxVersions &&
                           choice.fault == FaultKind::kNone;
  if (!may_be_part || !one_in(3)) return;
  choice.part = true;
  const auto parts = draw_scope(choice.options.scope);
  if (expected_.poisoned) {
    choice.fault = FaultKind::kPartWhilePoisoned;
  } else {
    choice.version = compose(source, parts);
  }
}

// Where a reload reads from: a copy, when the fault changes files.
std::string Simulation::prepare_directory(const ReloadChoice& choice) {
  if (choice.fault == FaultKind::kDirectoryMissing) return temp_ / "no-such-directory";
  const std::string copy = temp_ / "copy";
  std::filesystem::remove_all(copy);
  if (choice.fault == FaultKind::kOtherConstants) {
    WeightsSpec other = versions_[choice.version].weights;
    other.other_constants = !versions_[expected_.version].weights.other_constants;
    static_cast<void>(write_checkpoint(shape_, other, copy));
    return copy;
  }
  std::filesystem::copy(choice.directory, copy);
  if (choice.fault != FaultKind::kHeaderGarbage) return copy;
  for (const auto& entry : std::filesystem::directory_iterator(copy)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(below(60)));
    // Control characters: valid neither in the JSON header nor as its length.
    for (int i = 0; i < 8; ++i) file.put('\x01');
  }
  return copy;
}

ReloadChoice Simulation::draw_reload(bool may_fail) {
  ReloadChoice choice;
  ReloadOptions& options = choice.options;
  if (may_fail) choice.fault = draw_reload_fault();
  draw_strategy(options);
  draw_weights(may_fail, choice);
  // The hook of such a stall would wait for its own thread, or for the commit that it hinders.
  const bool cannot_wait = options_.background || choice.streams();
  if (choice.fault == FaultKind::kStallUntilCancel && cannot_wait) {
    choice.fault = FaultKind::kSourceDies;
  }
  if (choice.fault == FaultKind::kStallUntilDeadline && options_.background) {
    choice.fault = FaultKind::kSourceDies;
  }
  const FaultKind fault = choice.fault;
  if (fault == FaultKind::kStallUntilDeadline || one_in(5)) options.deadline_ms = 3'600'000;
  const bool digests = fault == FaultKind::kGarbageBytes || (!choice.part && one_in(4));
  if (digests && fault != FaultKind::kOtherConstants) {
    options.digests_file = temp_ / "digests.json";
    static_cast<void>(write_digests(shape_, versions_[choice.version].weights,
                                    options.digests_file));
  }
  if (is_one_of(kReadFaults, fault) || is_one_of(kManifestFaults, fault)) {
    choice.source_fault =
        SourceFault{.kind = fault, .at_read = below(12), .choice = rng_.next()};
  }
  if (fault == FaultKind::kOtherConstants) options.apply_constants = false;
  if (fault == FaultKind::kWrongConfig) options.apply_constants = false;
  if (fault != FaultKind::kNone && fault != FaultKind::kZeroTensor && !choice.part) {
    choice.directory = prepare_directory(choice);
  }
  if (one_in(2)) options.version = fmt::format("label-{}", below(1000));
  options.commit_when_ready = may_fail && one_in(2);
  options.inject = options_.inject;
  options.in_flight = static_cast<InFlight>(below(5));
  choice.text = fmt::format("{}, {}{}{}{}", options.commit, in_flight_name(options.in_flight),
                             options.undo_image ? " with undo" : "",
                            text_of(options.scope),
                            fault == FaultKind::kNone
                                ? ""
                                : fmt::format(", fault {}", fault_kind_name(fault)));
  return choice;
}

}  // namespace holdfast::sim
