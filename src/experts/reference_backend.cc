// The reference experts backend: raw checkpoint layouts in weight slots, scalar loops in float32. A
// row is decoded once for all pairs of its expert; the additions of a pair are those of a plain dot
// product.
#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "experts/backends.h"
#include "experts/layer_parameters.h"
#include "experts/layer_slots.h"
#include "experts/raw_matrix.h"
#include "experts/round_inputs.h"

namespace holdfast::experts {
namespace {

using config::Projection;
using device::reads;
using device::writes;
using storage::Registry;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;

// What both kernels know of a step. A pair is row * k + slot.
struct Step {
  std::int64_t n = 0, k = 0, experts = 0, hidden = 0, intermediate = 0;
  std::int64_t activations = 0;  // config::ActivationScheme
  const std::int32_t* ids = nullptr;
  const std::int32_t* active_rows = nullptr;
  float* weight = nullptr;  // two decoded rows, [2, max(H, I)]
  float* inputs = nullptr;  // rounded inputs, [n * k, max(H, I)]

  std::int64_t longest() const { return std::max(hidden, intermediate); }
  std::int64_t rows() const { return std::clamp<std::int64_t>(*active_rows, 0, n); }
  bool is_expert(std::int64_t id) const { return id >= 0 && id < experts; }
  bool has_pairs(std::int64_t expert) const {
    return std::find(ids, ids + rows() * k, expert) != ids + rows() * k;
  }
};

struct GateUpArgs {
  Step step;
  RawMatrix gate, up;       // of a fused matrix both are the whole
  std::int64_t fused = 0;
  const float* x = nullptr;
  const float* alpha = nullptr;
  const float* beta = nullptr;
  const float* limit = nullptr;
  float* activation = nullptr;  // [n * k, I]
};

struct DownArgs {
  Step step;
  RawMatrix down;
  const float* activation = nullptr;
  const float* weights = nullptr;
  const float* residual = nullptr;
  float* out = nullptr;
  float* down_out = nullptr;  // [n * k, H]
};

// A capture looks for pointers in every word, padding included.
static_assert(std::has_unique_object_representations_v<GateUpArgs> &&
              std::has_unique_object_representations_v<DownArgs>);

float dot(const float* weight, const float* inputs, std::int64_t count) {
  float sum = 0.0f;
  for (std::int64_t c = 0; c < count; ++c) sum += weight[c] * inputs[c];
  return sum;
}

void round_to_inputs(const Step& step, float scale, std::int64_t pair,
                     std::span<const float> from) {
  const RoundRule rule{.scheme = static_cast<config::ActivationScheme>(step.activations),
                       .input_scale = InputScale::kMultipliedBack};
  round_row(rule, scale, from, step.inputs + pair * step.longest());
}

// Calls run(pair, inputs) for the pairs of an expert.
template <typename Run>
void for_pairs(const Step& step, std::int64_t expert, const Run& run) {
  for (std::int64_t pair = 0; pair < step.rows() * step.k; ++pair) {
    if (step.ids[pair] == expert) run(pair, step.inputs + pair * step.longest());
  }
}

// semantics.md 3.7. A NaN stays one: the comparisons are false for it.
float swiglu(float gate, float up, float alpha, float beta, float limit) {
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : (up < -limit ? -limit : up);
  return g / (1.0f + std::exp(-alpha * g)) * (u + beta);
}

void gate_up_expert(const GateUpArgs& args, std::int64_t e) {
  const Step& step = args.step;
  const float scale = std::max(input_scale_of(args.gate, e), input_scale_of(args.up, e));
  for_pairs(step, e, [&](std::int64_t pair, const float*) {
    const float* x = args.x + pair / step.k * step.hidden;
    round_to_inputs(step, scale, pair, {x, static_cast<std::size_t>(step.hidden)});
  });
  float* gate_weight = step.weight;
  float* up_weight = step.weight + step.longest();
  for (std::int64_t i = 0; i < step.intermediate; ++i) {
    const std::int64_t gate_row = args.fused != 0 ? 2 * i : i;
    const std::int64_t up_row = args.fused != 0 ? 2 * i + 1 : i;
    decode_row(args.gate, e, gate_row, gate_weight);
    decode_row(args.up, e, up_row, up_weight);
    for_pairs(step, e, [&](std::int64_t pair, const float* x) {
      const float gate = dot(gate_weight, x, step.hidden) + bias_of(args.gate, e, gate_row);
      const float up = dot(up_weight, x, step.hidden) + bias_of(args.up, e, up_row);
      args.activation[pair * step.intermediate + i] =
          swiglu(gate, up, args.alpha[e], args.beta[e], args.limit[e]);
    });
  }
}

void run_gate_up(const GateUpArgs& args, device::WorkerPool&) {
  for (std::int64_t e = 0; e < args.step.experts; ++e) {
    if (args.step.has_pairs(e)) gate_up_expert(args, e);
  }
}

void down_expert(const DownArgs& args, std::int64_t e) {
  const Step& step = args.step;
  const std::int64_t inner = step.intermediate;
  for_pairs(step, e, [&](std::int64_t pair, const float*) {
    round_to_inputs(step, input_scale_of(args.down, e), pair,
                    {args.activation + pair * inner, static_cast<std::size_t>(inner)});
  });
  for (std::int64_t h = 0; h < step.hidden; ++h) {
    decode_row(args.down, e, h, step.weight);
    for_pairs(step, e, [&](std::int64_t pair, const float* x) {
      args.down_out[pair * step.hidden + h] = dot(step.weight, x, inner) + bias_of(args.down, e, h);
    });
  }
}

void run_down(const DownArgs& args, device::WorkerPool&) {
  const Step& step = args.step;
  for (std::int64_t e = 0; e < step.experts; ++e) {
    if (step.has_pairs(e)) down_expert(args, e);
  }
  for (std::int64_t r = 0; r < step.rows(); ++r) {
    for (std::int64_t h = 0; h < step.hidden; ++h) {
      float sum = 0.0f;
      for (std::int64_t pair = r * step.k; pair < (r + 1) * step.k; ++pair) {
        if (!step.is_expert(step.ids[pair])) continue;
        sum += args.weights[pair] * args.down_out[pair * step.hidden + h];
      }
      args.out[r * step.hidden + h] = args.residual[r * step.hidden + h] + sum;
    }
  }
}

struct WorkspaceSlots {
  SlotId activation, weight, inputs, down_out;
};
struct LayerSlots {
  RawSlots gate = {}, up = {}, down = {};  // fused: gate is both
  bool fused = false;
  ConstantSlots constants = {};
  WorkspaceSlots workspace = {};
};

class ReferenceLayer final : public ExpertsLayer {
 public:
  ReferenceLayer(const Registry& registry, const ExpertsSpec& spec, LayerSlots slots)
      : registry_(registry), spec_(spec), slots_(std::move(slots)) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, spec_.shape));
    HF_TRY(launch_gate_up(context.stream, args));
    return launch_down(context.stream, args);
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants.names; }

 private:
  TensorView view(SlotId slot) const { return registry_.view(slot); }
  device::Operand operand(const char* role, const std::optional<SlotId>& slot) const {
    return reads(role, slot ? registry_.view(*slot) : TensorView{});
  }
  Step step(const ExpertsArgs& args) const {
    return {.n = args.x.shape[0],
            .k = spec_.shape.experts_per_token,
            .experts = spec_.shape.expert_count,
            .hidden = spec_.shape.hidden_size,
            .intermediate = spec_.shape.intermediate_size,
            .activations = static_cast<std::int64_t>(spec_.format.activations),
            .ids = args.ids.as<const std::int32_t>(),
            .active_rows = args.active_rows.as<const std::int32_t>(),
            .weight = view(slots_.workspace.weight).as<float>(),
            .inputs = view(slots_.workspace.inputs).as<float>()};
  }

  Status launch_gate_up(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView alpha = view(slots_.constants.alpha);
    const TensorView beta = view(slots_.constants.beta);
    const TensorView limit = view(slots_.constants.limit);
    const TensorView activation = view(slots_.workspace.activation);
    const auto first = slots_.fused ? Projection::kGateUp : Projection::kGate;
    const RawMatrix gate = resolve_raw(registry_, spec_, first, slots_.gate);
    const RawSlots none;
    const RawSlots& up = slots_.fused ? none : slots_.up;
    const GateUpArgs kernel_args{
        .step = step(args),
        .gate = gate,
        .up = slots_.fused ? gate : resolve_raw(registry_, spec_, Projection::kUp, slots_.up),
        .fused = slots_.fused ? 1 : 0,
        .x = args.x.as<const float>(),
        .alpha = alpha.as<const float>(),
        .beta = beta.as<const float>(),
        .limit = limit.as<const float>(),
        .activation = activation.as<float>()};
    return device::launch_cpu<&run_gate_up>(
        stream, "experts.reference.gate_up", kernel_args,
        {reads("x", args.x), reads("ids", args.ids), reads("active_rows", args.active_rows),
         operand("gate", slots_.gate.weights), operand("gate_scales", slots_.gate.scales),
         operand("gate_global_scale", slots_.gate.global_scale),
         operand("gate_input_scale", slots_.gate.input_scale),
         operand("gate_zeros", slots_.gate.zeros),
         operand("gate_group_index", slots_.gate.group_index),
         operand("gate_bias", slots_.gate.bias), operand("up", up.weights),
         operand("up_scales", up.scales), operand("up_global_scale", up.global_scale),
         operand("up_input_scale", up.input_scale), operand("up_zeros", up.zeros),
         operand("up_group_index", up.group_index), operand("up_bias", up.bias),
         reads("swiglu_alpha", alpha), reads("swiglu_beta", beta), reads("swiglu_limit", limit),
         writes("activation", activation), writes("weight", view(slots_.workspace.weight)),
         writes("inputs", view(slots_.workspace.inputs))});
  }

  Status launch_down(device::Stream& stream, const ExpertsArgs& args) const {
    const TensorView activation = view(slots_.workspace.activation);
    const TensorView down_out = view(slots_.workspace.down_out);
    const RawSlots& down = slots_.down;
    const DownArgs kernel_args{
        .step = step(args),
        .down = resolve_raw(registry_, spec_, Projection::kDown, down),
        .activation = activation.as<const float>(),
        .weights = args.weights.as<const float>(),
        .residual = args.residual.as<const float>(),
        .out = args.out.as<float>(),
        .down_out = down_out.as<float>()};
    return device::launch_cpu<&run_down>(
        stream, "experts.reference.down", kernel_args,
        {reads("ids", args.ids), reads("weights", args.weights), reads("residual", args.residual),
         reads("active_rows", args.active_rows), writes("out", args.out),
         operand("down", down.weights), operand("down_scales", down.scales),
         operand("down_global_scale", down.global_scale),
         operand("down_input_scale", down.input_scale), operand("down_zeros", down.zeros),
         operand("down_group_index", down.group_index), operand("down_bias", down.bias),
         reads("activation", activation), writes("down_out", down_out),
         writes("weight", view(slots_.workspace.weight)),
         writes("inputs", view(slots_.workspace.inputs))});
  }

  const Registry& registry_;
  ExpertsSpec spec_;
  LayerSlots slots_;
};

class ReferenceBackend final : public ExpertsBackend {
 public:
  std::string_view name() const override { return "reference"; }

  Status define_workspace(Registry& registry, const ExpertsShape& shape) override {
    const auto scratch = [&](const char* name, const tensor::Shape& slot_shape) {
      return registry.define(storage::SlotSpec{.name = std::string("experts.workspace.") + name,
                                               .slot_class = storage::SlotClass::kScratch,
                                               .dtype = DType::kF32,
                                               .shape = slot_shape,
                                               .arena = {}});
    };
    const std::int64_t longest = std::max(shape.hidden_size, shape.intermediate_size);
    const std::int64_t pairs = shape.max_rows * shape.experts_per_token;
    HF_ASSIGN(slots_.activation, scratch("activation", {pairs, shape.intermediate_size}));
    HF_ASSIGN(slots_.weight, scratch("weight", {2, longest}));
    HF_ASSIGN(slots_.inputs, scratch("inputs", {pairs, longest}));
    HF_ASSIGN(slots_.down_out, scratch("down_out", {pairs, shape.hidden_size}));
    workspace_ = shape;
    return {};
  }

  Result<std::unique_ptr<ExpertsLayer>> define(Registry& registry,
                                               const ExpertsSpec& spec) override {
    HF_TRY(check_spec(spec));
    HF_TRY(check_workspace(spec, workspace_));
    const Product gate_up = gate_up_product(spec);
    LayerSlots slots;
    slots.workspace = slots_;
    slots.fused = gate_up.projections.size() == 1;
    HF_ASSIGN(slots.gate, define_raw_slots(registry, spec, gate_up.projections[0]));
    if (!slots.fused) {
      HF_ASSIGN(slots.up, define_raw_slots(registry, spec, gate_up.projections[1]));
    }
    HF_ASSIGN(slots.down, define_raw_slots(registry, spec, Projection::kDown));
    LayerParameters layer(registry, spec);
    std::vector<const RawSlots*> of_gate_up{&slots.gate};
    if (!slots.fused) of_gate_up.push_back(&slots.up);
    HF_TRY(define_group_sizes(layer, gate_up, of_gate_up));
    HF_TRY(define_group_sizes(layer, down_product(spec), {&slots.down}));
    HF_ASSIGN(slots.constants, define_constants(registry, spec));
    return std::unique_ptr<ExpertsLayer>(
        std::make_unique<ReferenceLayer>(registry, spec, std::move(slots)));
  }

 private:
  // `<product>.group_sizes`: the kernels go by g_idx as published, so it is checked beside them.
  static Status define_group_sizes(LayerParameters& layer, const Product& product,
                                   const std::vector<const RawSlots*>& projections) {
    std::vector<storage::DeriveInput> inputs;
    for (const RawSlots* slots : projections) {
      if (slots->group_index) inputs.emplace_back(*slots->group_index);
    }
    if (inputs.empty()) return {};
    const std::int64_t experts = layer.spec().shape.expert_count;
    const config::ExpertFormat& format = layer.spec().format;
    const auto compute = [product, experts, format](
                             device::Stream&, std::span<const TensorView> indices,
                             std::span<const TensorView> outputs) -> Status {
      for (std::int64_t e = 0; e < experts; ++e) {
        std::vector<TensorView> of_expert;
        for (const TensorView& index : indices) of_expert.push_back(index.rows(e, 1));
        const auto order = product_order(product, format, of_expert);
        if (!order.ok()) return order.error().with_context("expert " + std::to_string(e));
      }
      std::fill_n(outputs[0].as<std::int32_t>(), outputs[0].shape.element_count(),
                  static_cast<std::int32_t>(format.group_size));
      return {};
    };
    const auto slot = layer.derive({.name = product.name + ".group_sizes",
                                    .dtype = DType::kI32,
                                    .shape = {experts, product.columns / format.group_size},
                                    .inputs = std::move(inputs),
                                    .function = compute});
    return slot.ok() ? Status() : Status(slot.error());
  }

  ExpertsShape workspace_;
  WorkspaceSlots slots_;
};

}  // namespace

std::unique_ptr<ExpertsBackend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace holdfast::experts
