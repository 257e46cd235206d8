// Which shapes of moe_kernels.h have kernels for one row of their own. Pure.
#pragma once

#include "experts/cuda/moe_kernels.h"

namespace holdfast::experts::cuda {

// Whether down adds up, too, into args.out: for one row of most shapes. Then nothing is to combine,
// and down_out is left alone.
bool down_combines(const MoeShape& shape);

}  // namespace holdfast::experts::cuda
