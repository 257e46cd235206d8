// Chooses and launches the products of scheme_product.cuh.
#include <algorithm>

#include "device/cuda/cuda_stream.h"
#include "experts/cuda/scheme_int4.cuh"
#include "experts/cuda/scheme_kernels.cuh"

namespace holdfast::experts::cuda {
namespace {

using device::reads;
using device::writes;
using device::cuda::launch_cuda;
using device::cuda::LaunchShape;

bool is_whole(const SchemeMatrix& m, std::int64_t columns) { return m.columns % columns == 0; }

// Most shared memory of a block on Hopper, less what the kernels declare themselves.
constexpr std::int64_t kMostTableBytes = 227 * 1024 - 1024 - kManyBytes;

// Whether a lane's rows of each part are one whole load.
bool is_input_major(const SchemeMatrix& m, std::int64_t parts) {
  return m.input_major != 0 && m.row_step == parts && is_whole(m, 8) && m.rows % (parts * 4) == 0;
}

SchemeKernels int4_kernels_for(const SchemeMatrix& m, std::int64_t parts) {
  if (m.group_index != nullptr) {
    const SchemeKernels ordered = ordered_kernels();
    const std::int64_t each = (parts == 2 ? ordered.gate_up : ordered.down).many_bytes;
    const bool narrow = m.scale_dtype != static_cast<std::int64_t>(tensor::DType::kF32);
    return narrow && is_whole(m, 8) && m.groups * each <= kMostTableBytes ? ordered : any_kernels();
  }
  const std::int64_t group = m.columns / m.groups;
  if (group % 32 != 0) return any_kernels();
  if (m.packing == kAwqPacking) return awq_kernels();
  return group % 128 == 0 ? int4_wide_kernels() : int4_kernels();
}

// By what the wide loads of scheme_matrices.cuh need of a row.
SchemeKernels kernels_for(const SchemeMatrix& m, std::int64_t parts) {
  switch (static_cast<ExpertScheme>(m.scheme)) {
    case ExpertScheme::kBF16:
      if (is_input_major(m, parts)) return input_major_kernels();
      if (m.input_major == 0 && is_whole(m, 16)) return bf16_kernels();
      break;
    case ExpertScheme::kMxfp4: return mxfp4_kernels();
    case ExpertScheme::kMxfp8: return mxfp8_kernels();
    case ExpertScheme::kFp8Tensor:
    case ExpertScheme::kFp8Channel:
      if (is_whole(m, 16)) return e4m3_kernels();
      break;
    case ExpertScheme::kFp8Block:
      if (is_whole(m, 16)) return fp8_block_kernels();
      break;
    case ExpertScheme::kNvfp4:
      if (is_whole(m, 32)) return nvfp4_kernels();
      break;
    case ExpertScheme::kInt4: return int4_kernels_for(m, parts);
    case ExpertScheme::kF16:
      if (m.input_major == 0 && is_whole(m, 16)) return f16_kernels();
      break;
    case ExpertScheme::kF32:
      if (m.input_major == 0 && is_whole(m, 8)) return f32_kernels();
      break;
  }
  return any_kernels();
}

// Where a product finds its experts' pairs: a row goes to an expert once, so one row's pairs need
// no grouping.
struct Routing {
  TensorView work, group_pairs, ids;
};
Routing routing_of(const MoeShape& shape, const ExpertsArgs& args, const Workspace& workspace) {
  if (shape.n > 1) return {workspace.work, workspace.group_pairs, {}};
  return {{}, {}, args.ids};
}

template <typename T>
const T* address_of(const TensorView& view) {
  return view.empty() ? nullptr : view.as<const T>();
}

ProductKernel product_of(const MoeShape& shape, const SchemePart& part, const SchemeInput& input,
                         const Routing& routing) {
  ProductKernel kernel{};
  kernel.part[0] = part.matrix;
  kernel.input = input.x.as<const float>();
  kernel.work = address_of<int4>(routing.work);
  kernel.group_pairs = address_of<std::int32_t>(routing.group_pairs);
  kernel.ids = address_of<std::int32_t>(routing.ids);
  kernel.experts = shape.expert_count;
  kernel.pairs_per_row = input.pairs_per_row;
  return kernel;
}

unsigned blocks(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

using Operands = std::initializer_list<device::Operand>;

// Every expert that can have pairs: those of few, and then those of many, for each as many groups
// of pairs as one expert can have.
Status launch(device::Stream& stream, const ProductKernels& kernels, const ProductKernel& kernel,
              const MoeShape& shape, const Operands& operands) {
  const std::int64_t pairs = shape.n * shape.experts_per_token;
  const auto experts = static_cast<unsigned>(std::min(pairs, shape.expert_count));
  const auto table_bytes = [&](std::int64_t each) {
    return static_cast<std::size_t>(each * kernel.part[0].groups);
  };
  const LaunchShape few{.grid = dim3(blocks(kernel.rows, 16), experts),
                        .block = dim3(kSchemeThreads),
                        .shared_bytes = table_bytes(kernels.few_bytes),
                        .overlaps = true};
  const Status launched = launch_cuda(stream, {kernels.names[0], few},
                                      shape.n <= 8 ? kernels.least : kernels.few, kernel, operands);
  if (!launched.ok() || shape.n <= kFewPairs) return launched;
  const LaunchShape many{.grid = dim3(blocks(kernel.rows, kernels.many_rows), experts,
                                      blocks(shape.n, kBlockPairs)),
                         .block = dim3(kSchemeThreads),
                         .shared_bytes = kManyBytes + table_bytes(kernels.many_bytes),
                         .overlaps = true};
  return launch_cuda(stream, {kernels.names[1], many}, kernels.many, kernel, operands);
}

}  // namespace

Status gate_up(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const SchemeGateUp& views, const Workspace& workspace) {
  const auto& [gate, up, swiglu, input] = views;
  const Routing routing = routing_of(shape, args, workspace);
  ProductKernel kernel = product_of(shape, gate, input, routing);
  kernel.part[1] = up.matrix;
  kernel.swiglu_alpha = swiglu.alpha.as<const float>();
  kernel.swiglu_beta = swiglu.beta.as<const float>();
  kernel.swiglu_limit = swiglu.limit.as<const float>();
  kernel.out = workspace.activation.as<float>();
  kernel.rows = shape.intermediate;
  return launch(
      stream, kernels_for(gate.matrix, 2).gate_up, kernel, shape,
      {reads("gate", gate.weights), reads("gate_scales", gate.scales),
       reads("gate_zeros", gate.zeros), reads("gate_group_index", gate.group_index),
       reads("gate_alpha", gate.alpha), reads("gate_bias", gate.bias), reads("up", up.weights),
       reads("up_scales", up.scales), reads("up_zeros", up.zeros),
       reads("up_group_index", up.group_index), reads("up_alpha", up.alpha),
       reads("up_bias", up.bias), reads("x", input.x), reads("work", routing.work),
       reads("group_pairs", routing.group_pairs), reads("ids", routing.ids),
       reads("swiglu_alpha", swiglu.alpha), reads("swiglu_beta", swiglu.beta),
       reads("swiglu_limit", swiglu.limit), writes("activation", workspace.activation)});
}

Status down(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
            const SchemeDown& views, const Workspace& workspace) {
  const auto& [part, input] = views;
  const Routing routing = routing_of(shape, args, workspace);
  ProductKernel kernel = product_of(shape, part, input, routing);
  kernel.out = workspace.down_out.as<float>();
  kernel.rows = shape.hidden;
  return launch(
      stream, kernels_for(part.matrix, 1).down, kernel, shape,
      {reads("down", part.weights), reads("down_scales", part.scales),
       reads("down_zeros", part.zeros), reads("down_group_index", part.group_index),
       reads("down_alpha", part.alpha), reads("down_bias", part.bias),
       reads("activation", input.x), reads("work", routing.work),
       reads("group_pairs", routing.group_pairs), reads("ids", routing.ids),
       writes("down_out", workspace.down_out)});
}

}  // namespace holdfast::experts::cuda
