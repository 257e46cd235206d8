// A field-like experts backend: an engine's own packing, constants, derived chain and workspaces as
// one of the field's kernels has them, over CPU kernels that read any of these packings. What
// matters is that the contract covers every slot of it. Each backend is a description in a file of
// its own. The thread that defines.
#pragma once

#include <memory>

#include "experts/experts.h"
#include "experts/field_packing.h"

namespace holdfast::experts::field {

struct Description {
  std::string_view name;
  Storage storage;
  // Of the constants f32 [E]: "swiglu_alpha" or "gemm1_alpha", ...
  const char* alpha = "swiglu_alpha";
  const char* beta = "swiglu_beta";
  const char* limit = "swiglu_limit";
  // Under act-order, the derived slot `<product>.<this>` that permutes the inputs.
  const char* order = "sort_indices";
  // f32 [E] of ones for MXFP4 x MXFP8, as the kernel wants a scale for its inputs.
  bool fake_input_scale = false;
  // `<product>.input_scale_reciprocal`, derived from the input scale: inputs are multiplied by it.
  bool reciprocals = false;
  // Limits and beta divided by the accumulator's alpha, `<projection>.limit_over_alpha` and
  // `up.beta_over_alpha`: derived from alpha, which is derived itself, and from constants.
  bool limits_over_alpha = false;
  // "experts.workspace.locks", a kSync slot in an arena of its own that every launch leaves zero.
  bool locks = false;
};

std::unique_ptr<ExpertsBackend> make_backend(const Description& description);

// The arena of the locks.
inline constexpr const char* kSyncArena = "experts.sync";

}  // namespace holdfast::experts::field

namespace holdfast::experts {

// The same packing and constants on every device.
field::Description cutlass_description();

}  // namespace holdfast::experts
