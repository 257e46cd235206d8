// Finds bytes that a derivation should have written and did not. Its outputs start as poison;
// poison that is still there is either a hole or, rarely, real data that looks like it, and a
// second run over another fill tells which. Pure; the staging thread.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "holdfast/result.h"
#include "tensor/tensor_view.h"

namespace holdfast::reload {

struct UnwrittenByte {
  std::size_t output_index = 0;
  std::size_t byte = 0;  // in the output
};

// `outputs` were filled with device::kPoisonByte and then computed once by `compute`, which is a
// function of its inputs alone. Runs it once more only when poison is left. Finds every unwritten
// run of 15 bytes and more, and a wholly unwritten output of any length; afterwards the outputs
// hold what `compute` gives. Errors: those of `compute`.
Result<std::optional<UnwrittenByte>> find_unwritten(std::span<const tensor::TensorView> outputs,
                                                    const std::function<Status()>& compute);

}  // namespace holdfast::reload
