// How the holdfast backend lays out expert weights, and the kernels that pack them. Rows go in
// tiles of 16, one row to a SIMD lane, so that one broadcast element of x meets 16 rows and no sum
// runs across lanes. The layout is the same for every instruction set.
//
//   MXFP4 codes   u8 [E, tiles, K/32, 256]: per block of 32 columns four groups of 16 little-endian
//                 u32, one per row; nibble i (low first) of group v is column 8 v + i
//   MXFP4 scales  u8 [E, tiles, K/32, 16]: e8m0, one per row
//   bf16          bf16 [E, tiles, K, 16]
//
// A gate_up matrix has its interleave undone: tile 2 t holds gate rows [16 t, 16 t + 16), tile
// 2 t + 1 the up rows of the same columns. Rows past the matrix are zero codes, scales and values.
#pragma once

#include <cstdint>
#include <span>

#include "config/model_config.h"
#include "device/device.h"
#include "holdfast/result.h"
#include "tensor/tensor_view.h"

namespace holdfast::experts {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kBlockCodeBytes = 256;  // 16 rows x 32 columns x 4 bits

// One of an expert's two matrices.
struct PackedShape {
  std::int64_t rows = 0;     // of the checkpoint: 2 I or H
  std::int64_t columns = 0;  // K
  bool interleaved = false;  // rows alternate gate, up

  std::int64_t tiles() const;
  // Row of the checkpoint's matrix in `lane` of `tile`; -1 for padding.
  std::int64_t source_row(std::int64_t tile, std::int64_t lane) const;
};

// What a matrix packs into for `experts` experts.
tensor::Shape packed_codes_shape(const PackedShape& matrix, std::int64_t experts);
tensor::Shape packed_scales_shape(const PackedShape& matrix, std::int64_t experts);
tensor::Shape packed_bf16_shape(const PackedShape& matrix, std::int64_t experts);

// Enqueue the packing of one expert or more (the first dimension of all views) on a CPU stream.
// `from` codes u8 [E, rows, K/32, 16], scales u8 [E, rows, K/32], bf16 [E, K, rows].
// Errors: kMismatch when views and matrix do not fit each other.
Status pack_codes(device::Stream& stream, const PackedShape& matrix, const tensor::TensorView& from,
                  const tensor::TensorView& to);
Status pack_scales(device::Stream& stream, const PackedShape& matrix,
                   const tensor::TensorView& from, const tensor::TensorView& to);
Status pack_bf16(device::Stream& stream, const PackedShape& matrix, const tensor::TensorView& from,
                 const tensor::TensorView& to);

}  // namespace holdfast::experts
