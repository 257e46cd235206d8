#include "experts/experts.h"

#include "base/assert.h"
#include "base/error.h"
#include "experts/backends.h"
#include "experts/capabilities.h"
#include "experts/layer_slots.h"

namespace holdfast::experts {
std::string_view experts_backend_name(ExpertsBackendKind kind) {
  switch (kind) {
    case ExpertsBackendKind::kReference: return "reference";
    case ExpertsBackendKind::kHoldfast: return "holdfast";
    case ExpertsBackendKind::kCutlass: return "cutlass";
    case ExpertsBackendKind::kTrtllm: return "trtllm-like";
    case ExpertsBackendKind::kMarlin: return "marlin-like";
    case ExpertsBackendKind::kMachete: return "machete-like";
    case ExpertsBackendKind::kUnquantised: return "unquantised";
  }
  return "unknown";
}

std::optional<ExpertsBackendKind> experts_backend_from_name(std::string_view name) {
  for (int i = 0; i < kExpertsBackendCount; ++i) {
    const auto kind = static_cast<ExpertsBackendKind>(i);
    if (name == experts_backend_name(kind)) return kind;
  }
  return std::nullopt;
}

Result<ExpertsChoice> choose_experts_backend(const ExpertsQuery& query) {
  const ExpertsBackendKind kind = query.requested.value_or(ExpertsBackendKind::kHoldfast);
  const std::string_view name = experts_backend_name(kind);
  const Capability capability =
      capability_of({.backend = kind, .device = query.device}, query.format);
  if (capability.support == Support::kRefused) {
    return make_error(ErrorCode::kUnsupported, "experts backend {}: scheme {}: {}", name,
                      config::expert_scheme_name(query.format.scheme), capability.reason);
  }
  if (kind == ExpertsBackendKind::kCutlass && query.device == device::DeviceKind::kCuda &&
      !has_cutlass_gpu_backend()) {
    return make_error(ErrorCode::kUnsupported,
                      "experts backend {} on cuda: this build has no CUTLASS; `pip download "
                      "--no-deps nvidia-cutlass==4.2.0.0`, unzip the wheel, configure with "
                      "-DHOLDFAST_CUTLASS=.../cutlass_library/source/include (`./dev gpu` does)",
                      name);
  }
  const Status fits = check_spec(ExpertsSpec{.slot_prefix = "experts",
                                             .format = query.format,
                                             .shape = query.shape});
  if (!fits.ok()) {
    return make_error(ErrorCode::kUnsupported, "experts backend {}: scheme {}: {}", name,
                      config::expert_scheme_name(query.format.scheme), fits.error().message());
  }
  const std::string how = fmt::format("{} weights, {}",
                                      config::expert_scheme_name(query.format.scheme),
                                      capability.reason);
  if (query.requested.has_value()) {
    return ExpertsChoice{kind, fmt::format("{} was asked for: {}", name, how)};
  }
  return ExpertsChoice{kind, fmt::format("{}: {}", name, how)};
}

std::unique_ptr<ExpertsBackend> make_experts_backend(ExpertsBackendKind kind,
                                                     device::DeviceKind device) {
  if (device == device::DeviceKind::kCuda) {
    return kind == ExpertsBackendKind::kCutlass ? make_cutlass_gpu_backend() : make_gpu_backend();
  }
  switch (kind) {
    case ExpertsBackendKind::kReference: return make_reference_backend();
    case ExpertsBackendKind::kHoldfast: return make_holdfast_backend();
    case ExpertsBackendKind::kCutlass: return make_cutlass_backend();
    case ExpertsBackendKind::kTrtllm: return make_trtllm_backend();
    case ExpertsBackendKind::kMarlin: return make_marlin_backend();
    case ExpertsBackendKind::kMachete: return make_machete_backend();
    case ExpertsBackendKind::kUnquantised: return make_unquantised_backend();
  }
  return make_holdfast_backend();
}

}  // namespace holdfast::experts
