// The CUDA kernels of MXFP4 experts, in launch order: group the (row, slot) pairs by expert,
// gate_up with SwiGLU, down, combine. Weights as the checkpoint holds them. No state; the stream's
// thread.
#pragma once

#include <cstdint>

#include "experts/experts.h"
#include "holdfast/result.h"
#include "tensor/tensor_view.h"

namespace holdfast::experts::cuda {

using tensor::TensorView;

// n rows; a pair is row * experts_per_token + slot.
struct MoeShape {
  std::int64_t n = 0;
  std::int64_t expert_count = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
};

// codes u8 [E, rows, K/32, 16], scales u8 [E, rows, K/32], bias bf16 [E, rows].
struct MatrixViews {
  TensorView codes, scales, bias;
};

// Scratch, for n = max_rows.
struct Workspace {
  TensorView work;         // i32 [E + n * K / 16, 4]: an expert, where some pairs of it begin and
                           // end in group_pairs, 0; -1, 0, 0, 0 after the last ones
  TensorView group_pairs;  // i32 [n * K], by expert, ascending within one
  TensorView split;        // f32 [n, H]: x for the tiles; widths in whole stages. Empty: all pairs
                           // of an expert are one entry of work
  TensorView activation;   // f32 [n * K, I]; of tiles split, in the order of group_pairs
  TensorView down_out;     // f32 [n * K, H], bias included
};

// Nothing for one row: the products read its ids.
Status group(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
             const Workspace& workspace);
// alpha, beta, limit: f32 [E].
struct Swiglu {
  TensorView alpha, beta, limit;
};
struct GateUpViews {
  MatrixViews matrix;
  Swiglu swiglu;
};
Status gate_up(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const GateUpViews& views, const Workspace& workspace);
Status down(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
            const MatrixViews& matrix, const Workspace& workspace);
Status combine(device::Stream& stream, const MoeShape& shape, const ExpertsArgs& args,
               const Workspace& workspace);

}  // namespace holdfast::experts::cuda
