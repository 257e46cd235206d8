#include "experts/cuda/scheme_layer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "experts/cuda/scheme_kernels.h"
#include "experts/expert_parameters.h"
#include "experts/layer_parameters.h"
#include "experts/layer_slots.h"
#include "experts/quantized_inputs.h"

namespace holdfast::experts {
namespace {

using config::ExpertScheme;
using config::ExpertTensor;
using config::Projection;
using config::TensorRole;
using storage::Registry;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;

struct PartSlots {
  SlotId weights;
  std::optional<SlotId> scales = {}, zeros = {}, group_index = {}, alpha = {}, bias = {};
};
struct LayerSlots {
  PartSlots gate = {}, up = {}, down = {};  // fused: gate and up are one
  bool fused = false;
  std::optional<SlotId> gate_up_scale = {}, down_scale = {};  // of inputs
  ConstantSlots constants = {};
};

// Sees one expert's weight_shape.
Status check_stated_shape(const Product& product, std::int64_t rows, const TensorView& view) {
  const std::int64_t* stated = view.as<const std::int64_t>();
  if (stated[0] == rows && stated[1] == product.columns) return {};
  return make_error(ErrorCode::kMismatch, "weight_shape is [{}, {}], the matrix is [{}, {}]",
                    stated[0], stated[1], rows, product.columns);
}

class PartDefinition {
 public:
  PartDefinition(LayerParameters& layer, Product product, Projection projection)
      : layer_(layer),
        spec_(layer.spec()),
        product_(std::move(product)),
        projection_(projection) {}

  Result<PartSlots> run(std::optional<SlotId> input_scale) {
    PartSlots slots;
    HF_ASSIGN(const ExpertTensor* weight, layer_.need(projection_, TensorRole::kWeight));
    HF_ASSIGN(slots.weights, as_published(*weight));
    if (spec_.format.scheme != ExpertScheme::kFp8Tensor) {  // whose scale is alpha
      HF_ASSIGN(slots.scales, if_there(TensorRole::kScale));
    }
    HF_ASSIGN(slots.zeros, if_there(TensorRole::kZeros));
    HF_ASSIGN(slots.bias, if_there(TensorRole::kBias));
    HF_ASSIGN(const auto index, define_group_index(layer_, product_, projection_));
    if (spec_.format.act_order) slots.group_index = index;
    HF_TRY(define_stated_shape());
    HF_ASSIGN(const ScaleChain chain, define_scale_chain(layer_, projection_, input_scale));
    slots.alpha = chain.alpha;
    return slots;
  }

 private:
  Result<SlotId> as_published(const ExpertTensor& tensor) {
    if (is_made(spec_, tensor)) return define_made(layer_.registry(), spec_, tensor);
    return define_resident(layer_.registry(), spec_, tensor);
  }
  Result<std::optional<SlotId>> if_there(TensorRole role) {
    const ExpertTensor* tensor = layer_.find(projection_, role);
    if (tensor == nullptr) return std::optional<SlotId>();
    HF_ASSIGN(const SlotId slot, as_published(*tensor));
    return std::optional<SlotId>(slot);
  }
  // A derived copy of weight_shape, after every expert's was seen.
  Status define_stated_shape() {
    const ExpertTensor* tensor = layer_.find(projection_, TensorRole::kShape);
    if (tensor == nullptr) return {};
    HF_ASSIGN(const storage::ParameterId parameter, layer_.bind(*tensor));
    const ExpertsShape& shape = spec_.shape;
    const bool down = projection_ == Projection::kDown;
    const auto copy = [product = product_,
                       rows = down ? shape.hidden_size : shape.intermediate_size](
                          device::Stream&, std::span<const TensorView> inputs,
                          std::span<const TensorView> outputs) -> Status {
      HF_TRY(check_stated_shape(product, rows, inputs[0]));
      std::memcpy(outputs[0].address, inputs[0].address, outputs[0].bytes());
      return {};
    };
    std::vector<std::int64_t> dims{shape.expert_count};
    dims.insert(dims.end(), tensor->shape.dims().begin(), tensor->shape.dims().end());
    HF_ASSIGN(const tensor::Shape slot_shape, tensor::Shape::from_dims(dims));
    HF_TRY(layer_.derive({.name = config::projection_name(projection_) +
                                  std::string(".weight_shape"),
                          .dtype = tensor->dtype,
                          .shape = slot_shape,
                          .inputs = {parameter},
                          .slice_count = shape.expert_count,
                          .function = copy}));
    return {};
  }

  LayerParameters& layer_;
  const ExpertsSpec& spec_;
  const Product product_;
  const Projection projection_;
};

class SchemeLayer final : public ExpertsLayer {
 public:
  SchemeLayer(const Registry& registry, const ExpertsSpec& spec, LayerSlots slots,
              const CudaWorkspace& workspace)
      : registry_(registry), spec_(spec), slots_(std::move(slots)), workspace_(workspace) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, spec_.shape));
    const cuda::MoeShape shape{.n = args.x.shape[0],
                               .expert_count = spec_.shape.expert_count,
                               .experts_per_token = spec_.shape.experts_per_token,
                               .hidden = spec_.shape.hidden_size,
                               .intermediate = spec_.shape.intermediate_size};
    const cuda::Workspace workspace{.work = view(workspace_.work),
                                    .group_pairs = view(workspace_.group_pairs),
                                    .split = {},
                                    .activation = activation_view(),
                                    .down_out = view(workspace_.down_out)};
    const auto first = slots_.fused ? Projection::kGateUp : Projection::kGate;
    const auto second = slots_.fused ? Projection::kGateUp : Projection::kUp;
    HF_TRY(cuda::group(context.stream, shape, args, workspace));
    HF_ASSIGN(const cuda::SchemeInput input,
              cuda::round_inputs(context.stream, shape, args,
                                 rounding({args.x, spec_.shape.experts_per_token},
                                          slots_.gate_up_scale)));
    HF_TRY(cuda::gate_up(context.stream, shape, args,
                         {.gate = part(first, slots_.gate, 0),
                          .up = part(second, slots_.fused ? slots_.gate : slots_.up, 1),
                          .swiglu = {.alpha = view(slots_.constants.alpha),
                                     .beta = view(slots_.constants.beta),
                                     .limit = view(slots_.constants.limit)},
                          .input = input},
                         workspace));
    HF_ASSIGN(const cuda::SchemeInput activation,
              cuda::round_inputs(context.stream, shape, args,
                                 rounding({workspace.activation, 1}, slots_.down_scale)));
    HF_TRY(cuda::down(context.stream, shape, args,
                      {part(Projection::kDown, slots_.down, 0), activation}, workspace));
    return cuda::combine(context.stream, shape, args, workspace);
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants.names; }

 private:
  // The slot's rows may be wider.
  TensorView activation_view() const {
    TensorView activation = view(workspace_.activation);
    activation.shape = {activation.shape[0], spec_.shape.intermediate_size};
    return activation;
  }
  TensorView view(SlotId slot) const { return registry_.view(slot); }
  TensorView view(const std::optional<SlotId>& slot) const {
    return slot ? registry_.view(*slot) : TensorView{};
  }
  cuda::RoundInputs rounding(const cuda::SchemeInput& from,
                             const std::optional<SlotId>& scale) const {
    return {.from = from,
            .scheme = spec_.format.activations,
            .input_scale = view(scale),
            .to = view(workspace_.inputs)};
  }
  // `index`: 0 for gate rows or the only ones, 1 for up rows.
  cuda::SchemePart part(Projection projection, const PartSlots& slots, std::int64_t index) const {
    const bool down = projection == Projection::kDown;
    const bool fused = projection == Projection::kGateUp;
    const ExpertTensor& weight = *find_tensor(spec_, projection, TensorRole::kWeight);
    const ExpertsShape& shape = spec_.shape;
    cuda::SchemePart part{.matrix = {},
                          .weights = view(slots.weights),
                          .scales = view(slots.scales),
                          .zeros = view(slots.zeros),
                          .group_index = view(slots.group_index),
                          .alpha = view(slots.alpha),
                          .bias = view(slots.bias)};
    part.matrix = {.scheme = static_cast<std::int64_t>(spec_.format.scheme),
                   .rows = down ? shape.hidden_size : shape.intermediate_size * (fused ? 2 : 1),
                   .columns = down ? shape.intermediate_size : shape.hidden_size,
                   .row_step = fused ? 2 : 1,
                   .first_row = fused ? index : 0,
                   .input_major = weight.input_major ? 1 : 0,
                   .packing = static_cast<std::int64_t>(int4_packing(spec_.format)),
                   .groups = 0,
                   .per_group = 0,
                   .scale_dtype = static_cast<std::int64_t>(part.scales.dtype),
                   .weights = part.weights.address,
                   .scales = part.scales.address,
                   .zeros = part.zeros.address,
                   .group_index = part.group_index.as<const std::int32_t>(),
                   .alpha = part.alpha.as<const float>(),
                   .bias = part.bias.as<const std::uint16_t>()};
    if (const std::int64_t group = spec_.format.group_size; group > 0) {
      part.matrix.groups = part.matrix.columns / group;
      part.matrix.per_group = ((std::int64_t{1} << 32) + group - 1) / group;
    }
    return part;
  }

  const Registry& registry_;
  ExpertsSpec spec_;
  LayerSlots slots_;
  CudaWorkspace workspace_;
};

Status define_inputs(Registry& registry, const ExpertsSpec& spec, CudaWorkspace& workspace) {
  if (spec.format.activations == config::ActivationScheme::kNone || workspace.inputs) return {};
  const ExpertsShape& shape = workspace.shape;
  HF_ASSIGN(workspace.inputs,
            registry.define(storage::SlotSpec{
                .name = "experts.workspace.inputs",
                .slot_class = storage::SlotClass::kScratch,
                .dtype = DType::kF32,
                .shape = {shape.max_rows * shape.experts_per_token,
                          std::max(shape.hidden_size, shape.intermediate_size)},
                .arena = {}}));
  return {};
}

// What scheme_int4.cuh can divide and count.
Status check_group(const ExpertsSpec& spec) {
  const std::int64_t group = spec.format.group_size;
  const ExpertsShape& shape = spec.shape;
  const std::int64_t longest = std::max(shape.hidden_size, shape.intermediate_size);
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  if (group == 0) return {};
  if (longest >= kMost / group) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: {} inputs in groups of {}: their product must be below 2^32 on CUDA",
                      spec.slot_prefix, longest, group);
  }
  const std::int64_t each = kMost * std::min<std::int64_t>(group, 8) / shape.expert_count;
  if (shape.hidden_size < each / shape.intermediate_size) return {};
  return make_error(ErrorCode::kUnsupported,
                    "{}: {} experts of {} x {} in groups of {}: words and scales of a matrix must "
                    "be fewer than 2^32 on CUDA",
                    spec.slot_prefix, shape.expert_count, shape.hidden_size,
                    shape.intermediate_size, group);
}

}  // namespace

Result<std::unique_ptr<ExpertsLayer>> define_scheme_layer(Registry& registry,
                                                          const ExpertsSpec& spec,
                                                          CudaWorkspace& workspace) {
  HF_TRY(check_workspace(spec, workspace.shape));
  HF_TRY(check_group(spec));
  LayerParameters layer(registry, spec);
  const Product gate_up = gate_up_product(spec);
  LayerSlots slots;
  slots.fused = gate_up.projections.size() == 1;
  HF_ASSIGN(slots.gate_up_scale, define_input_scale(layer, gate_up));
  HF_ASSIGN(slots.down_scale, define_input_scale(layer, down_product(spec)));
  HF_ASSIGN(slots.gate,
            PartDefinition(layer, gate_up, gate_up.projections[0]).run(slots.gate_up_scale));
  if (!slots.fused) {
    HF_ASSIGN(slots.up,
              PartDefinition(layer, gate_up, gate_up.projections[1]).run(slots.gate_up_scale));
  }
  HF_ASSIGN(slots.down, PartDefinition(layer, down_product(spec), Projection::kDown)
                            .run(slots.down_scale));
  HF_ASSIGN(slots.constants, define_constants(registry, spec));
  HF_TRY(define_inputs(registry, spec, workspace));
  return std::unique_ptr<ExpertsLayer>(
      std::make_unique<SchemeLayer>(registry, spec, std::move(slots), workspace));
}

}  // namespace holdfast::experts
