// `unquantised`: bf16, f16 or f32 as [gate; up] and [down], padded with zeros. The kernel object is
// built once, when the layer is defined; a reload moves values under it and builds nothing.
#include "experts/backends.h"
#include "experts/field_backend.h"

namespace holdfast::experts {

std::unique_ptr<ExpertsBackend> make_unquantised_backend() {
  return field::make_backend({.name = "unquantised",
                              .storage = {.order = FieldOrder::kRowMajor,
                                          .halves = field::Halves::kGateFirst,
                                          .e8m0_scales = FieldScaleOrder::kRowMajor,
                                          .other_scales = FieldScaleOrder::kRowMajor}});
}

}  // namespace holdfast::experts
