// The orders in which the field's kernels keep weights and scales, as pure bijections: of a padded
// matrix's units onto places, of a unit's eight columns onto nibbles, of its scales onto places.
// They only move bits; what is packed can be unpacked. Values; any thread.
#pragma once

#include <cstdint>

namespace holdfast::experts {

enum class FieldOrder : std::int64_t {
  // Rows one after another (FlashInfer CUTLASS after its [up; gate] swap; unquantised kernels).
  kRowMajor,
  // Rows of each epilogue tile of 128 shuffled: row 16 j + i of a tile stands at 8 i + j, i < 16
  // (TensorRT-LLM's kernels read their output tile in that order).
  kEpilogueTile,
  // Tiles of 64 rows x 2 units, the tiles of one pair of units together, a tile's rows by their
  // number modulo 8 first (Marlin: what one warp's matrix instruction takes lies together).
  kMarlinTile,
  // Blocks of 16 units, within a block row after row, its units exclusive-ored with the row number
  // modulo 16 (Machete: shared memory without bank conflicts).
  kMacheteBlock,
  // Tiles of 8 rows x 16 units, those of 8 rows together: of MXFP4 codes 512 bytes, which a warp
  // reads 16 bytes a lane, each lane the 32 codes of one scale.
  kWarpTile,
};

enum class FieldScaleOrder : std::int64_t {
  kRowMajor,
  // [rows / 64, groups / 4, 16, 16]: element (r, g) at [r / 64][g / 4][r % 16][r % 64 / 16 * 4 +
  // g % 4] (FlashInfer's fold for SM90; semantics.md 2.7).
  kFold64x4,
  // (((r / 128) * (groups / 4) + g / 4) * 32 + r % 32) * 16 + r % 128 / 32 * 4 + g % 4
  // (semantics.md 3.5).
  kSwizzle128x4,
  // Groups outermost, rows of each 64 by their number modulo 8 first (Marlin).
  kMarlin,
};

// A padded matrix of rows x units: rows a multiple of 128, units a multiple of 16.
struct FieldLayout {
  FieldOrder order = FieldOrder::kRowMajor;
  std::int64_t rows = 0;
  std::int64_t units = 0;

  // In [0, rows * units).
  std::int64_t place(std::int64_t row, std::int64_t unit) const;

  // Along a row, unit u + kPeriod stands period_step() places after unit u.
  static constexpr std::int64_t kPeriod = 16;
  std::int64_t period_step() const;
  // Whether a row's units stand side by side in their order.
  bool keeps_rows_together() const;
  // So many units of a row, from a multiple of it on, stand one after another.
  std::int64_t run() const;
};

// Which nibble of a word column i of its eight is: i itself; 0 4 1 5 2 6 3 7 for
// kMarlinTile (even columns in the low half, so that a mask gives pairs), 0 2 4 6 1 3 5 7 for
// kMacheteBlock.
int nibble_place(FieldOrder order, int column);

// rows a multiple of 128; groups a multiple of 4 for the second and third.
struct FieldScaleLayout {
  FieldScaleOrder order = FieldScaleOrder::kRowMajor;
  std::int64_t rows = 0;
  std::int64_t groups = 0;

  std::int64_t place(std::int64_t row, std::int64_t group) const;
  // So many groups of a row, from a multiple of it on, stand one after another.
  std::int64_t run() const;
};

}  // namespace holdfast::experts
