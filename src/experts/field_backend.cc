#include "experts/field_backend.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "experts/cpu_grouping.h"
#include "experts/layer_slots.h"
#include "experts/round_inputs.h"

namespace holdfast::experts::field {
namespace {

using config::Projection;
using device::reads;
using device::updates;
using device::writes;
using storage::Registry;
using storage::SlotId;
using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

using OptionalSlot = std::optional<SlotId>;

struct Workspace {
  GroupingSlots grouping;
  SlotId inputs, activation;
  OptionalSlot locks = {};
};

struct InputSlots {
  OptionalSlot input_scale = {}, reciprocal = {}, order = {};
};

struct LayerSlots {
  ProductSlots gate_up = {}, down = {};
  InputSlots gate_up_inputs = {}, down_inputs = {};
  OptionalSlot gate_alpha = {}, up_alpha = {}, down_alpha = {};
  SlotId swiglu_alpha, beta, gate_limit, up_limit;
  OptionalSlot fake_input_scale = {};
  bool raw_limits = false;
  std::vector<std::string> constants = {};
  Workspace workspace = {};
};

class FieldLayer final : public ExpertsLayer {
 public:
  FieldLayer(const Registry& registry, const ExpertsSpec& spec, Halves halves, LayerSlots slots)
      : registry_(registry),
        shape_(spec.shape),
        grouping_(registry, spec.shape, slots.workspace.grouping),
        activations_(spec.format.activations),
        halves_(halves),
        slots_(std::move(slots)) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, shape_));
    HF_TRY(grouping_.launch_group(context.stream, args));
    const TensorView activation = view(slots_.workspace.activation);
    HF_TRY(launch_prepare(context.stream, args, slots_.gate_up_inputs, args.x));
    HF_TRY(launch_gate_up(context.stream, args));
    HF_TRY(launch_prepare(context.stream, args, slots_.down_inputs, activation));
    HF_TRY(launch_down(context.stream, args));
    return grouping_.launch_combine(context.stream, args);
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants; }

 private:
  TensorView view(SlotId slot) const { return registry_.view(slot); }
  TensorView view(const OptionalSlot& slot) const {
    return slot ? registry_.view(*slot) : TensorView{};
  }
  const float* floats(const OptionalSlot& slot) const { return view(slot).as<const float>(); }
  Matrix resolve(const ProductSlots& product) const {
    Matrix matrix = product.matrix;
    matrix.weights = view(product.weights).address;
    matrix.scales = view(product.scales).address;
    matrix.zeros = view(product.zeros).as<const std::uint8_t>();
    matrix.row_scales = floats(product.row_scales);
    matrix.bias = floats(product.bias);
    return matrix;
  }

  // `held`: x [n, H], or the activation, whose padded tail is what the padded rows gave: it meets
  // the padded columns of `down`, and so all padding must be zero.
  Status launch_prepare(device::Stream& stream, const ExpertsArgs& args, const InputSlots& inputs,
                        const TensorView& held) const {
    const TensorView to = view(slots_.workspace.inputs);
    const bool first = held.address == args.x.address;
    const std::int64_t columns = first ? shape_.hidden_size : shape_.intermediate_size;
    const cpu::Inputs from{.x = held.as<const float>(),
                           .length = first ? columns : padded(columns),
                           .pairs_per_row = first ? shape_.experts_per_token : 1};
    // A reciprocal leaves nothing for the rounding to divide by.
    const OptionalSlot scale = inputs.reciprocal ? OptionalSlot() : inputs.input_scale;
    const PrepareArgs kernel_args{.shape = grouping_.moe_shape(args),
                                  .from = from,
                                  .columns = columns,
                                  .activations = static_cast<std::int64_t>(activations_),
                                  .order = view(inputs.order).as<const std::int32_t>(),
                                  .reciprocal = floats(inputs.reciprocal),
                                  .input_scale = floats(scale),
                                  .ids = args.ids.as<const std::int32_t>(),
                                  .active_rows = args.active_rows.as<const std::int32_t>(),
                                  .to = to.as<float>(),
                                  .padded = padded(columns)};
    return device::launch_cpu<&prepare>(
        stream, "experts.prepare", kernel_args,
        {reads("from", held), reads("order", view(inputs.order)),
         reads("reciprocal", view(inputs.reciprocal)), reads("input_scale", view(scale)),
         reads("ids", args.ids), reads("active_rows", args.active_rows), writes("inputs", to)});
  }

  Status launch_gate_up(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView activation = view(slots_.workspace.activation);
    const TensorView inputs = view(slots_.workspace.inputs);
    const TensorView locks = view(slots_.workspace.locks);
    const ProductSlots& product = slots_.gate_up;
    const bool two_limits = slots_.gate_limit != slots_.up_limit;
    const GateUpArgs kernel_args{.shape = grouping_.moe_shape(args),
                                 .inputs = inputs.as<const float>(),
                                 .matrix = resolve(product),
                                 .halves = halves_,
                                 .gate_alpha = floats(slots_.gate_alpha),
                                 .up_alpha = floats(slots_.up_alpha),
                                 .swiglu_alpha = floats(slots_.swiglu_alpha),
                                 .beta = floats(slots_.beta),
                                 .gate_limit = floats(slots_.gate_limit),
                                 .up_limit = floats(slots_.up_limit),
                                 .raw_limits = slots_.raw_limits ? 1 : 0,
                                 .input_factor = floats(slots_.fake_input_scale),
                                 .groups = grouping_.groups(),
                                 .locks = locks.as<std::int32_t>(),
                                 .activation = activation.as<float>()};
    return device::launch_cpu<&gate_up>(
        stream, "experts.gate_up", kernel_args,
        {reads("inputs", inputs), reads("gate_up", view(product.weights)),
         reads("gate_up_scales", view(product.scales)),
         reads("gate_up_zeros", view(product.zeros)),
         reads("gate_up_row_scales", view(product.row_scales)),
         reads("gate_up_bias", view(product.bias)), reads("gate_alpha", view(slots_.gate_alpha)),
         reads("up_alpha", slots_.up_alpha == slots_.gate_alpha ? TensorView{}
                                                                : view(slots_.up_alpha)),
         reads("swiglu_alpha", view(slots_.swiglu_alpha)), reads("swiglu_beta", view(slots_.beta)),
         reads("swiglu_limit", view(slots_.gate_limit)),
         reads("up_limit", two_limits ? view(slots_.up_limit) : TensorView{}),
         reads("fake_input_scale", view(slots_.fake_input_scale)),
         reads("group_begin", grouping_.group_begin()),
         reads("group_pairs", grouping_.group_pairs()), updates("locks", locks),
         writes("activation", activation)});
  }

  Status launch_down(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView down_out = grouping_.down_out();
    const TensorView inputs = view(slots_.workspace.inputs);
    const TensorView locks = view(slots_.workspace.locks);
    const ProductSlots& product = slots_.down;
    const DownArgs kernel_args{.shape = grouping_.moe_shape(args),
                               .inputs = inputs.as<const float>(),
                               .matrix = resolve(product),
                               .alpha = floats(slots_.down_alpha),
                               .input_factor = floats(slots_.fake_input_scale),
                               .groups = grouping_.groups(),
                               .locks = locks.as<std::int32_t>(),
                               .down_out = down_out.as<float>()};
    return device::launch_cpu<&down>(
        stream, "experts.down", kernel_args,
        {reads("inputs", inputs), reads("down", view(product.weights)),
         reads("down_scales", view(product.scales)), reads("down_zeros", view(product.zeros)),
         reads("down_row_scales", view(product.row_scales)),
         reads("down_bias", view(product.bias)), reads("down_alpha", view(slots_.down_alpha)),
         reads("fake_input_scale", view(slots_.fake_input_scale)),
         reads("group_begin", grouping_.group_begin()),
         reads("group_pairs", grouping_.group_pairs()), updates("locks", locks),
         writes("down_out", down_out)});
  }

  const Registry& registry_;
  ExpertsShape shape_;
  Grouping grouping_;
  config::ActivationScheme activations_;
  Halves halves_;
  LayerSlots slots_;
};

// out[e] = a[e] / b[e], or 1 / b[e] of one input.
Status divide(device::Stream&, std::span<const TensorView> inputs,
              std::span<const TensorView> outputs) {
  const float* below = inputs.back().as<const float>();
  const float* above = inputs.size() > 1 ? inputs[0].as<const float>() : nullptr;
  for (std::int64_t e = 0; e < outputs[0].shape.element_count(); ++e) {
    outputs[0].as<float>()[e] = (above == nullptr ? 1.0f : above[e]) / below[e];
  }
  return {};
}

class FieldBackend final : public ExpertsBackend {
 public:
  explicit FieldBackend(const Description& description) : description_(description) {}

  std::string_view name() const override { return description_.name; }

  Status define_workspace(Registry& registry, const ExpertsShape& shape) override {
    const std::int64_t pairs = shape.max_rows * shape.experts_per_token;
    const std::int64_t hidden = padded(shape.hidden_size);
    const std::int64_t inner = padded(shape.intermediate_size);
    HF_ASSIGN(slots_.grouping, define_grouping(registry, shape));
    HF_ASSIGN(slots_.inputs, define_scratch(registry, "inputs", DType::kF32,
                                            {pairs, std::max(hidden, inner)}));
    HF_ASSIGN(slots_.activation,
              define_scratch(registry, "activation", DType::kF32, {pairs, inner}));
    workspace_ = shape;
    if (!description_.locks) return {};
    HF_ASSIGN(slots_.locks, registry.define(storage::SlotSpec{
                                .name = "experts.workspace.locks",
                                .slot_class = storage::SlotClass::kSync,
                                .dtype = DType::kI32,
                                .shape = {std::max(hidden, inner) / kLockRows},
                                .arena = kSyncArena}));
    return {};
  }

  Result<std::unique_ptr<ExpertsLayer>> define(Registry& registry,
                                               const ExpertsSpec& spec) override {
    HF_TRY(check_spec(spec));
    HF_TRY(check_workspace(spec, workspace_));
    LayerParameters layer(registry, spec);
    const Product gate_up = gate_up_product(spec);
    const Product down = down_product(spec);
    LayerSlots slots;
    slots.workspace = slots_;
    HF_ASSIGN(slots.gate_up_inputs, define_inputs(layer, gate_up));
    HF_ASSIGN(slots.down_inputs, define_inputs(layer, down));
    HF_ASSIGN(slots.gate_up, define_product(layer, gate_up, description_.storage));
    HF_ASSIGN(slots.down, define_product(layer, down, description_.storage));
    HF_TRY(define_alphas(layer, gate_up, slots));
    HF_TRY(define_constants_of(layer, slots));
    return std::unique_ptr<ExpertsLayer>(std::make_unique<FieldLayer>(
        registry, spec, description_.storage.halves, std::move(slots)));
  }

 private:
  Result<InputSlots> define_inputs(LayerParameters& layer, const Product& product) const {
    InputSlots slots;
    HF_ASSIGN(slots.input_scale, define_input_scale(layer, product));
    HF_ASSIGN(slots.order, define_order(layer, product, description_.order));
    if (!slots.input_scale || !description_.reciprocals) return slots;
    HF_ASSIGN(slots.reciprocal, layer.derive({.name = product.name + ".input_scale_reciprocal",
                                              .shape = {layer.spec().shape.expert_count},
                                              .inputs = {*slots.input_scale},
                                              .function = &divide,
                                              .arena = kScalesArena}));
    return slots;
  }

  static Status define_alphas(LayerParameters& layer, const Product& gate_up, LayerSlots& slots) {
    const OptionalSlot scale = slots.gate_up_inputs.input_scale;
    HF_ASSIGN(const ScaleChain gate, define_scale_chain(layer, gate_up.projections[0], scale));
    slots.gate_alpha = slots.up_alpha = gate.alpha;
    if (gate_up.projections.size() > 1) {
      HF_ASSIGN(const ScaleChain up, define_scale_chain(layer, gate_up.projections[1], scale));
      slots.up_alpha = up.alpha;
    }
    HF_ASSIGN(const ScaleChain down,
              define_scale_chain(layer, Projection::kDown, slots.down_inputs.input_scale));
    slots.down_alpha = down.alpha;
    return {};
  }

  Status define_constants_of(LayerParameters& layer, LayerSlots& slots) const {
    const ExpertsSpec& spec = layer.spec();
    const auto define = [&](const char* name, float value) -> Result<SlotId> {
      slots.constants.push_back(spec.slot_prefix + "." + name);
      return define_constant(layer.registry(), spec, slots.constants.back(), value);
    };
    HF_ASSIGN(slots.swiglu_alpha, define(description_.alpha, spec.swiglu.alpha));
    HF_ASSIGN(slots.beta, define(description_.beta, spec.swiglu.beta));
    HF_ASSIGN(slots.gate_limit, define(description_.limit, spec.swiglu.limit));
    slots.up_limit = slots.gate_limit;
    if (description_.fake_input_scale && spec.format.scheme == config::ExpertScheme::kMxfp4 &&
        spec.format.activations == config::ActivationScheme::kMxfp8) {
      HF_ASSIGN(slots.fake_input_scale, define("fake_input_scale", 1.0f));
    }
    if (!description_.limits_over_alpha || !slots.gate_alpha) return {};
    slots.raw_limits = true;
    const auto over = [&](const char* name, SlotId above, SlotId alpha) {
      return layer.derive({.name = name,
                           .shape = {spec.shape.expert_count},
                           .inputs = {above, alpha},
                           .function = &divide,
                           .arena = kScalesArena});
    };
    const SlotId limit = slots.gate_limit;
    HF_ASSIGN(slots.gate_limit, over("gate.limit_over_alpha", limit, *slots.gate_alpha));
    HF_ASSIGN(slots.up_limit, over("up.limit_over_alpha", limit, *slots.up_alpha));
    HF_ASSIGN(slots.beta, over("up.beta_over_alpha", slots.beta, *slots.up_alpha));
    return {};
  }

  Description description_;
  ExpertsShape workspace_;
  Workspace slots_;
};

}  // namespace

std::unique_ptr<ExpertsBackend> make_backend(const Description& description) {
  return std::make_unique<FieldBackend>(description);
}

}  // namespace holdfast::experts::field
