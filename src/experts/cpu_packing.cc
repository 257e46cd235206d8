#include "experts/cpu_packing.h"

#include <cstring>

#include "device/cpu/cpu_device.h"
#include "ops/check.h"
#include "tensor/codecs.h"

namespace holdfast::experts {

using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

std::int64_t PackedShape::tiles() const {
  const std::int64_t rows_of_a_kind = interleaved ? rows / 2 : rows;
  const std::int64_t tiles_of_a_kind = (rows_of_a_kind + kTileRows - 1) / kTileRows;
  return interleaved ? 2 * tiles_of_a_kind : tiles_of_a_kind;
}

std::int64_t PackedShape::source_row(std::int64_t tile, std::int64_t lane) const {
  const std::int64_t row =
      interleaved ? 2 * (tile / 2 * kTileRows + lane) + tile % 2 : tile * kTileRows + lane;
  return row < rows ? row : -1;
}

Shape packed_codes_shape(const PackedShape& matrix, std::int64_t experts) {
  return {experts, matrix.tiles(), matrix.columns / tensor::kMxBlock, kBlockCodeBytes};
}

Shape packed_scales_shape(const PackedShape& matrix, std::int64_t experts) {
  return {experts, matrix.tiles(), matrix.columns / tensor::kMxBlock, kTileRows};
}

Shape packed_bf16_shape(const PackedShape& matrix, std::int64_t experts) {
  return {experts, matrix.tiles(), matrix.columns, kTileRows};
}

namespace {

struct PackArgs {
  PackedShape matrix;
  std::int64_t experts = 0;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

// The rows of one tile in the checkpoint's matrix; nullptr for padding.
struct TileRows {
  const std::byte* row[kTileRows];
};

TileRows tile_rows(const PackArgs& args, std::int64_t index, std::int64_t row_bytes) {
  const std::int64_t expert = index / args.matrix.tiles();
  const std::int64_t tile = index % args.matrix.tiles();
  TileRows rows{};
  for (std::int64_t lane = 0; lane < kTileRows; ++lane) {
    const std::int64_t row = args.matrix.source_row(tile, lane);
    if (row >= 0) rows.row[lane] = args.from + (expert * args.matrix.rows + row) * row_bytes;
  }
  return rows;
}

// Transposes units of kUnitBytes: to[unit][lane] = row[lane][unit].
template <std::size_t kUnitBytes>
void transpose_tile(const TileRows& rows, std::int64_t units, std::byte* to) {
  for (std::int64_t unit = 0; unit < units; ++unit) {
    for (const std::byte* row : rows.row) {
      if (row == nullptr) {
        std::memset(to, 0, kUnitBytes);
      } else {
        std::memcpy(to, row + unit * static_cast<std::int64_t>(kUnitBytes), kUnitBytes);
      }
      to += kUnitBytes;
    }
  }
}

// Every tile of every expert whose rows lie contiguously in the source, in units of kUnitBytes.
template <std::size_t kUnitBytes>
void run_transpose(const PackArgs& args, device::WorkerPool& workers) {
  const std::int64_t units_per_block = kUnitBytes == 1 ? 1 : 4;
  const std::int64_t units = args.matrix.columns / tensor::kMxBlock * units_per_block;
  const std::int64_t row_bytes = units * static_cast<std::int64_t>(kUnitBytes);
  workers.parallel_for(args.experts * args.matrix.tiles(), 1,
                       [&](std::int64_t begin, std::int64_t end, int) {
                         for (std::int64_t tile = begin; tile < end; ++tile) {
                           transpose_tile<kUnitBytes>(tile_rows(args, tile, row_bytes), units,
                                                      args.to + tile * kTileRows * row_bytes);
                         }
                       });
}

// Columns [0, K) of one tile of an input-major bf16 matrix [K, rows].
void pack_bf16_tile(const PackArgs& args, std::int64_t index) {
  const PackedShape& matrix = args.matrix;
  const std::int64_t expert = index / matrix.tiles();
  const std::int64_t tile = index % matrix.tiles();
  const auto* from = reinterpret_cast<const std::uint16_t*>(args.from) +
                     expert * matrix.columns * matrix.rows;
  auto* to = reinterpret_cast<std::uint16_t*>(args.to) + index * matrix.columns * kTileRows;
  const std::int64_t first = matrix.source_row(tile, 0);
  const std::int64_t step = matrix.interleaved ? 2 : 1;
  std::int64_t count = 0;
  while (count < kTileRows && matrix.source_row(tile, count) >= 0) ++count;
  for (std::int64_t k = 0; k < matrix.columns; ++k) {
    const std::uint16_t* row = from + k * matrix.rows + first;
    for (std::int64_t lane = 0; lane < count; ++lane) to[lane] = row[lane * step];
    for (std::int64_t lane = count; lane < kTileRows; ++lane) to[lane] = 0;
    to += kTileRows;
  }
}

void run_pack_bf16(const PackArgs& args, device::WorkerPool& workers) {
  workers.parallel_for(args.experts * args.matrix.tiles(), 1,
                       [&](std::int64_t begin, std::int64_t end, int) {
                         for (std::int64_t tile = begin; tile < end; ++tile) {
                           pack_bf16_tile(args, tile);
                         }
                       });
}

// What a packing launches with, and what its views must be.
struct PackLaunch {
  const char* name = "";
  PackedShape matrix;
  DType dtype = DType::kU8;
  Shape source;
  Shape packed;
};

template <auto Function>
Status pack(device::Stream& stream, const PackLaunch& launch, const TensorView& from,
            const TensorView& to) {
  HF_TRY(ops::check_operand(from, {launch.name, "from", {launch.dtype}, launch.source}));
  HF_TRY(ops::check_operand(to, {launch.name, "to", {launch.dtype}, launch.packed}));
  const PackArgs args{launch.matrix, from.shape[0], from.address, to.address};
  return device::launch_cpu<Function>(stream, launch.name, args,
                                      {device::reads("from", from), device::writes("to", to)});
}

}  // namespace

Status pack_codes(device::Stream& stream, const PackedShape& matrix, const TensorView& from,
                  const TensorView& to) {
  constexpr const char* kName = "experts.pack_codes";
  HF_TRY(ops::check_rank(from, 4, kName, "from"));
  const std::int64_t experts = from.shape[0];
  const Shape source{experts, matrix.rows, matrix.columns / tensor::kMxBlock, 16};
  return pack<&run_transpose<4>>(
      stream, {kName, matrix, DType::kU8, source, packed_codes_shape(matrix, experts)}, from, to);
}

Status pack_scales(device::Stream& stream, const PackedShape& matrix, const TensorView& from,
                   const TensorView& to) {
  constexpr const char* kName = "experts.pack_scales";
  HF_TRY(ops::check_rank(from, 3, kName, "from"));
  const std::int64_t experts = from.shape[0];
  const Shape source{experts, matrix.rows, matrix.columns / tensor::kMxBlock};
  return pack<&run_transpose<1>>(
      stream, {kName, matrix, DType::kU8, source, packed_scales_shape(matrix, experts)}, from, to);
}

Status pack_bf16(device::Stream& stream, const PackedShape& matrix, const TensorView& from,
                 const TensorView& to) {
  constexpr const char* kName = "experts.pack_bf16";
  HF_TRY(ops::check_rank(from, 3, kName, "from"));
  const std::int64_t experts = from.shape[0];
  const Shape source{experts, matrix.columns, matrix.rows};
  return pack<&run_pack_bf16>(
      stream, {kName, matrix, DType::kBF16, source, packed_bf16_shape(matrix, experts)}, from, to);
}

}  // namespace holdfast::experts
