// The CUDA kernels of experts in every scheme, in launch order after moe_kernels.h's group: the
// inputs rounded (where the format rounds any), gate_up with SwiGLU, the activations rounded, down;
// then combine. Weights as the checkpoint holds them. No state; the stream's thread.
#pragma once

#include <cstdint>
#include <type_traits>

#include "experts/cuda/moe_kernels.h"

namespace holdfast::experts::cuda {

// One matrix of every expert as a kernel reads it; null where the format has none. Row r of the
// product is row r * row_step + first_row of what is published: fused, gate and up alternate.
struct SchemeMatrix {
  std::int64_t scheme = 0;       // config::ExpertScheme
  std::int64_t rows = 0;         // of the published matrix
  std::int64_t columns = 0;
  std::int64_t row_step = 1;
  std::int64_t first_row = 0;
  std::int64_t input_major = 0;  // kBF16, kF16, kF32: [columns, rows]
  std::int64_t packing = 0;      // kInt4: tensor::Int4Packing
  std::int64_t groups = 0;       // kInt4: of a row
  std::int64_t per_group = 0;    // kInt4: ceil(2^32 / group), which stands in for a division
  std::int64_t scale_dtype = 0;  // tensor::DType of scales that are plain floats
  const std::byte* weights = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* zeros = nullptr;
  const std::int32_t* group_index = nullptr;  // i32 [E, columns], under act-order
  const float* alpha = nullptr;               // f32 [E], of the whole matrix
  const std::uint16_t* bias = nullptr;        // bf16 [E, rows]
};
static_assert(std::has_unique_object_representations_v<SchemeMatrix>);

// The matrix and, for the manifest, the views behind its addresses.
struct SchemePart {
  SchemeMatrix matrix;
  TensorView weights, scales, zeros, group_index, alpha, bias;
};

// Where a product finds the input row of a pair: row pair / pairs_per_row of x, f32 [*, columns].
struct SchemeInput {
  TensorView x;
  std::int64_t pairs_per_row = 1;
};

// to[r] = the rounded row of `from`, one for each row of it, or, where the scale is an expert's
// (`input_scale`, f32 [E], is there), one for each pair; `round_row` of round_inputs.h with
// InputScale::kLeftOut, bit for bit. Gives where `to` has the pairs.
struct RoundInputs {
  SchemeInput from;
  config::ActivationScheme scheme = config::ActivationScheme::kNone;
  TensorView input_scale;
  TensorView to;
};
Result<SchemeInput> round_inputs(device::Stream& stream, const MoeShape& shape,
                                 const ExpertsArgs& args, const RoundInputs& round);

struct SchemeGateUp {
  SchemePart gate, up;  // of a fused matrix, both of it
  Swiglu swiglu;
  SchemeInput input;
};
Status gate_up(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const SchemeGateUp& views, const Workspace& workspace);
struct SchemeDown {
  SchemePart part;
  SchemeInput input;
};
Status down(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
            const SchemeDown& views, const Workspace& workspace);

}  // namespace holdfast::experts::cuda
