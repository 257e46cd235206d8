// The field-like backends' slots of one product: published tensors unpacked to rows of elements,
// and stood where the backend's layout has them, padding zero. The thread that defines; derivations
// run on the reload's.
#pragma once

#include <optional>
#include <string>

#include "experts/field_kernels.h"
#include "experts/layer_parameters.h"

namespace holdfast::experts::field {

// What tells one backend's storage from another's.
struct Storage {
  FieldOrder order = FieldOrder::kRowMajor;
  std::optional<FieldOrder> mxfp4_order = {};  // where it is another
  Halves halves = Halves::kGateFirst;
  FieldScaleOrder e8m0_scales = FieldScaleOrder::kRowMajor;
  FieldScaleOrder other_scales = FieldScaleOrder::kRowMajor;
};

// Rows and columns are padded to multiples of this.
inline constexpr std::int64_t kFieldPadding = 128;
std::int64_t padded(std::int64_t size);

struct ProductSlots {
  Matrix matrix;  // without addresses
  storage::SlotId weights;
  std::optional<storage::SlotId> scales = {}, zeros = {}, row_scales = {}, bias = {};
};
// `<product>.weight`, `.scale`, `.zeros`, `.row_scale`, `.bias`. Errors: of the registry;
// kInvalidArgument for tensors that the scheme needs and that are not there.
Result<ProductSlots> define_product(LayerParameters& layer, const Product& product,
                                    const Storage& storage);

}  // namespace holdfast::experts::field
