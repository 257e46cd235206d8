#include "experts/packed_matrices.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "experts/cpu_packing.h"
#include "experts/expert_parameters.h"
#include "tensor/fp8_codecs.h"
#include "tensor/mx_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts {
namespace {

using config::ExpertScheme;
using config::ExpertTensor;
using config::Projection;
using config::TensorRole;
using storage::ParameterId;
using storage::SlotId;
using tensor::DType;
using tensor::Shape;
using tensor::TensorView;

PackedShape packed_shape(const ExpertsSpec& spec, Projection projection) {
  const std::int64_t hidden = spec.shape.hidden_size;
  const std::int64_t inner = spec.shape.intermediate_size;
  switch (projection) {
    case Projection::kGateUp: return {.rows = 2 * inner, .columns = hidden, .interleaved = true};
    case Projection::kDown: return {.rows = hidden, .columns = inner};
    case Projection::kGate:
    case Projection::kUp: break;
  }
  return {.rows = inner, .columns = hidden};
}

tensor::Int4Size int4_size(const ExpertsSpec& spec, const PackedShape& matrix) {
  return {.rows = matrix.rows, .cols = matrix.columns, .group = spec.format.group_size};
}

// How a row's elements lie in units of the packed layout.
UnitLayout weight_units(ExpertScheme scheme, const ExpertTensor& tensor,
                        const PackedShape& matrix) {
  std::int64_t bytes = tensor::dtype_bits(tensor.dtype) / 8;
  std::int64_t units = matrix.columns;
  if (scheme == ExpertScheme::kMxfp4 || scheme == ExpertScheme::kNvfp4 ||
      scheme == ExpertScheme::kInt4) {
    bytes = 4;
    units /= kCodesPerUnit;
  }
  return tensor.input_major ? input_major_units(bytes, units, matrix.rows)
                            : row_major_units(bytes, units);
}

class MatrixDefinition {
 public:
  MatrixDefinition(LayerParameters& layer, Projection projection)
      : layer_(layer),
        spec_(layer.spec()),
        projection_(projection),
        matrix_(packed_shape(layer.spec(), projection)) {}

  Result<PackedMatrix> run(std::optional<SlotId> input_scale) {
    out_.tile_step = matrix_.interleaved ? 2 : 1;
    HF_TRY(define_weights());
    HF_TRY(define_scales());
    HF_ASSIGN(const ScaleChain chain, define_scale_chain(layer_, projection_, input_scale));
    out_.alpha = chain.alpha;
    if (const ExpertTensor* bias = layer_.find(projection_, TensorRole::kBias)) {
      HF_ASSIGN(out_.bias, define_resident(layer_.registry(), spec_, *bias));
    }
    return out_;
  }

 private:
  std::int64_t experts() const { return spec_.shape.expert_count; }

  struct Packed {
    DType dtype = DType::kU8;
    std::int64_t units = 0;       // of a tile
    std::int64_t unit_size = 16;  // elements of dtype
    storage::DeriveFunction function = {};
    std::vector<const ExpertTensor*> more = {};  // inputs after the tensor itself
    storage::UnitOrder order = {};
  };
  Result<SlotId> define(const ExpertTensor& tensor, Packed packed) {
    std::vector<storage::DeriveInput> inputs;
    HF_ASSIGN(const ParameterId parameter, layer_.bind(tensor));
    inputs.emplace_back(parameter);
    for (const ExpertTensor* other : packed.more) {
      HF_ASSIGN(const ParameterId id, layer_.bind(*other));
      inputs.emplace_back(id);
    }
    return layer_.derive({.name = tensor.name + ".packed",
                          .dtype = packed.dtype,
                          .shape = {experts(), matrix_.tiles(), packed.units, packed.unit_size},
                          .inputs = std::move(inputs),
                          .slice_count = experts(),
                          .function = std::move(packed.function),
                          .order = std::move(packed.order)});
  }
  // Tiles are a transposition of units.
  static storage::UnitOrder tile_order(const UnitLayout& units) {
    return {.unit_bytes = units.unit_bytes, .place = [units](std::int64_t i) {
              const std::int64_t row = i / units.units;
              return (row / kTileRows * units.units + i % units.units) * kTileRows +
                     row % kTileRows;
            }};
  }
  Result<SlotId> define_units(const ExpertTensor& tensor, DType dtype, const UnitLayout& units) {
    const std::int64_t bytes = tensor::dtype_bits(dtype) / 8;
    return define(tensor, {.dtype = dtype,
                           .units = units.units,
                           .unit_size = kTileRows * units.unit_bytes / bytes,
                           .function = [matrix = matrix_, units](
                                           device::Stream& stream,
                                           std::span<const TensorView> inputs,
                                           std::span<const TensorView> outputs) {
                             return pack_units(stream, matrix, units, inputs[0], outputs[0]);
                           },
                           .order = tile_order(units)});
  }

  Status define_weights() {
    HF_ASSIGN(const ExpertTensor* tensor, layer_.need(projection_, TensorRole::kWeight));
    const UnitLayout units = weight_units(spec_.format.scheme, *tensor, matrix_);
    switch (spec_.format.scheme) {
      case ExpertScheme::kBF16: out_.codec = cpu::Codec::kBF16; break;
      case ExpertScheme::kF16: out_.codec = cpu::Codec::kF16; break;
      case ExpertScheme::kF32: out_.codec = cpu::Codec::kF32; break;
      case ExpertScheme::kMxfp8:
      case ExpertScheme::kFp8Tensor:
      case ExpertScheme::kFp8Channel:
      case ExpertScheme::kFp8Block: out_.codec = cpu::Codec::kE4M3; break;
      case ExpertScheme::kMxfp4:
      case ExpertScheme::kNvfp4: out_.codec = cpu::Codec::kE2M1; break;
      case ExpertScheme::kInt4: out_.codec = cpu::Codec::kInt4; return define_int4(*tensor, units);
    }
    const bool codes = out_.codec == cpu::Codec::kE2M1;
    HF_ASSIGN(out_.weights, define_units(*tensor, codes ? DType::kU8 : tensor->dtype, units));
    return {};
  }

  // What pack_int4 reads besides the codes, in order, and how the codes lie.
  struct Int4Inputs {
    PackedShape matrix;
    UnitLayout units;
    tensor::Int4Size size;
    tensor::Int4Packing packing = tensor::Int4Packing::kGptqV1;
    bool act_order = false;
    bool has_group_index = false;
    bool has_shape = false;
  };

  static Status check_shape(const tensor::Int4Size& size, const TensorView& view) {
    const std::int64_t* stated = view.as<const std::int64_t>();
    if (stated[0] == size.rows && stated[1] == size.cols) return {};
    return make_error(ErrorCode::kMismatch, "weight_shape is [{}, {}], the matrix is [{}, {}]",
                      stated[0], stated[1], size.rows, size.cols);
  }

  static Status pack_int4(device::Stream& stream, const Int4Inputs& what,
                          std::span<const TensorView> inputs, const TensorView& to) {
    const PackedShape& matrix = what.matrix;
    std::vector<std::int32_t> order;
    std::size_t next = 1;
    if (what.has_group_index) {
      const TensorView& view = inputs[next++];
      HF_ASSIGN(order, int4_order(what.size, what.act_order,
                                  {view.as<const std::int32_t>(), view.bytes() / 4}));
    }
    if (what.has_shape) HF_TRY(check_shape(what.size, inputs[next]));
    if (!what.act_order && what.packing != tensor::Int4Packing::kAwq) {
      return pack_units(stream, matrix, what.units, inputs[0], to);
    }
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(matrix.rows * matrix.columns));
    HF_TRY(tensor::unpack_int4_weight(
        what.packing, what.size, {inputs[0].as<const std::int32_t>(), inputs[0].bytes() / 4},
        codes));
    const TensorView unpacked{.address = reinterpret_cast<std::byte*>(codes.data()),
                              .dtype = DType::kU8,
                              .shape = {1, matrix.rows, matrix.columns}};
    HF_TRY(pack_nibbles(stream, matrix, what.act_order ? order : std::vector<std::int32_t>(),
                        unpacked, to));
    return stream.synchronize();
  }

  Status define_int4(const ExpertTensor& tensor, const UnitLayout& units) {
    Int4Inputs what{.matrix = matrix_,
                    .units = units,
                    .size = int4_size(spec_, matrix_),
                    .packing = int4_packing(spec_.format),
                    .act_order = spec_.format.act_order};
    Packed packed{.units = units.units, .unit_size = kTileRows * 4};
    if (const ExpertTensor* index = layer_.find(projection_, TensorRole::kGroupIndex)) {
      packed.more.push_back(index);
      what.has_group_index = true;
    }
    if (const ExpertTensor* shape = layer_.find(projection_, TensorRole::kShape)) {
      packed.more.push_back(shape);
      what.has_shape = true;
    }
    packed.function = [what](device::Stream& stream, std::span<const TensorView> inputs,
                             std::span<const TensorView> outputs) {
      return pack_int4(stream, what, inputs, outputs[0]);
    };
    HF_ASSIGN(out_.weights, define(tensor, std::move(packed)));
    const ExpertTensor* zeros = layer_.find(projection_, TensorRole::kZeros);
    if (zeros == nullptr) return {};
    HF_ASSIGN(out_.zeros, define(*zeros, {.units = what.size.groups(),
                                          .function = zeros_function(what)}));
    return {};
  }

  storage::DeriveFunction zeros_function(const Int4Inputs& what) const {
    return [matrix = matrix_, what](device::Stream& stream, std::span<const TensorView> inputs,
                                    std::span<const TensorView> outputs) -> Status {
      const std::int64_t groups = what.size.groups();
      std::vector<std::uint8_t> zeros(static_cast<std::size_t>(matrix.rows * groups));
      HF_TRY(tensor::unpack_int4_zeros(
          what.packing, what.size, {inputs[0].as<const std::int32_t>(), inputs[0].bytes() / 4},
          zeros));
      const TensorView unpacked{.address = reinterpret_cast<std::byte*>(zeros.data()),
                                .dtype = DType::kU8,
                                .shape = {1, matrix.rows, groups}};
      HF_TRY(pack_units(stream, matrix, row_major_units(1, groups), unpacked, outputs[0]));
      return stream.synchronize();
    };
  }

  // The scales of rows, blocks and groups. FP8 per tensor's is alpha.
  Status define_scales() {
    const ExpertScheme scheme = spec_.format.scheme;
    const ExpertTensor* tensor = layer_.find(projection_, TensorRole::kScale);
    if (scheme == ExpertScheme::kBF16 || scheme == ExpertScheme::kF16 ||
        scheme == ExpertScheme::kF32 || scheme == ExpertScheme::kFp8Tensor) {
      return {};
    }
    HF_ASSIGN(tensor, layer_.need(projection_, TensorRole::kScale));
    if (scheme == ExpertScheme::kFp8Channel) {
      HF_ASSIGN(out_.row_scales, define_float_scales(*tensor, {}));
      return {};
    }
    if (scheme == ExpertScheme::kFp8Block) {
      out_.group_scale = cpu::GroupScale::kF32Tile;
      out_.group = tensor::kFp8Block;
      const std::int64_t groups = (matrix_.columns + out_.group - 1) / out_.group;
      HF_ASSIGN(out_.scales,
                define_float_scales(*tensor, {.groups = groups,
                                              .lanes = 1,
                                              .rows_per_scale = tensor::kFp8Block}));
      return {};
    }
    return define_group_scales(*tensor);
  }

  Result<SlotId> define_float_scales(const ExpertTensor& tensor, const ScaleLayout& layout) {
    return define(tensor, {.dtype = DType::kF32,
                           .units = layout.groups,
                           .unit_size = layout.lanes,
                           .function = [matrix = matrix_, layout](
                                           device::Stream& stream,
                                           std::span<const TensorView> inputs,
                                           std::span<const TensorView> outputs) {
                             return pack_scales(stream, matrix, layout, inputs[0], outputs[0]);
                           }});
  }

  Status define_group_scales(const ExpertTensor& tensor) {
    const ExpertScheme scheme = spec_.format.scheme;
    out_.group = tensor::kMxBlock;
    out_.group_scale = cpu::GroupScale::kE8M0;
    if (scheme == ExpertScheme::kNvfp4) {
      out_.group = tensor::kNvfp4Block;
      out_.group_scale = cpu::GroupScale::kE4M3;
    }
    if (scheme == ExpertScheme::kInt4) {
      out_.group = spec_.format.group_size;
      out_.group_scale = tensor.dtype == DType::kF16    ? cpu::GroupScale::kF16
                         : tensor.dtype == DType::kBF16 ? cpu::GroupScale::kBF16
                                                        : cpu::GroupScale::kF32;
    }
    const std::int64_t bytes = tensor::dtype_bits(tensor.dtype) / 8;
    const std::int64_t groups = matrix_.columns / out_.group;
    const UnitLayout units = tensor.input_major ? input_major_units(bytes, groups, matrix_.rows)
                                                : row_major_units(bytes, groups);
    HF_ASSIGN(out_.scales, define_units(tensor, tensor.dtype, units));
    return {};
  }

  LayerParameters& layer_;
  const ExpertsSpec& spec_;
  const Projection projection_;
  const PackedShape matrix_;
  PackedMatrix out_;
};

}  // namespace

Result<PackedMatrix> define_packed_matrix(LayerParameters& layer, Projection projection,
                                          std::optional<SlotId> input_scale) {
  return MatrixDefinition(layer, projection).run(input_scale);
}

}  // namespace holdfast::experts
