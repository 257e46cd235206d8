#include "experts/cpu_packing.h"

#include <cstring>

#include "base/assert.h"
#include "base/error.h"
#include "device/cpu/cpu_device.h"
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

UnitLayout row_major_units(std::int64_t unit_bytes, std::int64_t units) {
  return {.unit_bytes = unit_bytes, .units = units, .row_stride = units, .unit_stride = 1};
}

UnitLayout input_major_units(std::int64_t unit_bytes, std::int64_t units, std::int64_t rows) {
  return {.unit_bytes = unit_bytes, .units = units, .row_stride = 1, .unit_stride = rows};
}

namespace {

struct UnitArgs {
  PackedShape matrix;
  UnitLayout layout;
  std::int64_t experts = 0;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
};

// to[unit][lane] = row[lane][unit] for one tile.
template <std::size_t kUnitBytes>
void pack_tile(const UnitArgs& args, std::int64_t index) {
  const PackedShape& matrix = args.matrix;
  const UnitLayout& layout = args.layout;
  const std::int64_t expert = index / matrix.tiles();
  const std::int64_t tile = index % matrix.tiles();
  constexpr auto kBytes = static_cast<std::int64_t>(kUnitBytes);
  const std::byte* rows[kTileRows];
  for (std::int64_t lane = 0; lane < kTileRows; ++lane) {
    const std::int64_t row = matrix.source_row(tile, lane);
    rows[lane] = row < 0 ? nullptr
                         : args.from + (expert * matrix.rows * layout.units +
                                        row * layout.row_stride) * kBytes;
  }
  std::byte* to = args.to + index * layout.units * kTileRows * kBytes;
  for (std::int64_t unit = 0; unit < layout.units; ++unit) {
    const std::int64_t offset = unit * layout.unit_stride * kBytes;
    for (const std::byte* row : rows) {
      if (row == nullptr) {
        std::memset(to, 0, kUnitBytes);
      } else {
        std::memcpy(to, row + offset, kUnitBytes);
      }
      to += kUnitBytes;
    }
  }
}

void run_units(const UnitArgs& args, device::WorkerPool& workers) {
  const auto pack = args.layout.unit_bytes == 1   ? &pack_tile<1>
                    : args.layout.unit_bytes == 2 ? &pack_tile<2>
                                                  : &pack_tile<4>;
  workers.parallel_for(args.experts * args.matrix.tiles(), 1,
                       [&](std::int64_t begin, std::int64_t end, int) {
                         for (std::int64_t tile = begin; tile < end; ++tile) pack(args, tile);
                       });
}

struct NibbleArgs {
  PackedShape matrix;
  std::int64_t experts = 0;
  const std::uint8_t* from = nullptr;
  const std::int32_t* order = nullptr;  // null: as they are
  std::uint32_t* to = nullptr;
};

void pack_nibble_tile(const NibbleArgs& args, std::int64_t index) {
  const PackedShape& matrix = args.matrix;
  const std::int64_t expert = index / matrix.tiles();
  const std::int64_t units = matrix.columns / kCodesPerUnit;
  std::uint32_t* to = args.to + index * units * kTileRows;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    for (std::int64_t lane = 0; lane < kTileRows; ++lane) {
      const std::int64_t row = matrix.source_row(index % matrix.tiles(), lane);
      std::uint32_t word = 0;
      if (row >= 0) {
        const std::uint8_t* codes = args.from + (expert * matrix.rows + row) * matrix.columns;
        for (std::int64_t i = 0; i < kCodesPerUnit; ++i) {
          const std::int64_t column = unit * kCodesPerUnit + i;
          const std::int64_t source = args.order == nullptr ? column : args.order[column];
          word |= std::uint32_t{codes[source]} << (4 * i);
        }
      }
      *to++ = word;
    }
  }
}

void run_nibbles(const NibbleArgs& args, device::WorkerPool& workers) {
  workers.parallel_for(args.experts * args.matrix.tiles(), 1,
                       [&](std::int64_t begin, std::int64_t end, int) {
                         for (std::int64_t tile = begin; tile < end; ++tile) {
                           pack_nibble_tile(args, tile);
                         }
                       });
}

struct ScaleArgs {
  PackedShape matrix;
  ScaleLayout layout;
  std::int64_t experts = 0;
  std::int64_t dtype = 0;
  const std::byte* from = nullptr;
  float* to = nullptr;

  std::int64_t source_rows() const {
    return (matrix.rows + layout.rows_per_scale - 1) / layout.rows_per_scale;
  }
};

void run_scales(const ScaleArgs& args, device::WorkerPool&) {
  const ScaleLayout& layout = args.layout;
  const auto dtype = static_cast<DType>(args.dtype);
  const std::int64_t bytes = tensor::dtype_bits(dtype) / 8;
  float* to = args.to;
  for (std::int64_t index = 0; index < args.experts * args.matrix.tiles(); ++index) {
    const std::int64_t expert = index / args.matrix.tiles();
    for (std::int64_t group = 0; group < layout.groups; ++group) {
      for (std::int64_t lane = 0; lane < layout.lanes; ++lane, ++to) {
        const std::int64_t row = args.matrix.source_row(index % args.matrix.tiles(), lane);
        *to = 0.0f;
        if (row < 0) continue;
        const std::int64_t at =
            (expert * args.source_rows() + row / layout.rows_per_scale) * layout.groups + group;
        const Status decoded = tensor::decode_to_f32(dtype, args.from + at * bytes, 1, to);
        HF_ASSERT(decoded.ok(), "the launch checked the dtype");
      }
    }
  }
}

Status check_bytes(const char* kernel, const char* operand, const TensorView& view,
                   std::int64_t bytes) {
  if (static_cast<std::int64_t>(view.bytes()) == bytes) return {};
  return make_error(ErrorCode::kMismatch, "{}: operand {} is {} {}: {} bytes, must be {} bytes",
                    kernel, operand, tensor::dtype_name(view.dtype), view.shape.to_string(),
                    view.bytes(), bytes);
}

std::int64_t experts_of(const TensorView& view) {
  return view.shape.rank() == 0 ? 1 : view.shape[0];
}

}  // namespace

Status pack_units(device::Stream& stream, const PackedShape& matrix, const UnitLayout& layout,
                  const TensorView& from, const TensorView& to) {
  constexpr const char* kName = "experts.pack_units";
  const std::int64_t experts = experts_of(from);
  const std::int64_t row_bytes = layout.units * layout.unit_bytes;
  HF_TRY(check_bytes(kName, "from", from, experts * matrix.rows * row_bytes));
  HF_TRY(check_bytes(kName, "to", to, experts * matrix.tiles() * kTileRows * row_bytes));
  if (layout.unit_bytes != 1 && layout.unit_bytes != 2 && layout.unit_bytes != 4) {
    return make_error(ErrorCode::kMismatch, "{}: units of {} bytes, must be 1, 2 or 4", kName,
                      layout.unit_bytes);
  }
  const UnitArgs args{matrix, layout, experts, from.address, to.address};
  return device::launch_cpu<&run_units>(stream, kName, args,
                                        {device::reads("from", from), device::writes("to", to)});
}

Status pack_nibbles(device::Stream& stream, const PackedShape& matrix,
                    std::span<const std::int32_t> order, const TensorView& from,
                    const TensorView& to) {
  constexpr const char* kName = "experts.pack_nibbles";
  const std::int64_t experts = experts_of(from);
  HF_TRY(check_bytes(kName, "from", from, experts * matrix.rows * matrix.columns));
  HF_TRY(check_bytes(kName, "to", to,
                     experts * matrix.tiles() * kTileRows * matrix.columns / 2));
  if (!order.empty() && std::ssize(order) != matrix.columns) {
    return make_error(ErrorCode::kMismatch, "{}: an order of {} columns, the matrix has {}", kName,
                      order.size(), matrix.columns);
  }
  const NibbleArgs args{matrix, experts, from.as<const std::uint8_t>(),
                        order.empty() ? nullptr : order.data(), to.as<std::uint32_t>()};
  return device::launch_cpu<&run_nibbles>(
      stream, kName, args, {device::reads("from", from), device::writes("to", to)});
}

Status pack_scales(device::Stream& stream, const PackedShape& matrix, const ScaleLayout& layout,
                   const TensorView& from, const TensorView& to) {
  constexpr const char* kName = "experts.pack_scales";
  if (from.dtype != DType::kF32 && from.dtype != DType::kF16 && from.dtype != DType::kBF16) {
    return make_error(ErrorCode::kMismatch, "{}: operand from is {}, must be f32, f16 or bf16",
                      kName, tensor::dtype_name(from.dtype));
  }
  const std::int64_t experts = experts_of(from);
  const ScaleArgs args{matrix,       layout, experts, static_cast<std::int64_t>(from.dtype),
                       from.address, to.as<float>()};
  HF_TRY(check_bytes(kName, "from", from, experts * args.source_rows() * layout.groups *
                                              tensor::dtype_bits(from.dtype) / 8));
  HF_TRY(check_bytes(kName, "to", to, experts * matrix.tiles() * layout.groups * layout.lanes *
                                          static_cast<std::int64_t>(sizeof(float))));
  return device::launch_cpu<&run_scales>(
      stream, kName, args, {device::reads("from", from), device::writes("to", to)});
}

}  // namespace holdfast::experts
