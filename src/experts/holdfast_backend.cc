// The holdfast experts backend: packed weights in derived slots, Highway kernels on all workers.
// The checkpoint's matrices are transient parameters: they pass through staging one expert at a
// time and only their packed form is resident. Biases are resident as published.
#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "experts/backends.h"
#include "experts/cpu_kernels.h"
#include "experts/cpu_packing.h"
#include "experts/layer_slots.h"
#include "tensor/codecs.h"

namespace holdfast::experts {
namespace {

using config::ExpertScheme;
using device::reads;
using device::writes;
using storage::ParameterId;
using storage::Registry;
using storage::SlotId;
using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

struct MatrixSlots {
  SlotId weights, bias;
  std::optional<SlotId> scales = {};
};

struct WorkspaceSlots {
  SlotId group_begin, group_pairs, activation, down_out;
};

struct LayerSlots {
  MatrixSlots gate_up = {}, down = {};
  ConstantSlots constants = {};
  WorkspaceSlots workspace = {};
};

class HoldfastLayer final : public ExpertsLayer {
 public:
  HoldfastLayer(const Registry& registry, ExpertsShape shape, LayerSlots slots)
      : registry_(registry), shape_(shape), slots_(std::move(slots)) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, shape_));
    HF_TRY(launch_group(context.stream, args));
    HF_TRY(launch_gate_up(context.stream, args));
    HF_TRY(launch_down(context.stream, args));
    return launch_combine(context.stream, args);
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants.names; }

 private:
  TensorView view(SlotId slot) const { return registry_.view(slot); }
  TensorView scales(const MatrixSlots& matrix) const {
    return matrix.scales ? view(*matrix.scales) : TensorView{};
  }
  cpu::Matrix resolve(const MatrixSlots& matrix) const {
    return cpu::Matrix{.weights = view(matrix.weights).address,
                       .scales = scales(matrix).as<const std::uint8_t>(),
                       .bias = view(matrix.bias).as<const std::uint16_t>()};
  }
  cpu::MoeShape moe_shape(const ExpertsArgs& args) const {
    return cpu::MoeShape{.n = args.x.shape[0],
                         .expert_count = shape_.expert_count,
                         .experts_per_token = shape_.experts_per_token,
                         .hidden = shape_.hidden_size,
                         .intermediate = shape_.intermediate_size};
  }
  cpu::Groups groups() const {
    return cpu::Groups{.begin = view(slots_.workspace.group_begin).as<const std::int32_t>(),
                       .pairs = view(slots_.workspace.group_pairs).as<const std::int32_t>()};
  }

  Status launch_group(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView begin = view(slots_.workspace.group_begin);
    const TensorView pairs = view(slots_.workspace.group_pairs);
    const cpu::GroupArgs kernel_args{.shape = moe_shape(args),
                                     .ids = args.ids.as<const std::int32_t>(),
                                     .active_rows = args.active_rows.as<const std::int32_t>(),
                                     .group_begin = begin.as<std::int32_t>(),
                                     .group_pairs = pairs.as<std::int32_t>()};
    return device::launch_cpu<&cpu::group_pairs>(
        stream, "experts.group", kernel_args,
        {reads("ids", args.ids), reads("active_rows", args.active_rows),
         writes("group_begin", begin), writes("group_pairs", pairs)});
  }

  Status launch_gate_up(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView alpha = view(slots_.constants.alpha);
    const TensorView beta = view(slots_.constants.beta);
    const TensorView limit = view(slots_.constants.limit);
    const TensorView activation = view(slots_.workspace.activation);
    const cpu::GateUpArgs kernel_args{.shape = moe_shape(args),
                                      .x = args.x.as<const float>(),
                                      .gate_up = resolve(slots_.gate_up),
                                      .alpha = alpha.as<const float>(),
                                      .beta = beta.as<const float>(),
                                      .limit = limit.as<const float>(),
                                      .groups = groups(),
                                      .activation = activation.as<float>()};
    return device::launch_cpu<&cpu::gate_up>(
        stream, "experts.gate_up", kernel_args,
        {reads("x", args.x), reads("gate_up", view(slots_.gate_up.weights)),
         reads("gate_up_scales", scales(slots_.gate_up)),
         reads("gate_up_bias", view(slots_.gate_up.bias)), reads("swiglu_alpha", alpha),
         reads("swiglu_beta", beta), reads("swiglu_limit", limit),
         reads("group_begin", view(slots_.workspace.group_begin)),
         reads("group_pairs", view(slots_.workspace.group_pairs)),
         writes("activation", activation)});
  }

  Status launch_down(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView activation = view(slots_.workspace.activation);
    const TensorView down_out = view(slots_.workspace.down_out);
    const cpu::DownArgs kernel_args{.shape = moe_shape(args),
                                    .activation = activation.as<const float>(),
                                    .down = resolve(slots_.down),
                                    .groups = groups(),
                                    .down_out = down_out.as<float>()};
    return device::launch_cpu<&cpu::down>(
        stream, "experts.down", kernel_args,
        {reads("activation", activation), reads("down", view(slots_.down.weights)),
         reads("down_scales", scales(slots_.down)), reads("down_bias", view(slots_.down.bias)),
         reads("group_begin", view(slots_.workspace.group_begin)),
         reads("group_pairs", view(slots_.workspace.group_pairs)), writes("down_out", down_out)});
  }

  Status launch_combine(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView down_out = view(slots_.workspace.down_out);
    const cpu::CombineArgs kernel_args{.shape = moe_shape(args),
                                       .down_out = down_out.as<const float>(),
                                       .ids = args.ids.as<const std::int32_t>(),
                                       .weights = args.weights.as<const float>(),
                                       .residual = args.residual.as<const float>(),
                                       .active_rows = args.active_rows.as<const std::int32_t>(),
                                       .out = args.out.as<float>()};
    return device::launch_cpu<&cpu::combine>(
        stream, "experts.combine", kernel_args,
        {reads("down_out", down_out), reads("ids", args.ids), reads("weights", args.weights),
         reads("residual", args.residual), reads("active_rows", args.active_rows),
         writes("out", args.out)});
  }

  const Registry& registry_;
  ExpertsShape shape_;
  LayerSlots slots_;
};

using PackFunction = Status (*)(device::Stream&, const PackedShape&, const TensorView&,
                                const TensorView&);

// A checkpoint tensor that lives in staging alone, and the derived slot that it is packed into.
struct PackedTensor {
  std::string name;  // as the checkpoint has it, without prefix: "gate_up_proj_blocks"
  DType dtype = DType::kU8;
  Shape source;
  Shape packed;
  PackFunction pack = nullptr;
};

Result<SlotId> define_packed(Registry& registry, const ExpertsSpec& spec,
                             const PackedShape& matrix, const PackedTensor& tensor) {
  HF_ASSIGN(const ParameterId parameter,
            registry.bind(storage::ParameterSpec{.name = spec.parameter_prefix + "." + tensor.name,
                                                 .dtype = tensor.dtype,
                                                 .shape = tensor.source,
                                                 .slot = std::nullopt,
                                                 .expert_axis = true}));
  const std::string slot_name = spec.slot_prefix + "." + tensor.name + ".packed";
  HF_ASSIGN(const SlotId slot,
            registry.define(storage::SlotSpec{.name = slot_name,
                                              .slot_class = storage::SlotClass::kDerived,
                                              .dtype = tensor.dtype,
                                              .shape = tensor.packed,
                                              .arena = {}}));
  HF_TRY(registry.derive(storage::Derivation{
      .name = spec.slot_prefix + "." + tensor.name + ".pack",
      .inputs = {parameter},
      .outputs = {slot},
      .slice_count = spec.shape.expert_count,
      .function = [matrix, pack = tensor.pack](device::Stream& stream,
                                               std::span<const TensorView> inputs,
                                               std::span<const TensorView> outputs) {
        return pack(stream, matrix, inputs[0], outputs[0]);
      }}));
  return slot;
}

Result<MatrixSlots> define_matrix(Registry& registry, const ExpertsSpec& spec,
                                  const std::string& name, const PackedShape& matrix) {
  const std::int64_t experts = spec.shape.expert_count;
  MatrixSlots slots;
  if (spec.format.scheme == ExpertScheme::kMxfp4) {
    const std::int64_t blocks = matrix.columns / tensor::kMxBlock;
    HF_ASSIGN(slots.weights,
              define_packed(registry, spec, matrix,
                            {.name = name + "_blocks",
                             .dtype = DType::kU8,
                             .source = {experts, matrix.rows, blocks, 16},
                             .packed = packed_codes_shape(matrix, experts),
                             .pack = &pack_codes}));
    HF_ASSIGN(slots.scales,
              define_packed(registry, spec, matrix,
                            {.name = name + "_scales",
                             .dtype = DType::kU8,
                             .source = {experts, matrix.rows, blocks},
                             .packed = packed_scales_shape(matrix, experts),
                             .pack = &pack_scales}));
  } else {
    HF_ASSIGN(slots.weights, define_packed(registry, spec, matrix,
                                           {.name = name,
                                            .dtype = DType::kBF16,
                                            .source = {experts, matrix.columns, matrix.rows},
                                            .packed = packed_bf16_shape(matrix, experts),
                                            .pack = &pack_bf16}));
  }
  HF_ASSIGN(slots.bias, define_weight(registry, spec, name + "_bias", DType::kBF16,
                                      {experts, matrix.rows}));
  return slots;
}

class HoldfastBackend final : public ExpertsBackend {
 public:
  std::string_view name() const override { return "holdfast"; }

  Status define_workspace(Registry& registry, const ExpertsShape& shape) override {
    const auto scratch = [&](const char* name, DType dtype, const Shape& slot_shape) {
      return registry.define(storage::SlotSpec{.name = name,
                                               .slot_class = storage::SlotClass::kScratch,
                                               .dtype = dtype,
                                               .shape = slot_shape,
                                               .arena = {}});
    };
    const std::int64_t pairs = shape.max_rows * shape.experts_per_token;
    HF_ASSIGN(slots_.group_begin, scratch("experts.workspace.group_begin", DType::kI32,
                                          {shape.expert_count + 1}));
    HF_ASSIGN(slots_.group_pairs,
              scratch("experts.workspace.group_pairs", DType::kI32, {pairs}));
    HF_ASSIGN(slots_.activation, scratch("experts.workspace.activation", DType::kF32,
                                         {pairs, shape.intermediate_size}));
    HF_ASSIGN(slots_.down_out,
              scratch("experts.workspace.down_out", DType::kF32, {pairs, shape.hidden_size}));
    workspace_ = shape;
    return {};
  }

  Result<std::unique_ptr<ExpertsLayer>> define(Registry& registry,
                                               const ExpertsSpec& spec) override {
    HF_TRY(check_spec(spec));
    HF_TRY(check_workspace(spec));
    const std::int64_t hidden = spec.shape.hidden_size;
    const std::int64_t intermediate = spec.shape.intermediate_size;
    LayerSlots slots{.workspace = slots_};
    HF_ASSIGN(slots.gate_up,
              define_matrix(registry, spec, "gate_up_proj",
                            {.rows = 2 * intermediate, .columns = hidden, .interleaved = true}));
    HF_ASSIGN(slots.down, define_matrix(registry, spec, "down_proj",
                                        {.rows = hidden, .columns = intermediate}));
    HF_ASSIGN(slots.constants, define_constants(registry, spec));
    return std::unique_ptr<ExpertsLayer>(
        std::make_unique<HoldfastLayer>(registry, spec.shape, std::move(slots)));
  }

 private:
  // The pairs of a layer must fit the workspace that all layers share.
  Status check_workspace(const ExpertsSpec& spec) const {
    const auto fits = [&](std::int64_t ExpertsShape::*field) {
      return spec.shape.*field <= workspace_.*field;
    };
    if (fits(&ExpertsShape::expert_count) && fits(&ExpertsShape::experts_per_token) &&
        fits(&ExpertsShape::hidden_size) && fits(&ExpertsShape::intermediate_size) &&
        fits(&ExpertsShape::max_rows)) {
      return {};
    }
    return make_error(ErrorCode::kFailedPrecondition,
                      "{}: {} experts of {} x {}, {} per token, {} rows do not fit the workspace "
                      "of {} experts of {} x {}, {} per token, {} rows; call define_workspace "
                      "first",
                      spec.slot_prefix, spec.shape.expert_count, spec.shape.intermediate_size,
                      spec.shape.hidden_size, spec.shape.experts_per_token, spec.shape.max_rows,
                      workspace_.expert_count, workspace_.intermediate_size,
                      workspace_.hidden_size, workspace_.experts_per_token, workspace_.max_rows);
  }

  ExpertsShape workspace_;
  WorkspaceSlots slots_;
};

}  // namespace

std::unique_ptr<ExpertsBackend> make_holdfast_backend() {
  return std::make_unique<HoldfastBackend>();
}

}  // namespace holdfast::experts
