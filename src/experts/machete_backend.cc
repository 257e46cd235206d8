// `machete-like`, as Machete keeps mixed-precision weights: prepacked blocks of columns, and under
// act-order a permutation of the activations that is derived from g_idx.
#include "experts/backends.h"
#include "experts/field_backend.h"

namespace holdfast::experts {

std::unique_ptr<ExpertsBackend> make_machete_backend() {
  return field::make_backend({.name = "machete-like",
                              .storage = {.order = FieldOrder::kMacheteBlock,
                                          .halves = field::Halves::kGateFirst,
                                          .e8m0_scales = FieldScaleOrder::kRowMajor,
                                          .other_scales = FieldScaleOrder::kRowMajor},
                              .order = "act_perm"});
}

}  // namespace holdfast::experts
