#include "experts/field_layout.h"

#include <array>

namespace holdfast::experts {
namespace {

constexpr std::int64_t kEpilogueRows = 128;
constexpr std::int64_t kMarlinRows = 64;
constexpr std::int64_t kMarlinUnits = 2;
constexpr std::int64_t kMacheteUnits = 16;
constexpr std::int64_t kWarpRows = 8;
constexpr std::int64_t kWarpUnits = 16;

// Of row r among 64: those with one remainder modulo 8 stand together.
std::int64_t marlin_row(std::int64_t r) { return r % 8 * 8 + r / 8; }

}  // namespace

std::int64_t FieldLayout::place(std::int64_t row, std::int64_t unit) const {
  switch (order) {
    case FieldOrder::kRowMajor: break;
    case FieldOrder::kEpilogueTile: {
      const std::int64_t in_tile = row % kEpilogueRows;
      const std::int64_t shuffled = in_tile % 16 * 8 + in_tile / 16;
      return (row - in_tile + shuffled) * units + unit;
    }
    case FieldOrder::kMarlinTile: {
      const std::int64_t tile = unit / kMarlinUnits * (rows / kMarlinRows) + row / kMarlinRows;
      return (tile * kMarlinRows + marlin_row(row % kMarlinRows)) * kMarlinUnits +
             unit % kMarlinUnits;
    }
    case FieldOrder::kMacheteBlock:
      return (unit / kMacheteUnits * rows + row) * kMacheteUnits +
             ((unit ^ row) & (kMacheteUnits - 1));
    case FieldOrder::kWarpTile: {
      const std::int64_t tile = row / kWarpRows * (units / kWarpUnits) + unit / kWarpUnits;
      return (tile * kWarpRows + row % kWarpRows) * kWarpUnits + unit % kWarpUnits;
    }
  }
  return row * units + unit;
}

std::int64_t FieldLayout::period_step() const {
  if (order == FieldOrder::kWarpTile) return kWarpRows * kWarpUnits;
  return keeps_rows_together() ? kPeriod : rows * kPeriod;
}

bool FieldLayout::keeps_rows_together() const {
  return order == FieldOrder::kRowMajor || order == FieldOrder::kEpilogueTile;
}

std::int64_t FieldLayout::run() const {
  switch (order) {
    case FieldOrder::kRowMajor:
    case FieldOrder::kEpilogueTile: return units;
    case FieldOrder::kMarlinTile: return kMarlinUnits;
    case FieldOrder::kMacheteBlock: return 1;
    case FieldOrder::kWarpTile: return kWarpUnits;
  }
  return 1;
}

int nibble_place(FieldOrder order, int column) {
  constexpr std::array<int, 8> kMarlin{0, 4, 1, 5, 2, 6, 3, 7};
  constexpr std::array<int, 8> kMachete{0, 2, 4, 6, 1, 3, 5, 7};
  if (order == FieldOrder::kMarlinTile) return kMarlin[static_cast<std::size_t>(column)];
  if (order == FieldOrder::kMacheteBlock) return kMachete[static_cast<std::size_t>(column)];
  return column;
}

std::int64_t FieldScaleLayout::place(std::int64_t row, std::int64_t group) const {
  switch (order) {
    case FieldScaleOrder::kRowMajor: break;
    case FieldScaleOrder::kFold64x4:
      return ((row / 64 * (groups / 4) + group / 4) * 16 + row % 16) * 16 + row % 64 / 16 * 4 +
             group % 4;
    case FieldScaleOrder::kSwizzle128x4:
      return ((row / 128 * (groups / 4) + group / 4) * 32 + row % 32) * 16 + row % 128 / 32 * 4 +
             group % 4;
    case FieldScaleOrder::kMarlin:
      return group * rows + row / kMarlinRows * kMarlinRows + marlin_row(row % kMarlinRows);
  }
  return row * groups + group;
}

std::int64_t FieldScaleLayout::run() const {
  switch (order) {
    case FieldScaleOrder::kRowMajor: return groups;
    case FieldScaleOrder::kFold64x4:
    case FieldScaleOrder::kSwizzle128x4: return 4;
    case FieldScaleOrder::kMarlin: return 1;
  }
  return 1;
}

}  // namespace holdfast::experts
