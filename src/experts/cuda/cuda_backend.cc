// The holdfast experts backend on CUDA: weights resident as published, so that a reload moves bytes
// and computes next to nothing. gpt-oss's MXFP4 has kernels of its own (moe_kernels.h); every other
// format those of scheme_kernels.h.
#include <string>
#include <utility>

#include "base/error.h"
#include "experts/backends.h"
#include "experts/cuda/moe_kernels.h"
#include "experts/cuda/moe_one_row.h"
#include "experts/cuda/scheme_layer.h"
#include "experts/expert_parameters.h"
#include "experts/layer_slots.h"
#include "experts/raw_matrix.h"
#include "tensor/codecs.h"

namespace holdfast::experts {
namespace {

using storage::Registry;
using storage::SlotId;
using tensor::DType;

struct MatrixSlots {
  SlotId codes, scales, bias;
};
struct LayerSlots {
  MatrixSlots gate_up = {}, down = {};
  ConstantSlots constants = {};
  CudaWorkspace workspace = {};
};

class CudaLayer final : public ExpertsLayer {
 public:
  CudaLayer(const Registry& registry, const ExpertsShape& shape, LayerSlots slots)
      : registry_(registry), shape_(shape), slots_(std::move(slots)) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, shape_));
    const cuda::MoeShape shape{.n = args.x.shape[0],
                               .expert_count = shape_.expert_count,
                               .experts_per_token = shape_.experts_per_token,
                               .hidden = shape_.hidden_size,
                               .intermediate = shape_.intermediate_size};
    const cuda::Workspace workspace{.work = view(slots_.workspace.work),
                                    .group_pairs = view(slots_.workspace.group_pairs),
                                    .split = view(slots_.workspace.split),
                                    .activation = view(slots_.workspace.activation),
                                    .down_out = view(slots_.workspace.down_out)};
    const cuda::Swiglu swiglu{.alpha = view(slots_.constants.alpha),
                              .beta = view(slots_.constants.beta),
                              .limit = view(slots_.constants.limit)};
    HF_TRY(cuda::group(context.stream, shape, args, workspace));
    HF_TRY(cuda::gate_up(context.stream, shape, args, {views(slots_.gate_up), swiglu},
                         workspace));
    HF_TRY(cuda::down(context.stream, shape, args, views(slots_.down), workspace));
    if (cuda::down_combines(shape)) return {};
    return cuda::combine(context.stream, shape, args, workspace);
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants.names; }

 private:
  tensor::TensorView view(SlotId slot) const { return registry_.view(slot); }
  // Of whichever dialect: its codes may have two dimensions to a row or one.
  cuda::MatrixViews views(const MatrixSlots& matrix) const {
    cuda::MatrixViews views{view(matrix.codes), view(matrix.scales), view(matrix.bias)};
    const tensor::Shape& blocks = views.scales.shape;
    views.codes.shape = {blocks[0], blocks[1], blocks[2], tensor::kMxBlock / 2};
    return views;
  }

  const Registry& registry_;
  ExpertsShape shape_;
  LayerSlots slots_;
};

class CudaBackend final : public ExpertsBackend {
 public:
  std::string_view name() const override { return "holdfast"; }

  Status define_workspace(Registry& registry, const ExpertsShape& shape) override {
    workspace_.shape = shape;
    const std::int64_t pairs = shape.max_rows * shape.experts_per_token;
    const auto in_stages = [](std::int64_t width) { return (width + 127) / 128 * 128; };
    HF_ASSIGN(workspace_.work, define_scratch(registry, "work", DType::kI32,
                                              {shape.expert_count + pairs / 16, 4}));
    HF_ASSIGN(workspace_.group_pairs,
              define_scratch(registry, "group_pairs", DType::kI32, {pairs}));
    HF_ASSIGN(workspace_.split, define_scratch(registry, "split", DType::kF32,
                                               {shape.max_rows, in_stages(shape.hidden_size)}));
    HF_ASSIGN(workspace_.activation,
              define_scratch(registry, "activation", DType::kF32,
                             {pairs, in_stages(shape.intermediate_size)}));
    HF_ASSIGN(workspace_.down_out,
              define_scratch(registry, "down_out", DType::kF32, {pairs, shape.hidden_size}));
    return {};
  }

  Result<std::unique_ptr<ExpertsLayer>> define(Registry& registry,
                                               const ExpertsSpec& spec) override {
    HF_TRY(check_spec(spec));
    if (!is_fused_mxfp4(spec)) return define_scheme_layer(registry, spec, workspace_);
    HF_TRY(check_workspace(spec, workspace_.shape));
    LayerSlots slots{.workspace = workspace_};
    HF_ASSIGN(slots.gate_up, define_matrix(registry, spec, config::Projection::kGateUp));
    HF_ASSIGN(slots.down, define_matrix(registry, spec, config::Projection::kDown));
    HF_ASSIGN(slots.constants, define_constants(registry, spec));
    return std::unique_ptr<ExpertsLayer>(
        std::make_unique<CudaLayer>(registry, spec.shape, std::move(slots)));
  }

 private:
  // What moe_kernels.h runs.
  static bool is_fused_mxfp4(const ExpertsSpec& spec) {
    const auto has_bias = [&](config::Projection projection) {
      return find_tensor(spec, projection, config::TensorRole::kBias) != nullptr;
    };
    return spec.format.scheme == config::ExpertScheme::kMxfp4 &&
           spec.format.activations == config::ActivationScheme::kNone &&
           has_bias(config::Projection::kGateUp) && has_bias(config::Projection::kDown);
  }

  static Result<MatrixSlots> define_matrix(Registry& registry, const ExpertsSpec& spec,
                                           config::Projection projection) {
    HF_ASSIGN(const RawSlots raw, define_raw_slots(registry, spec, projection));
    return MatrixSlots{.codes = *raw.weights, .scales = *raw.scales, .bias = *raw.bias};
  }

  CudaWorkspace workspace_;
};

}  // namespace

std::unique_ptr<ExpertsBackend> make_gpu_backend() { return std::make_unique<CudaBackend>(); }

}  // namespace holdfast::experts
