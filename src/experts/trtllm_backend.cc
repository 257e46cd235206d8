// `trtllm-like`, as TensorRT-LLM's experts keep them (semantics.md 2.6, 2.7): up and gate rows in
// pairs, the rows of each epilogue tile of 128 shuffled, scales swizzled 128 x 4; limit and beta
// act on the accumulator and are kept divided by its alpha, for every expert.
#include "experts/backends.h"
#include "experts/field_backend.h"

namespace holdfast::experts {

std::unique_ptr<ExpertsBackend> make_trtllm_backend() {
  return field::make_backend({.name = "trtllm-like",
                              .storage = {.order = FieldOrder::kEpilogueTile,
                                          .halves = field::Halves::kPairs,
                                          .e8m0_scales = FieldScaleOrder::kSwizzle128x4,
                                          .other_scales = FieldScaleOrder::kSwizzle128x4},
                              .alpha = "gemm1_alpha",
                              .beta = "gemm1_beta",
                              .limit = "gemm1_clamp_limit",
                              .limits_over_alpha = true});
}

}  // namespace holdfast::experts
