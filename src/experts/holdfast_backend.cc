// The holdfast experts backend: packed weights in derived slots, Highway kernels on all workers.
// The checkpoint's matrices are transient parameters: they pass through staging one expert at a
// time and only their packed form is resident. Biases are resident as published.
#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "experts/backends.h"
#include "experts/cpu_grouping.h"
#include "experts/layer_parameters.h"
#include "experts/layer_slots.h"
#include "experts/packed_matrices.h"
#include "experts/round_inputs.h"

namespace holdfast::experts {
namespace {

using device::reads;
using device::writes;
using storage::Registry;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;

struct WorkspaceSlots {
  GroupingSlots grouping;
  SlotId activation;
  // The rounded or reordered inputs of a product, where the format wants any.
  std::optional<SlotId> inputs = {};
};

// One product's matrices and what is done to its inputs before.
struct ProductSlots {
  std::optional<SlotId> input_scale = {}, order = {};
};

struct LayerSlots {
  ProductSlots gate_up_inputs = {}, down_inputs = {};
  PackedMatrix gate = {}, up = {}, down = {};  // fused: gate and up are one
  bool fused = false;
  ConstantSlots constants = {};
  WorkspaceSlots workspace = {};
};

// Names of operands, which must outlive a capture.
struct Roles {
  const char* weights;
  const char* scales;
  const char* zeros;
  const char* row_scales;
  const char* alpha;
  const char* bias;
};
constexpr Roles kGateUpRoles{"gate_up",           "gate_up_scales", "gate_up_zeros",
                             "gate_up_row_scales", "gate_up_alpha",  "gate_up_bias"};
constexpr Roles kGateRoles{"gate",            "gate_scales", "gate_zeros",
                           "gate_row_scales", "gate_alpha",  "gate_bias"};
constexpr Roles kUpRoles{"up", "up_scales", "up_zeros", "up_row_scales", "up_alpha", "up_bias"};
constexpr Roles kDownRoles{"down",            "down_scales", "down_zeros",
                           "down_row_scales", "down_alpha",  "down_bias"};

class HoldfastLayer final : public ExpertsLayer {
 public:
  HoldfastLayer(const Registry& registry, const ExpertsSpec& spec, LayerSlots slots)
      : registry_(registry),
        shape_(spec.shape),
        grouping_(registry, spec.shape, slots.workspace.grouping),
        activations_(spec.format.activations),
        slots_(std::move(slots)) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, shape_));
    HF_TRY(grouping_.launch_group(context.stream, args));
    cpu::Inputs inputs{.x = args.x.as<const float>(),
                       .length = shape_.hidden_size,
                       .pairs_per_row = shape_.experts_per_token};
    TensorView held = args.x;
    HF_TRY(prepare(context.stream, args, slots_.gate_up_inputs, inputs, held));
    HF_TRY(launch_gate_up(context.stream, args, inputs, held));
    held = view(slots_.workspace.activation);
    inputs = {.x = held.as<const float>(),
              .length = shape_.intermediate_size,
              .pairs_per_row = 1};
    HF_TRY(prepare(context.stream, args, slots_.down_inputs, inputs, held));
    HF_TRY(launch_down(context.stream, args, inputs, held));
    return grouping_.launch_combine(context.stream, args);
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants.names; }

 private:
  TensorView view(SlotId slot) const { return registry_.view(slot); }
  TensorView view(const std::optional<SlotId>& slot) const {
    return slot ? registry_.view(*slot) : TensorView{};
  }
  // `first_tile`: 1 for the up rows of a fused matrix.
  cpu::Matrix resolve(const PackedMatrix& matrix, std::int64_t first_tile) const {
    return cpu::Matrix{.codec = matrix.codec,
                       .group_scale = matrix.group_scale,
                       .group = matrix.group,
                       .tile_step = matrix.tile_step,
                       .first_tile = first_tile,
                       .weights = view(matrix.weights).address,
                       .scales = view(matrix.scales).address,
                       .zeros = view(matrix.zeros).as<const std::uint8_t>(),
                       .row_scales = view(matrix.row_scales).as<const float>(),
                       .alpha = view(matrix.alpha).as<const float>(),
                       .bias = view(matrix.bias).as<const std::uint16_t>()};
  }
  device::Operand operand(const char* role, const std::optional<SlotId>& slot) const {
    return reads(role, view(slot));
  }

  // Rounds and reorders the inputs of a product, where it wants either: `inputs` and `held` are
  // then the result.
  Status prepare(device::Stream& stream, const ExpertsArgs& args, const ProductSlots& product,
                 cpu::Inputs& inputs, TensorView& held) const {
    if (activations_ == config::ActivationScheme::kNone && !product.order) return {};
    const TensorView to = view(slots_.workspace.inputs);
    const TensorView order = view(product.order);
    const TensorView input_scale = view(product.input_scale);
    const cpu::PrepareArgs kernel_args{.shape = grouping_.moe_shape(args),
                                       .from = inputs,
                                       .activations = static_cast<std::int64_t>(activations_),
                                       .order = order.as<const std::int32_t>(),
                                       .input_scale = input_scale.as<const float>(),
                                       .ids = args.ids.as<const std::int32_t>(),
                                       .active_rows = args.active_rows.as<const std::int32_t>(),
                                       .to = to.as<float>()};
    HF_TRY(device::launch_cpu<&cpu::prepare_inputs>(
        stream, "experts.prepare", kernel_args,
        {reads("from", held), reads("order", order), reads("input_scale", input_scale),
         reads("ids", args.ids), reads("active_rows", args.active_rows), writes("inputs", to)}));
    inputs = {.x = to.as<const float>(), .length = inputs.length, .pairs_per_row = 1};
    held = to;
    return {};
  }

  Status launch_gate_up(device::Stream& stream, const ExpertsArgs& args, const cpu::Inputs& inputs,
                        const TensorView& held) const {
    const TensorView alpha = view(slots_.constants.alpha);
    const TensorView beta = view(slots_.constants.beta);
    const TensorView limit = view(slots_.constants.limit);
    const TensorView activation = view(slots_.workspace.activation);
    const PackedMatrix& gate = slots_.gate;
    const cpu::GateUpArgs kernel_args{.shape = grouping_.moe_shape(args),
                                      .inputs = inputs,
                                      .gate = resolve(gate, 0),
                                      .up = slots_.fused ? resolve(gate, 1)
                                                         : resolve(slots_.up, 0),
                                      .alpha = alpha.as<const float>(),
                                      .beta = beta.as<const float>(),
                                      .limit = limit.as<const float>(),
                                      .groups = grouping_.groups(),
                                      .activation = activation.as<float>()};
    const Roles& roles = slots_.fused ? kGateUpRoles : kGateRoles;
    const PackedMatrix none;
    const PackedMatrix& up = slots_.fused ? none : slots_.up;
    return device::launch_cpu<&cpu::gate_up>(
        stream, "experts.gate_up", kernel_args,
        {reads("x", held), reads(roles.weights, view(gate.weights)),
         operand(roles.scales, gate.scales), operand(roles.zeros, gate.zeros),
         operand(roles.row_scales, gate.row_scales), operand(roles.alpha, gate.alpha),
         operand(roles.bias, gate.bias),
         reads(kUpRoles.weights, slots_.fused ? TensorView{} : view(up.weights)),
         operand(kUpRoles.scales, up.scales), operand(kUpRoles.zeros, up.zeros),
         operand(kUpRoles.row_scales, up.row_scales), operand(kUpRoles.alpha, up.alpha),
         operand(kUpRoles.bias, up.bias), reads("swiglu_alpha", alpha),
         reads("swiglu_beta", beta), reads("swiglu_limit", limit),
         reads("group_begin", grouping_.group_begin()),
         reads("group_pairs", grouping_.group_pairs()),
         writes("activation", activation)});
  }

  Status launch_down(device::Stream& stream, const ExpertsArgs& args, const cpu::Inputs& inputs,
                     const TensorView& held) const {
    const TensorView down_out = grouping_.down_out();
    const PackedMatrix& down = slots_.down;
    const cpu::DownArgs kernel_args{.shape = grouping_.moe_shape(args),
                                    .inputs = inputs,
                                    .down = resolve(down, 0),
                                    .groups = grouping_.groups(),
                                    .down_out = down_out.as<float>()};
    return device::launch_cpu<&cpu::down>(
        stream, "experts.down", kernel_args,
        {reads("activation", held), reads(kDownRoles.weights, view(down.weights)),
         operand(kDownRoles.scales, down.scales), operand(kDownRoles.zeros, down.zeros),
         operand(kDownRoles.row_scales, down.row_scales), operand(kDownRoles.alpha, down.alpha),
         operand(kDownRoles.bias, down.bias),
         reads("group_begin", grouping_.group_begin()),
         reads("group_pairs", grouping_.group_pairs()), writes("down_out", down_out)});
  }

  const Registry& registry_;
  ExpertsShape shape_;
  Grouping grouping_;
  config::ActivationScheme activations_;
  LayerSlots slots_;
};

class HoldfastBackend final : public ExpertsBackend {
 public:
  std::string_view name() const override { return "holdfast"; }

  Status define_workspace(Registry& registry, const ExpertsShape& shape) override {
    HF_ASSIGN(slots_.grouping, define_grouping(registry, shape));
    HF_ASSIGN(slots_.activation,
              define_scratch(registry, "activation", DType::kF32,
                             {shape.max_rows * shape.experts_per_token, shape.intermediate_size}));
    workspace_ = shape;
    return {};
  }

  Result<std::unique_ptr<ExpertsLayer>> define(Registry& registry,
                                               const ExpertsSpec& spec) override {
    HF_TRY(check_spec(spec));
    HF_TRY(check_workspace(spec, workspace_));
    LayerParameters layer(registry, spec);
    LayerSlots slots;
    const Product gate_up = gate_up_product(spec);
    HF_ASSIGN(slots.gate_up_inputs, define_product(layer, gate_up));
    HF_ASSIGN(slots.down_inputs, define_product(layer, down_product(spec)));
    const std::optional<SlotId> input_scale = slots.gate_up_inputs.input_scale;
    slots.fused = gate_up.projections.size() == 1;
    HF_ASSIGN(slots.gate, define_packed_matrix(layer, gate_up.projections[0], input_scale));
    if (!slots.fused) {
      HF_ASSIGN(slots.up, define_packed_matrix(layer, gate_up.projections[1], input_scale));
    }
    HF_ASSIGN(slots.down, define_packed_matrix(layer, config::Projection::kDown,
                                               slots.down_inputs.input_scale));
    HF_ASSIGN(slots.constants, define_constants(registry, spec));
    HF_TRY(define_inputs(registry, spec));
    slots.workspace = slots_;
    return std::unique_ptr<ExpertsLayer>(
        std::make_unique<HoldfastLayer>(registry, spec, std::move(slots)));
  }

 private:
  static Result<ProductSlots> define_product(LayerParameters& layer, const Product& product) {
    ProductSlots slots;
    HF_ASSIGN(slots.input_scale, define_input_scale(layer, product));
    HF_ASSIGN(slots.order, define_order(layer, product, "order"));
    return slots;
  }

  // The first layer that needs it defines it for all.
  Status define_inputs(Registry& registry, const ExpertsSpec& spec) {
    const bool wanted = spec.format.activations != config::ActivationScheme::kNone ||
                        spec.format.act_order;
    if (!wanted || slots_.inputs) return {};
    const std::int64_t pairs = workspace_.max_rows * workspace_.experts_per_token;
    const std::int64_t length = std::max(workspace_.hidden_size, workspace_.intermediate_size);
    HF_ASSIGN(slots_.inputs, define_scratch(registry, "inputs", DType::kF32, {pairs, length}));
    return {};
  }

  ExpertsShape workspace_;
  WorkspaceSlots slots_;
};

}  // namespace

std::unique_ptr<ExpertsBackend> make_holdfast_backend() {
  return std::make_unique<HoldfastBackend>();
}

}  // namespace holdfast::experts
