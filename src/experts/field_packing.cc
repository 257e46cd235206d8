#include "experts/field_packing.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/codecs.h"
#include "tensor/fp8_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts::field {
namespace {

using config::ExpertScheme;
using config::ExpertTensor;
using config::Projection;
using config::TensorRole;
using storage::ParameterId;
using storage::SlotId;
using tensor::DType;
using tensor::TensorView;

// One expert's tensor as rows of elements; 4-bit codes one to a byte.
struct Elements {
  std::int64_t columns = 0;
  std::int64_t bytes = 1;  // of an element
  std::vector<std::byte> data;

  const std::byte* at(std::int64_t row, std::int64_t column) const {
    return data.data() + (row * columns + column) * bytes;
  }
};

// What a derivation must know of its product, by value.
struct Recipe {
  config::ExpertFormat format;
  Storage storage;
  bool down = false;
  bool fused = false;
  bool input_major = false;
  std::int64_t rows = 0;        // of gate, of up, of down
  std::int64_t columns = 0;
  std::int64_t padded_rows = 0;  // of the whole packed matrix
  std::int64_t padded_columns = 0;
  bool has_group_index = false;
  bool has_shape = false;

  std::int64_t source_rows() const { return fused ? 2 * rows : rows; }
  // Which tensor and which row of it stands in a packed row; source -1: padding.
  struct From {
    std::int64_t source = -1, row = 0;
  };
  From from(std::int64_t packed_row) const {
    if (down) return packed_row < rows ? From{0, packed_row} : From{};
    for (const bool up : {false, true}) {
      const std::int64_t i = storage.halves == Halves::kPairs ? packed_row / 2
                                                              : packed_row % (padded_rows / 2);
      const std::int64_t here = up ? up_row(storage.halves, padded_rows, i)
                                   : gate_row(storage.halves, padded_rows, i);
      if (here != packed_row || i >= rows) continue;
      if (fused) return {0, 2 * i + (up ? 1 : 0)};
      return {up ? 1 : 0, i};
    }
    return {};
  }
  tensor::Int4Size int4_size() const { return {rows, columns, format.group_size}; }
};

bool is_nibbles(ExpertScheme scheme) {
  return scheme == ExpertScheme::kMxfp4 || scheme == ExpertScheme::kNvfp4 ||
         scheme == ExpertScheme::kInt4;
}

Elements plain_elements(const TensorView& view, std::int64_t rows, std::int64_t columns,
                        bool input_major) {
  const std::int64_t bytes = tensor::dtype_bits(view.dtype) / 8;
  Elements out{columns, bytes, std::vector<std::byte>(view.bytes())};
  if (!input_major) {
    std::memcpy(out.data.data(), view.address, view.bytes());
    return out;
  }
  const auto width = static_cast<std::size_t>(bytes);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      std::memcpy(out.data.data() + (r * columns + c) * bytes,
                  view.address + (c * rows + r) * bytes, width);
    }
  }
  return out;
}

Result<Elements> weight_elements(const Recipe& recipe, const TensorView& view) {
  const auto count = static_cast<std::size_t>(recipe.source_rows() * recipe.columns);
  if (!is_nibbles(recipe.format.scheme)) {
    return plain_elements(view, recipe.source_rows(), recipe.columns, recipe.input_major);
  }
  Elements out{recipe.columns, 1, std::vector<std::byte>(count)};
  auto* codes = reinterpret_cast<std::uint8_t*>(out.data.data());
  if (recipe.format.scheme == ExpertScheme::kInt4) {
    HF_TRY(tensor::unpack_int4_weight(int4_packing(recipe.format), recipe.int4_size(),
                                      {view.as<const std::int32_t>(), view.bytes() / 4},
                                      {codes, count}));
    return out;
  }
  const auto* packed = view.as<const std::uint8_t>();
  for (std::size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::uint8_t>(packed[i / 2] >> (i % 2 * 4) & 15);
  }
  return out;
}

// Whether a unit stands as it is published.
bool moves_whole_units(const Recipe& recipe) {
  const bool published = recipe.format.scheme == ExpertScheme::kMxfp4 ||
                         recipe.format.scheme == ExpertScheme::kNvfp4;
  return published && nibble_place(recipe.storage.order, 1) == 1;
}

// One expert's units of eight codes, a run at a time.
void move_units(const Recipe& recipe, std::span<const TensorView> inputs, const TensorView& to) {
  constexpr std::int64_t kUnitBytes = 4;
  const std::int64_t units = recipe.columns / 8;
  const FieldLayout layout{recipe.storage.order, recipe.padded_rows, recipe.padded_columns / 8};
  std::memset(to.address, 0, to.bytes());
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    const Recipe::From from = recipe.from(row);
    if (from.source < 0) continue;
    const std::byte* source = inputs[static_cast<std::size_t>(from.source)].address +
                              from.row * units * kUnitBytes;
    for (std::int64_t unit = 0; unit < units; unit += layout.run()) {
      std::memcpy(to.address + layout.place(row, unit) * kUnitBytes, source + unit * kUnitBytes,
                  static_cast<std::size_t>(std::min(layout.run(), units - unit) * kUnitBytes));
    }
  }
}

// Weights of one expert: inputs are, for each tensor of the product, itself, its group index where
// there is one and its stated shape.
Status pack_weights(const Recipe& recipe, std::span<const TensorView> inputs,
                    const TensorView& to) {
  if (moves_whole_units(recipe)) {
    move_units(recipe, inputs, to);
    return {};
  }
  std::vector<Elements> sources;
  std::vector<std::int32_t> order;
  for (std::size_t next = 0; next < inputs.size();) {
    HF_ASSIGN(Elements elements, weight_elements(recipe, inputs[next++]));
    sources.push_back(std::move(elements));
    if (recipe.has_group_index) {
      const TensorView& index = inputs[next++];
      HF_ASSIGN(order, int4_order(recipe.int4_size(), recipe.format.act_order,
                                  {index.as<const std::int32_t>(), index.bytes() / 4}));
    }
    if (!recipe.has_shape) continue;
    const auto* stated = inputs[next++].as<const std::int64_t>();
    if (stated[0] != recipe.rows || stated[1] != recipe.columns) {
      return make_error(ErrorCode::kMismatch, "weight_shape is [{}, {}], the matrix is [{}, {}]",
                        stated[0], stated[1], recipe.rows, recipe.columns);
    }
  }
  const bool nibbles = is_nibbles(recipe.format.scheme);
  const std::int64_t per_unit = nibbles ? 8 : 1;
  const std::int64_t unit_bytes = nibbles ? 4 : sources[0].bytes;
  const FieldLayout layout{recipe.storage.order, recipe.padded_rows,
                           recipe.padded_columns / per_unit};
  std::memset(to.address, 0, to.bytes());
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    const Recipe::From from = recipe.from(row);
    if (from.source < 0) continue;
    const Elements& source = sources[static_cast<std::size_t>(from.source)];
    for (std::int64_t k = 0; k < recipe.columns; ++k) {
      const std::int64_t column = recipe.format.act_order ? order[static_cast<std::size_t>(k)] : k;
      std::byte* unit = to.address + layout.place(row, k / per_unit) * unit_bytes;
      if (!nibbles) {
        std::memcpy(unit, source.at(from.row, column), static_cast<std::size_t>(unit_bytes));
        continue;
      }
      const int place = nibble_place(layout.order, static_cast<int>(k % 8));
      const auto code = std::to_integer<unsigned>(*source.at(from.row, column));
      unit[place / 2] |= static_cast<std::byte>(code << (place % 2 * 4));
    }
  }
  return {};
}

// Elements [source rows, groups] of every tensor of the product, to where `layout` has them.
void place_rows(const Recipe& recipe, const std::vector<Elements>& sources,
                const FieldScaleLayout& layout, const TensorView& to) {
  std::memset(to.address, 0, to.bytes());
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    const Recipe::From from = recipe.from(row);
    if (from.source < 0) continue;
    const Elements& source = sources[static_cast<std::size_t>(from.source)];
    for (std::int64_t group = 0; group < source.columns; group += layout.run()) {
      const std::int64_t count = std::min(layout.run(), source.columns - group);
      std::memcpy(to.address + layout.place(row, group) * source.bytes,
                  source.at(from.row, group), static_cast<std::size_t>(count * source.bytes));
    }
  }
}

// Rows of floats from a float tensor that has one row for `rows_per_row` of the matrix's.
Result<Elements> float_elements(const TensorView& view, std::int64_t rows, std::int64_t columns,
                                std::int64_t rows_per_row) {
  std::vector<float> values(static_cast<std::size_t>(view.shape.element_count()));
  HF_TRY(tensor::decode_to_f32(view.dtype, view.address, view.shape.element_count(),
                               values.data()));
  Elements out{columns, 4, std::vector<std::byte>(static_cast<std::size_t>(rows * columns) * 4)};
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(out.data.data() + r * columns * 4, &values[static_cast<std::size_t>(
                                                       r / rows_per_row * columns)],
                static_cast<std::size_t>(columns) * 4);
  }
  return out;
}

std::int64_t width(const FieldLayout& layout) { return layout.units; }
std::int64_t width(const FieldScaleLayout& layout) { return layout.groups; }

// Where unit or scale i of the padded rows stands; no claim where that is i itself.
template <typename Layout>
storage::UnitOrder unit_order(const Layout& layout, std::int64_t bytes) {
  if (layout.order == decltype(layout.order)::kRowMajor) return {};
  return {.unit_bytes = bytes, .place = [layout](std::int64_t i) {
            return layout.place(i / width(layout), i % width(layout));
          }};
}

class ProductDefinition {
 public:
  ProductDefinition(LayerParameters& layer, const Product& product, const Storage& storage)
      : layer_(layer), product_(product) {
    const ExpertsShape& shape = layer.spec().shape;
    recipe_.format = layer.spec().format;
    recipe_.storage = storage;
    if (recipe_.format.scheme == ExpertScheme::kMxfp4 && storage.mxfp4_order) {
      recipe_.storage.order = *storage.mxfp4_order;
    }
    recipe_.down = product.projections[0] == Projection::kDown;
    recipe_.fused = product.projections[0] == Projection::kGateUp;
    recipe_.rows = recipe_.down ? shape.hidden_size : shape.intermediate_size;
    recipe_.columns = product.columns;
    recipe_.padded_rows = padded(recipe_.rows) * (recipe_.down ? 1 : 2);
    recipe_.padded_columns = padded(recipe_.columns);
  }

  Result<ProductSlots> run() {
    HF_TRY(define_weights());
    HF_TRY(define_scales());
    const Projection first = product_.projections[0];
    if (layer_.find(first, TensorRole::kBias) != nullptr) {
      HF_ASSIGN(out_.bias, define_floats("bias", TensorRole::kBias, 1));
    }
    return out_;
  }

 private:
  std::int64_t experts() const { return layer_.spec().shape.expert_count; }

  // Every tensor of the product in this role, bound.
  Result<std::vector<storage::DeriveInput>> bind(TensorRole role) {
    std::vector<storage::DeriveInput> inputs;
    for (const Projection projection : product_.projections) {
      HF_ASSIGN(const ExpertTensor* tensor, layer_.need(projection, role));
      HF_ASSIGN(const ParameterId id, layer_.bind(*tensor));
      inputs.emplace_back(id);
    }
    return inputs;
  }

  Status define_weights() {
    const Projection first = product_.projections[0];
    HF_ASSIGN(const ExpertTensor* weight, layer_.need(first, TensorRole::kWeight));
    recipe_.input_major = weight->input_major;
    recipe_.has_group_index = layer_.find(first, TensorRole::kGroupIndex) != nullptr;
    recipe_.has_shape = layer_.find(first, TensorRole::kShape) != nullptr;
    std::vector<storage::DeriveInput> inputs;
    for (const Projection projection : product_.projections) {
      for (const TensorRole role :
           {TensorRole::kWeight, TensorRole::kGroupIndex, TensorRole::kShape}) {
        const ExpertTensor* tensor = layer_.find(projection, role);
        if (tensor == nullptr) continue;
        HF_ASSIGN(const ParameterId id, layer_.bind(*tensor));
        inputs.emplace_back(id);
      }
    }
    Matrix& matrix = out_.matrix;
    matrix.codec = codec();
    matrix.columns = recipe_.padded_columns;
    const bool nibbles = is_nibbles(recipe_.format.scheme);
    matrix.layout = {recipe_.storage.order, recipe_.padded_rows,
                     nibbles ? matrix.columns / 8 : matrix.columns};
    HF_ASSIGN(out_.weights,
              layer_.derive({.name = product_.name + ".weight",
                             .dtype = nibbles ? DType::kU8 : weight->dtype,
                             .shape = {experts(), recipe_.padded_rows,
                                       nibbles ? matrix.columns / 2 : matrix.columns},
                             .inputs = std::move(inputs),
                             .slice_count = experts(),
                             .function = [recipe = recipe_](device::Stream&,
                                                            std::span<const TensorView> views,
                                                            std::span<const TensorView> outputs) {
                               return pack_weights(recipe, views, outputs[0]);
                             },
                             .order = unit_order(matrix.layout, unit_bytes(*weight))}));
    return {};
  }

  std::int64_t unit_bytes(const ExpertTensor& weight) const {
    return is_nibbles(recipe_.format.scheme) ? 4 : tensor::dtype_bits(weight.dtype) / 8;
  }

  cpu::Codec codec() const {
    switch (recipe_.format.scheme) {
      case ExpertScheme::kBF16: return cpu::Codec::kBF16;
      case ExpertScheme::kF16: return cpu::Codec::kF16;
      case ExpertScheme::kF32: return cpu::Codec::kF32;
      case ExpertScheme::kMxfp4:
      case ExpertScheme::kNvfp4: return cpu::Codec::kE2M1;
      case ExpertScheme::kInt4: return cpu::Codec::kInt4;
      default: return cpu::Codec::kE4M3;
    }
  }

  // f32 [E, rows, groups] from the product's float tensors.
  Result<SlotId> define_floats(const std::string& name, TensorRole role, std::int64_t groups,
                               std::int64_t rows_per_row = 1) {
    HF_ASSIGN(std::vector<storage::DeriveInput> inputs, bind(role));
    const FieldScaleLayout layout{FieldScaleOrder::kRowMajor, recipe_.padded_rows, groups};
    return layer_.derive(
        {.name = product_.name + "." + name,
         .shape = {experts(), recipe_.padded_rows, groups},
         .inputs = std::move(inputs),
         .slice_count = experts(),
         .function = [recipe = recipe_, layout, rows_per_row](
                         device::Stream&, std::span<const TensorView> views,
                         std::span<const TensorView> outputs) -> Status {
           std::vector<Elements> sources;
           for (const TensorView& view : views) {
             HF_ASSIGN(Elements floats, float_elements(view, recipe.source_rows(), layout.groups,
                                                       rows_per_row));
             sources.push_back(std::move(floats));
           }
           place_rows(recipe, sources, layout, outputs[0]);
           return {};
         }});
  }

  Status define_scales() {
    Matrix& matrix = out_.matrix;
    switch (recipe_.format.scheme) {
      case ExpertScheme::kBF16:
      case ExpertScheme::kF16:
      case ExpertScheme::kF32:
      case ExpertScheme::kFp8Tensor: return {};
      case ExpertScheme::kFp8Channel: {
        HF_ASSIGN(out_.row_scales, define_floats("row_scale", TensorRole::kScale, 1));
        return {};
      }
      case ExpertScheme::kFp8Block: {
        // One for each row: a padded half does not begin where a block of the checkpoint does.
        matrix.group = tensor::kFp8Block;
        matrix.group_scale = cpu::GroupScale::kF32;
        const std::int64_t groups = recipe_.padded_columns / matrix.group;
        matrix.scale_layout = {FieldScaleOrder::kRowMajor, recipe_.padded_rows, groups};
        HF_ASSIGN(out_.scales,
                  define_floats("scale", TensorRole::kScale, groups, tensor::kFp8Block));
        return {};
      }
      default: return define_group_scales();
    }
  }

  Status define_group_scales() {
    const ExpertScheme scheme = recipe_.format.scheme;
    Matrix& matrix = out_.matrix;
    HF_ASSIGN(const ExpertTensor* tensor, layer_.need(product_.projections[0], TensorRole::kScale));
    HF_ASSIGN(std::vector<storage::DeriveInput> inputs, bind(TensorRole::kScale));
    matrix.group = tensor::kMxBlock;
    matrix.group_scale = cpu::GroupScale::kE8M0;
    FieldScaleOrder order = recipe_.storage.e8m0_scales;
    if (scheme == ExpertScheme::kNvfp4) {
      matrix.group = tensor::kNvfp4Block;
      matrix.group_scale = cpu::GroupScale::kE4M3;
      order = recipe_.storage.other_scales;
    }
    if (scheme == ExpertScheme::kInt4) {
      matrix.group = recipe_.format.group_size;
      matrix.group_scale = tensor->dtype == DType::kF16    ? cpu::GroupScale::kF16
                           : tensor->dtype == DType::kBF16 ? cpu::GroupScale::kBF16
                                                           : cpu::GroupScale::kF32;
      order = recipe_.storage.other_scales;
    }
    const std::int64_t groups = (recipe_.padded_columns + matrix.group - 1) / matrix.group;
    const std::int64_t padded_groups = (groups + 3) / 4 * 4;
    matrix.scale_layout = {order, recipe_.padded_rows, padded_groups};
    const bool input_major = tensor->input_major;
    const std::int64_t source_groups = recipe_.columns / matrix.group;
    HF_ASSIGN(out_.scales,
              layer_.derive({.name = product_.name + ".scale",
                             .dtype = tensor->dtype,
                             .shape = {experts(), recipe_.padded_rows, padded_groups},
                             .inputs = std::move(inputs),
                             .slice_count = experts(),
                             .function = [recipe = recipe_, layout = matrix.scale_layout,
                                          input_major, source_groups](
                                             device::Stream&, std::span<const TensorView> views,
                                             std::span<const TensorView> outputs) -> Status {
                               std::vector<Elements> sources;
                               for (const TensorView& view : views) {
                                 sources.push_back(plain_elements(view, recipe.source_rows(),
                                                                  source_groups, input_major));
                               }
                               place_rows(recipe, sources, layout, outputs[0]);
                               return {};
                             },
                             .order = unit_order(matrix.scale_layout,
                                                 tensor::dtype_bits(tensor->dtype) / 8)}));
    return define_zeros();
  }

  Status define_zeros() {
    if (layer_.find(product_.projections[0], TensorRole::kZeros) == nullptr) return {};
    HF_ASSIGN(std::vector<storage::DeriveInput> inputs, bind(TensorRole::kZeros));
    FieldScaleLayout layout = out_.matrix.scale_layout;
    layout.order = FieldScaleOrder::kRowMajor;
    HF_ASSIGN(out_.zeros,
              layer_.derive({.name = product_.name + ".zeros",
                             .dtype = DType::kU8,
                             .shape = {experts(), layout.rows, layout.groups},
                             .inputs = std::move(inputs),
                             .slice_count = experts(),
                             .function = [recipe = recipe_, layout](
                                             device::Stream&, std::span<const TensorView> views,
                                             std::span<const TensorView> outputs) -> Status {
                               return pack_zeros(recipe, layout, views, outputs[0]);
                             }}));
    return {};
  }

  static Status pack_zeros(const Recipe& recipe, const FieldScaleLayout& layout,
                           std::span<const TensorView> views, const TensorView& to) {
    const std::int64_t groups = recipe.int4_size().groups();
    std::vector<Elements> sources;
    for (const TensorView& view : views) {
      Elements zeros{groups, 1,
                     std::vector<std::byte>(static_cast<std::size_t>(recipe.rows * groups))};
      HF_TRY(tensor::unpack_int4_zeros(
          int4_packing(recipe.format), recipe.int4_size(),
          {view.as<const std::int32_t>(), view.bytes() / 4},
          {reinterpret_cast<std::uint8_t*>(zeros.data.data()), zeros.data.size()}));
      sources.push_back(std::move(zeros));
    }
    place_rows(recipe, sources, layout, to);
    return {};
  }

  LayerParameters& layer_;
  const Product& product_;
  Recipe recipe_;
  ProductSlots out_;
};

}  // namespace

std::int64_t padded(std::int64_t size) {
  return (size + kFieldPadding - 1) / kFieldPadding * kFieldPadding;
}

Result<ProductSlots> define_product(LayerParameters& layer, const Product& product,
                                    const Storage& storage) {
  return ProductDefinition(layer, product, storage).run();
}

}  // namespace holdfast::experts::field
