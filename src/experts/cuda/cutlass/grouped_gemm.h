// The CUDA kernels of `cutlass` MXFP4 experts, in launch order: prepare (group the pairs by expert,
// split the inputs into bf16 halves), gate_up with SwiGLU, down; combining is the holdfast
// backend's. Built from CuTe's tensors and its Hopper matrix atom. No state; the stream's thread.
#pragma once

#include <cstdint>

#include "experts/experts.h"
#include "holdfast/result.h"
#include "tensor/tensor_view.h"

namespace holdfast::experts::grouped {

using tensor::TensorView;

// n rows; a pair is row * experts_per_token + slot. hidden and intermediate as published; padded_*
// are multiples of 128.
struct Shape {
  std::int64_t n = 0;
  std::int64_t expert_count = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t hidden = 0;
  std::int64_t padded_hidden = 0;
  std::int64_t padded_intermediate = 0;
};

// codes in FieldOrder::kWarpTile, scales in FieldScaleOrder::kFold64x4, bias f32 [E, rows, 1] or
// empty; rows of the first product are [up; gate].
struct MatrixViews {
  TensorView codes, scales, bias;
};

// f32 [E] each.
struct Swiglu {
  TensorView alpha, beta, limit;
};

// Scratch, for n = max_rows. Inputs of a product are bf16 [rows, 2, columns]: what a value's upper
// half says, and what that leaves out, with the columns of each 128 in the atom's order.
struct Workspace {
  TensorView items;        // i32 [item_capacity, 4]: expert, begin and end in group_pairs, 0;
                           // -1, 0, 0, 0 after the last one
  TensorView group_pairs;  // i32 [n * K], by expert, ascending within one
  TensorView inputs;       // bf16 [n, 2, padded_hidden]
  TensorView activation;   // bf16 [n * K, 2, padded_intermediate]
  TensorView down_out;     // f32 [n * K, H], bias included
};
std::int64_t item_capacity(const ExpertsShape& shape);

Status prepare(device::Stream& stream, const Shape& shape, const ExpertsArgs& args,
               const Workspace& workspace);
struct GateUpViews {
  MatrixViews matrix;
  Swiglu swiglu;
};
Status gate_up(device::Stream& stream, const Shape& shape, const GateUpViews& views,
               const Workspace& workspace);
Status down(device::Stream& stream, const Shape& shape, const MatrixViews& matrix,
            const Workspace& workspace);

}  // namespace holdfast::experts::grouped
