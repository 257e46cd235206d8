// `marlin-like`, as Marlin keeps weights: permuted tiles with interleaved nibbles, permuted scales,
// a workspace of locks that every launch leaves zero, and under act-order the sort indices of
// g_idx.
#include "experts/backends.h"
#include "experts/field_backend.h"

namespace holdfast::experts {

std::unique_ptr<ExpertsBackend> make_marlin_backend() {
  return field::make_backend({.name = "marlin-like",
                              .storage = {.order = FieldOrder::kMarlinTile,
                                          .halves = field::Halves::kGateFirst,
                                          .e8m0_scales = FieldScaleOrder::kMarlin,
                                          .other_scales = FieldScaleOrder::kMarlin},
                              .order = "sort_indices",
                              .locks = true});
}

}  // namespace holdfast::experts
