// The checks of the ops that fused ops consist of. Pure functions, any thread.
#pragma once

#include "ops/ops.h"

namespace holdfast::ops {

// Errors: kMismatch naming op, operand and what it has and must have.
Status check_rms_norm(const RmsNormArgs& args);
Status check_linear(const LinearArgs& args);
Status check_gather_rows(const GatherRowsArgs& args);
Status check_rope(const RopeArgs& args);
Status check_kv_write(const KvWriteArgs& args);
// `kernels` must know over_all when it is asked for, else kUnsupported.
Status check_router_top_k(const Kernels& kernels, const RouterTopKArgs& args);

}  // namespace holdfast::ops
