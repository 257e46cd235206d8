// Experts backends: for one layer's experts, how weights are packed, which constants and derived
// slots the kernel needs, and the fused kernel that reads them. A backend defines slots while the
// registry is building; afterwards its layers only enqueue kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/expert_tensors.h"
#include "config/model_config.h"
#include "holdfast/result.h"
#include "ops/ops.h"
#include "storage/registry.h"

namespace holdfast::experts {

struct ExpertsShape {
  std::int64_t expert_count = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t max_rows = 0;
};

// One layer to be defined.
struct ExpertsSpec {
  std::string slot_prefix = {};       // "layers.3.experts"
  std::string parameter_prefix = {};  // "model.layers.3.mlp.experts"
  config::ExpertFormat format = {};
  // What the checkpoint publishes for one layer: config::expert_tensors.
  std::vector<config::ExpertTensor> tensors = {};
  // Quantising on arrival: what the checkpoint publishes, plain values of the same projections;
  // `tensors` (biases apart) are then made of them, and nobody publishes those. Else empty.
  std::vector<config::ExpertTensor> source_tensors = {};
  ExpertsShape shape = {};
  config::SwigluConfig swiglu = {};
};

// out[r] = residual[r] + sum_k weights[r,k] * expert(ids[r,k], x[r]), k in order, with
//   expert(e, x) = down_e(swiglu(gate_up_e(x) + gate_up_bias_e)) + down_bias_e
// (semantics.md 3.7, 4.5). An id outside [0, E) contributes nothing.
// x f32 [n, H]; ids i32 [n, K]; weights f32 [n, K]; residual f32 [n, H], may be out;
// out f32 [n, H], must not overlap x.
struct ExpertsArgs {
  ops::TensorView x, ids, weights, residual, out;
  ops::TensorView active_rows;  // i32 [1]
};

class ExpertsLayer {
 public:
  virtual ~ExpertsLayer() = default;
  // Enqueues the fused kernels. Registry must be sealed. Allocates nothing.
  virtual Status forward(const ops::OpContext& context, const ExpertsArgs& args) const = 0;
  // Names of this layer's constant slots: what the drill counts (alpha, beta, limit).
  virtual std::vector<std::string> constant_slots() const = 0;
};

class ExpertsBackend {
 public:
  virtual ~ExpertsBackend() = default;
  virtual std::string_view name() const = 0;
  // Workspaces shared by all layers: call once, before define.
  virtual Status define_workspace(storage::Registry& registry, const ExpertsShape& shape) = 0;
  // Defines the layer's slots, parameters (those of spec.tensors, under spec.parameter_prefix and a
  // dot), derivations, and its constants in the arena "experts.constants": f32 [E] each,
  // `<slot_prefix>.swiglu_alpha`, `.swiglu_beta`, `.swiglu_limit`, read by the kernel from memory.
  virtual Result<std::unique_ptr<ExpertsLayer>> define(storage::Registry& registry,
                                                       const ExpertsSpec& spec) = 0;
};

enum class ExpertsBackendKind : std::uint8_t {
  kReference,
  kHoldfast,
  kCutlass,
  kTrtllm,
  kMarlin,
  kMachete,
  kUnquantised,
};
inline constexpr int kExpertsBackendCount = 7;
// "reference", "holdfast", "cutlass", "trtllm-like", "marlin-like", "machete-like", "unquantised"
std::string_view experts_backend_name(ExpertsBackendKind kind);
std::optional<ExpertsBackendKind> experts_backend_from_name(std::string_view name);

struct ExpertsQuery {
  device::DeviceKind device = device::DeviceKind::kCpu;
  config::ExpertFormat format = {};
  ExpertsShape shape = {};
  std::optional<ExpertsBackendKind> requested = {};  // empty: choose
};
struct ExpertsChoice {
  ExpertsBackendKind kind = ExpertsBackendKind::kHoldfast;
  std::string reason;  // one line for `inspect`
};
// A pure function of the query and of experts/capabilities.h. Errors: kUnsupported naming backend,
// scheme and why.
Result<ExpertsChoice> choose_experts_backend(const ExpertsQuery& query);
std::unique_ptr<ExpertsBackend> make_experts_backend(
    ExpertsBackendKind kind, device::DeviceKind device = device::DeviceKind::kCpu);

}  // namespace holdfast::experts
