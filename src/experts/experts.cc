#include "experts/experts.h"

#include "base/assert.h"
#include "base/error.h"
#include "experts/backends.h"
#include "experts/layer_slots.h"

namespace holdfast::experts {
namespace {

std::string_view scheme_name(config::ExpertScheme scheme) {
  return scheme == config::ExpertScheme::kMxfp4 ? "mxfp4" : "bf16";
}

}  // namespace

std::string_view experts_backend_name(ExpertsBackendKind kind) {
  switch (kind) {
    case ExpertsBackendKind::kReference: return "reference";
    case ExpertsBackendKind::kHoldfast: return "holdfast";
  }
  return "unknown";
}

std::optional<ExpertsBackendKind> experts_backend_from_name(std::string_view name) {
  for (const auto kind : {ExpertsBackendKind::kReference, ExpertsBackendKind::kHoldfast}) {
    if (name == experts_backend_name(kind)) return kind;
  }
  return std::nullopt;
}

Result<ExpertsChoice> choose_experts_backend(const ExpertsQuery& query) {
  const ExpertsBackendKind kind = query.requested.value_or(ExpertsBackendKind::kHoldfast);
  const bool on_gpu = query.device == device::DeviceKind::kCuda;
  if (on_gpu && (kind != ExpertsBackendKind::kHoldfast ||
                 query.format.scheme != config::ExpertScheme::kMxfp4)) {
    return make_error(ErrorCode::kUnsupported,
                      "experts backend {}: scheme {} has kernels for the cpu only; choose the cpu, "
                      "or on cuda backend holdfast with scheme mxfp4",
                      experts_backend_name(kind), scheme_name(query.format.scheme));
  }
  const Status fits = check_spec(ExpertsSpec{.slot_prefix = "experts",
                                             .format = query.format,
                                             .shape = query.shape});
  if (!fits.ok()) {
    return make_error(ErrorCode::kUnsupported, "experts backend {}: scheme {}: {}",
                      experts_backend_name(kind), scheme_name(query.format.scheme),
                      fits.error().message());
  }
  if (query.requested.has_value()) {
    return ExpertsChoice{kind, fmt::format("{} was asked for", experts_backend_name(kind))};
  }
  if (on_gpu) {
    return ExpertsChoice{kind, "holdfast: mxfp4 weights as published, bf16 tensor cores"};
  }
  return ExpertsChoice{kind, fmt::format("holdfast: packed {} weights, SIMD on all cores",
                                         scheme_name(query.format.scheme))};
}

std::unique_ptr<ExpertsBackend> make_experts_backend(ExpertsBackendKind kind,
                                                     device::DeviceKind device) {
  if (device == device::DeviceKind::kCuda) return make_gpu_backend();
  return kind == ExpertsBackendKind::kReference ? make_reference_backend()
                                                : make_holdfast_backend();
}

}  // namespace holdfast::experts
