// `cutlass`, as FlashInfer's CUTLASS experts keep them (semantics.md 2.4, 2.7): [up; gate] halves,
// rows and columns padded to 128 with zeros, MXFP4 codes in a warp's tiles (as the kernel in
// cuda/cutlass reads them) and their scales folded for SM90, those of NVFP4 swizzled 128 x 4;
// gemm1_alpha, gemm1_beta and gemm1_clamp_limit f32 [E], and ones for an input scale where the
// kernel wants one (MXFP4 x MXFP8); the reciprocal of input scales, and alphas from them.
#include "experts/backends.h"
#include "experts/field_backend.h"

namespace holdfast::experts {

field::Description cutlass_description() {
  return {.name = "cutlass",
          .storage = {.order = FieldOrder::kRowMajor,
                      .mxfp4_order = FieldOrder::kWarpTile,
                      .halves = field::Halves::kUpFirst,
                      .e8m0_scales = FieldScaleOrder::kFold64x4,
                      .other_scales = FieldScaleOrder::kSwizzle128x4},
          .alpha = "gemm1_alpha",
          .beta = "gemm1_beta",
          .limit = "gemm1_clamp_limit",
          .fake_input_scale = true,
          .reciprocals = true};
}

std::unique_ptr<ExpertsBackend> make_cutlass_backend() {
  return field::make_backend(cutlass_description());
}

}  // namespace holdfast::experts
