// How the holdfast backend lays out expert weights, and the kernels that pack them. Rows go in
// tiles of 16, one row to a SIMD lane, so that one broadcast element of x meets 16 rows and no sum
// runs across lanes. The layout is the same for every instruction set: a unit of 1, 2 or 4 bytes
// of a row stands beside the same unit of the tile's other rows.
//
//   4-bit codes        u8 [E, tiles, K/8, 64]: units are little-endian u32, nibble i (low first) of
//                      unit v is column 8 v + i
//   8-bit codes        u8 [E, tiles, K, 16]
//   f16, bf16, f32     [E, tiles, K, 16]
//   scales of groups   as published, one byte or two or four: [E, tiles, K/group, 16]
//   zeros of groups    u8 [E, tiles, K/group, 16]
//   scales of rows     f32 [E, tiles, 16]
//   scales of blocks   f32 [E, tiles, ceil(K/128)]: a tile lies within one block of rows
//
// A fused gate_up matrix has its interleave undone: tile 2 t holds gate rows [16 t, 16 t + 16),
// tile 2 t + 1 the up rows of the same columns. Rows past the matrix are zero bytes.
#pragma once

#include <cstdint>
#include <span>

#include "config/model_config.h"
#include "device/device.h"
#include "holdfast/result.h"
#include "tensor/tensor_view.h"

namespace holdfast::experts {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kCodesPerUnit = 8;  // of 4 bits

// One of an expert's matrices.
struct PackedShape {
  std::int64_t rows = 0;     // of the checkpoint: 2 I, I or H
  std::int64_t columns = 0;  // K
  bool interleaved = false;  // rows alternate gate, up

  std::int64_t tiles() const;
  // Row of the checkpoint's matrix in `lane` of `tile`; -1 for padding.
  std::int64_t source_row(std::int64_t tile, std::int64_t lane) const;
};

// Where a published tensor of one expert has the units of its rows: unit u of row r is number
// r * row_stride + u * unit_stride.
struct UnitLayout {
  std::int64_t unit_bytes = 1;  // 1, 2 or 4
  std::int64_t units = 0;       // of a row
  std::int64_t row_stride = 0;
  std::int64_t unit_stride = 1;
};
UnitLayout row_major_units(std::int64_t unit_bytes, std::int64_t units);
// [units, rows]
UnitLayout input_major_units(std::int64_t unit_bytes, std::int64_t units, std::int64_t rows);

// Each enqueues the packing of one expert or more (the first dimension of both views) on a CPU
// stream. Errors: kMismatch when the views' bytes are not those of matrix and layout.

// `to` [E, tiles, units, 16] of units.
Status pack_units(device::Stream& stream, const PackedShape& matrix, const UnitLayout& layout,
                  const tensor::TensorView& from, const tensor::TensorView& to);
// 4-bit codes from one to a byte, u8 [E, rows, K]; column k of the packed matrix is column
// order[k]. An empty order leaves them where they are.
Status pack_nibbles(device::Stream& stream, const PackedShape& matrix,
                    std::span<const std::int32_t> order, const tensor::TensorView& from,
                    const tensor::TensorView& to);
// Scales of any float dtype to f32 [E, tiles, groups, lanes], exactly. lanes 16: `from` [E, rows,
// groups]; lanes 1: one for `rows_per_scale` rows, `from` [E, ceil(rows / that), groups].
struct ScaleLayout {
  std::int64_t groups = 1;
  std::int64_t lanes = kTileRows;
  std::int64_t rows_per_scale = 1;
};
Status pack_scales(device::Stream& stream, const PackedShape& matrix, const ScaleLayout& layout,
                   const tensor::TensorView& from, const tensor::TensorView& to);

}  // namespace holdfast::experts
