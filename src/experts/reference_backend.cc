// The reference experts backend: raw checkpoint layouts in weight slots, scalar loops in float32.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "experts/backends.h"
#include "experts/layer_slots.h"
#include "tensor/codecs.h"

namespace holdfast::experts {
namespace {

using config::ExpertScheme;
using storage::Registry;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;

// One of the two matrices of every expert, as the checkpoint holds it: MXFP4 blocks
// [E, rows, columns / 32, 16] with scales [E, rows, columns / 32], or, when `scales` is null, bf16
// [E, columns, rows]. Bias bf16 [E, rows].
struct RawMatrix {
  const std::byte* weights = nullptr;
  const std::uint8_t* scales = nullptr;
  const std::uint16_t* bias = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

struct ForwardArgs {
  std::int64_t n = 0, k = 0, experts = 0;
  const float* x = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  const float* residual = nullptr;
  float* out = nullptr;
  const std::int32_t* active_rows = nullptr;
  RawMatrix gate_up, down;
  const float* alpha = nullptr;
  const float* beta = nullptr;
  const float* limit = nullptr;
  float* activation = nullptr;  // [I]
  float* sum = nullptr;         // [H]
};

// A capture looks for pointers in every word, padding included.
static_assert(std::has_unique_object_representations_v<ForwardArgs>);

// W_e[row] . x + bias_e[row]
float row_times(const RawMatrix& matrix, std::int64_t expert, std::int64_t row, const float* x) {
  float sum = 0.0f;
  if (matrix.scales == nullptr) {
    const auto* weights = reinterpret_cast<const std::uint16_t*>(matrix.weights);
    for (std::int64_t c = 0; c < matrix.columns; ++c) {
      const std::int64_t index = (expert * matrix.columns + c) * matrix.rows + row;
      sum += tensor::bf16_to_f32(weights[index]) * x[c];
    }
  } else {
    const std::int64_t blocks = matrix.columns / tensor::kMxBlock;
    const auto* codes = reinterpret_cast<const std::uint8_t*>(matrix.weights);
    std::array<float, tensor::kMxBlock> values{};
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t index = (expert * matrix.rows + row) * blocks + b;
      tensor::decode_mxfp4_block(std::span<const std::uint8_t, 16>(codes + index * 16, 16),
                                 matrix.scales[index], values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum += values[i] * x[b * tensor::kMxBlock + static_cast<std::int64_t>(i)];
      }
    }
  }
  return sum + tensor::bf16_to_f32(matrix.bias[expert * matrix.rows + row]);
}

// semantics.md 3.7. A NaN stays one: the comparisons are false for it.
float swiglu(float gate, float up, float alpha, float beta, float limit) {
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : (up < -limit ? -limit : up);
  return g / (1.0f + std::exp(-alpha * g)) * (u + beta);
}

// args.sum += weight * expert(x)
void add_expert(const ForwardArgs& args, std::int64_t expert, float weight, const float* x) {
  const float alpha = args.alpha[expert];
  const float beta = args.beta[expert];
  const float limit = args.limit[expert];
  for (std::int64_t i = 0; i < args.down.columns; ++i) {
    const float gate = row_times(args.gate_up, expert, 2 * i, x);
    const float up = row_times(args.gate_up, expert, 2 * i + 1, x);
    args.activation[i] = swiglu(gate, up, alpha, beta, limit);
  }
  for (std::int64_t h = 0; h < args.down.rows; ++h) {
    args.sum[h] += weight * row_times(args.down, expert, h, args.activation);
  }
}

void run_forward(const ForwardArgs& args, device::WorkerPool&) {
  const std::int64_t rows = std::clamp<std::int64_t>(*args.active_rows, 0, args.n);
  const std::int64_t hidden = args.down.rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::fill_n(args.sum, hidden, 0.0f);
    for (std::int64_t i = r * args.k; i < (r + 1) * args.k; ++i) {
      const std::int64_t expert = args.ids[i];
      if (expert < 0 || expert >= args.experts) continue;
      add_expert(args, expert, args.weights[i], args.x + r * hidden);
    }
    for (std::int64_t h = 0; h < hidden; ++h) {
      args.out[r * hidden + h] = args.residual[r * hidden + h] + args.sum[h];
    }
  }
}

struct MatrixSlots {
  SlotId weights, bias;
  std::optional<SlotId> scales;
};

RawMatrix raw_matrix(const Registry& registry, const MatrixSlots& slots, std::int64_t rows,
                     std::int64_t columns) {
  return RawMatrix{
      .weights = registry.view(slots.weights).address,
      .scales = slots.scales ? registry.view(*slots.scales).as<const std::uint8_t>() : nullptr,
      .bias = registry.view(slots.bias).as<const std::uint16_t>(),
      .rows = rows,
      .columns = columns};
}

class ReferenceLayer final : public ExpertsLayer {
 public:
  struct Slots {
    MatrixSlots gate_up = {}, down = {};
    ConstantSlots constants = {};
    SlotId activation, sum;
  };
  ReferenceLayer(const Registry& registry, ExpertsShape shape, Slots slots)
      : registry_(registry), shape_(shape), slots_(std::move(slots)) {}

  Status forward(const ops::OpContext& context, const ExpertsArgs& args) const override {
    HF_TRY(check_forward(args, shape_));
    const auto view = [this](SlotId slot) { return registry_.view(slot); };
    const auto scales = [&](const MatrixSlots& slots) {
      return slots.scales ? view(*slots.scales) : TensorView{};
    };
    const ConstantSlots& constants = slots_.constants;
    const ForwardArgs kernel_args{
        .n = args.x.shape[0],
        .k = shape_.experts_per_token,
        .experts = shape_.expert_count,
        .x = args.x.as<const float>(),
        .ids = args.ids.as<const std::int32_t>(),
        .weights = args.weights.as<const float>(),
        .residual = args.residual.as<const float>(),
        .out = args.out.as<float>(),
        .active_rows = args.active_rows.as<const std::int32_t>(),
        .gate_up = raw_matrix(registry_, slots_.gate_up, 2 * shape_.intermediate_size,
                              shape_.hidden_size),
        .down = raw_matrix(registry_, slots_.down, shape_.hidden_size, shape_.intermediate_size),
        .alpha = view(constants.alpha).as<const float>(),
        .beta = view(constants.beta).as<const float>(),
        .limit = view(constants.limit).as<const float>(),
        .activation = view(slots_.activation).as<float>(),
        .sum = view(slots_.sum).as<float>()};
    using device::reads;
    using device::writes;
    return device::launch_cpu<&run_forward>(
        context.stream, "experts.reference", kernel_args,
        {reads("x", args.x), reads("ids", args.ids), reads("weights", args.weights),
         reads("residual", args.residual), reads("active_rows", args.active_rows),
         writes("out", args.out), reads("gate_up", view(slots_.gate_up.weights)),
         reads("gate_up_scales", scales(slots_.gate_up)),
         reads("gate_up_bias", view(slots_.gate_up.bias)), reads("down", view(slots_.down.weights)),
         reads("down_scales", scales(slots_.down)), reads("down_bias", view(slots_.down.bias)),
         reads("swiglu_alpha", view(constants.alpha)), reads("swiglu_beta", view(constants.beta)),
         reads("swiglu_limit", view(constants.limit)),
         writes("activation", view(slots_.activation)), writes("sum", view(slots_.sum))});
  }

  std::vector<std::string> constant_slots() const override { return slots_.constants.names; }

 private:
  const Registry& registry_;
  ExpertsShape shape_;
  Slots slots_;
};

class ReferenceBackend final : public ExpertsBackend {
 public:
  std::string_view name() const override { return "reference"; }

  Status define_workspace(Registry& registry, const ExpertsShape& shape) override {
    const auto scratch = [&](const char* name, std::int64_t count) {
      return registry.define(storage::SlotSpec{.name = name,
                                               .slot_class = storage::SlotClass::kScratch,
                                               .dtype = DType::kF32,
                                               .shape = {count},
                                               .arena = {}});
    };
    HF_ASSIGN(activation_, scratch("experts.workspace.activation", shape.intermediate_size));
    HF_ASSIGN(sum_, scratch("experts.workspace.sum", shape.hidden_size));
    workspace_ = shape;
    return {};
  }

  Result<std::unique_ptr<ExpertsLayer>> define(Registry& registry,
                                               const ExpertsSpec& spec) override {
    HF_TRY(check_spec(spec));
    const std::int64_t hidden = spec.shape.hidden_size;
    const std::int64_t intermediate = spec.shape.intermediate_size;
    if (hidden > workspace_.hidden_size || intermediate > workspace_.intermediate_size) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "{}: hidden_size {} and intermediate_size {} do not fit the workspace of "
                        "{} and {}; call define_workspace first",
                        spec.slot_prefix, hidden, intermediate, workspace_.hidden_size,
                        workspace_.intermediate_size);
    }
    ReferenceLayer::Slots slots{.activation = activation_, .sum = sum_};
    HF_ASSIGN(slots.gate_up,
              define_matrix(registry, spec, "gate_up_proj", {2 * intermediate, hidden}));
    HF_ASSIGN(slots.down, define_matrix(registry, spec, "down_proj", {hidden, intermediate}));
    HF_ASSIGN(slots.constants, define_constants(registry, spec));
    return std::unique_ptr<ExpertsLayer>(
        std::make_unique<ReferenceLayer>(registry, spec.shape, std::move(slots)));
  }

 private:
  // `matrix` is [rows, columns] of each expert.
  static Result<MatrixSlots> define_matrix(Registry& registry, const ExpertsSpec& spec,
                                           const std::string& name, const tensor::Shape& matrix) {
    const std::int64_t experts = spec.shape.expert_count;
    const std::int64_t rows = matrix[0];
    const std::int64_t columns = matrix[1];
    MatrixSlots slots;
    if (spec.format.scheme == ExpertScheme::kMxfp4) {
      const std::int64_t blocks = columns / tensor::kMxBlock;
      HF_ASSIGN(slots.weights, define_weight(registry, spec, name + "_blocks", DType::kU8,
                                             {experts, rows, blocks, 16}));
      HF_ASSIGN(slots.scales, define_weight(registry, spec, name + "_scales", DType::kU8,
                                            {experts, rows, blocks}));
    } else {
      HF_ASSIGN(slots.weights,
                define_weight(registry, spec, name, DType::kBF16, {experts, columns, rows}));
    }
    HF_ASSIGN(slots.bias,
              define_weight(registry, spec, name + "_bias", DType::kBF16, {experts, rows}));
    return slots;
  }

  ExpertsShape workspace_;
  SlotId activation_, sum_;
};

}  // namespace

std::unique_ptr<ExpertsBackend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace holdfast::experts
