// `cutlass` on CUDA: the slots of `cutlass` on the CPU, byte for byte, and a grouped GEMM that
// reads them. The packed slots are derived on the host, an expert at a time.
#include <string>
#include <utility>

#include "base/error.h"
#include "experts/backends.h"
#include "experts/cuda/cutlass/grouped_gemm.h"
#include "experts/cuda/moe_kernels.h"
#include "experts/field_backend.h"
#include "experts/layer_parameters.h"
#include "experts/layer_slots.h"

namespace holdfast::experts {
namespace {

using storage::Registry;
using storage::SlotId;
using tensor::DType;

struct WorkspaceSlots {
  SlotId items, group_pairs, inputs, activation, down_out;
};
struct LayerSlots {
  field::ProductSlots gate_up = {}, down = {};
  SlotId alpha = {}, beta = {}, limit = {};
  std::vector<std::string> constants = {};
  WorkspaceSlots workspace = {};
};

class CutlassCudaLayer final : public ExpertsLayer {
 public:
  CutlassCudaLayer(const Registry& registry, const ExpertsShape& shape, LayerSlots slots)
      : registry_(registry), shape_(shape), slots_(std::move(slots)) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, shape_));
    const grouped::Shape shape{.n = args.x.shape[0],
                               .expert_count = shape_.expert_count,
                               .experts_per_token = shape_.experts_per_token,
                               .hidden = shape_.hidden_size,
                               .padded_hidden = field::padded(shape_.hidden_size),
                               .padded_intermediate = field::padded(shape_.intermediate_size)};
    const grouped::Workspace workspace{.items = view(slots_.workspace.items),
                                       .group_pairs = view(slots_.workspace.group_pairs),
                                       .inputs = view(slots_.workspace.inputs),
                                       .activation = view(slots_.workspace.activation),
                                       .down_out = view(slots_.workspace.down_out)};
    const grouped::Swiglu swiglu{view(slots_.alpha), view(slots_.beta), view(slots_.limit)};
    HF_TRY(grouped::prepare(context.stream, shape, args, workspace));
    HF_TRY(grouped::gate_up(context.stream, shape, {views(slots_.gate_up), swiglu}, workspace));
    HF_TRY(grouped::down(context.stream, shape, views(slots_.down), workspace));
    cuda::Workspace combined{};
    combined.down_out = workspace.down_out;
    return cuda::combine(context.stream,
                         {.n = shape.n,
                          .expert_count = shape.expert_count,
                          .experts_per_token = shape.experts_per_token,
                          .hidden = shape.hidden,
                          .intermediate = shape_.intermediate_size},
                         args, combined);
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants; }

 private:
  tensor::TensorView view(SlotId slot) const { return registry_.view(slot); }
  grouped::MatrixViews views(const field::ProductSlots& product) const {
    return {view(product.weights), view(*product.scales),
            product.bias ? view(*product.bias) : tensor::TensorView{}};
  }

  const Registry& registry_;
  ExpertsShape shape_;
  LayerSlots slots_;
};

class CutlassCudaBackend final : public ExpertsBackend {
 public:
  std::string_view name() const override { return description_.name; }

  Status define_workspace(Registry& registry, const ExpertsShape& shape) override {
    const std::int64_t pairs = shape.max_rows * shape.experts_per_token;
    HF_ASSIGN(workspace_.items, define_scratch(registry, "items", DType::kI32,
                                               {grouped::item_capacity(shape), 4}));
    HF_ASSIGN(workspace_.group_pairs,
              define_scratch(registry, "group_pairs", DType::kI32, {pairs}));
    HF_ASSIGN(workspace_.inputs,
              define_scratch(registry, "inputs", DType::kBF16,
                             {shape.max_rows, 2, field::padded(shape.hidden_size)}));
    HF_ASSIGN(workspace_.activation,
              define_scratch(registry, "activation", DType::kBF16,
                             {pairs, 2, field::padded(shape.intermediate_size)}));
    HF_ASSIGN(workspace_.down_out,
              define_scratch(registry, "down_out", DType::kF32, {pairs, shape.hidden_size}));
    workspace_shape_ = shape;
    return {};
  }

  Result<std::unique_ptr<ExpertsLayer>> define(Registry& registry,
                                               const ExpertsSpec& spec) override {
    HF_TRY(check_spec(spec));
    HF_TRY(check_workspace(spec, workspace_shape_));
    LayerParameters layer(registry, spec);
    LayerSlots slots{.workspace = workspace_};
    const field::Storage& storage = description_.storage;
    HF_ASSIGN(slots.gate_up, field::define_product(layer, gate_up_product(spec), storage));
    HF_ASSIGN(slots.down, field::define_product(layer, down_product(spec), storage));
    const auto constant = [&](const char* name, float value) {
      slots.constants.push_back(spec.slot_prefix + "." + name);
      return define_constant(registry, spec, slots.constants.back(), value);
    };
    HF_ASSIGN(slots.alpha, constant(description_.alpha, spec.swiglu.alpha));
    HF_ASSIGN(slots.beta, constant(description_.beta, spec.swiglu.beta));
    HF_ASSIGN(slots.limit, constant(description_.limit, spec.swiglu.limit));
    return std::unique_ptr<ExpertsLayer>(
        std::make_unique<CutlassCudaLayer>(registry, spec.shape, std::move(slots)));
  }

 private:
  const field::Description description_ = cutlass_description();
  ExpertsShape workspace_shape_;
  WorkspaceSlots workspace_;
};

}  // namespace

bool has_cutlass_gpu_backend() { return true; }

std::unique_ptr<ExpertsBackend> make_cutlass_gpu_backend() {
  return std::make_unique<CutlassCudaBackend>();
}

}  // namespace holdfast::experts
