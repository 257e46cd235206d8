// What every experts backend does alike: checks of a spec and of forward's operands, and the
// constant slots. Used by the backends on the thread that defines or launches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experts/experts.h"
#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::experts {

// The arena of every layer's alpha, beta and limit.
inline constexpr const char* kConstantsArena = "experts.constants";

// Errors: kInvalidArgument naming slot_prefix, the dimension and its value: no positive dimension,
// more experts per token than experts, dimensions that are no multiple of the scheme's block or
// group; kUnsupported for an int4 group that is no multiple of 8.
Status check_spec(const ExpertsSpec& spec);

// The pairs of a layer must fit the workspace that all layers share. Errors: kFailedPrecondition
// naming both.
Status check_workspace(const ExpertsSpec& spec, const ExpertsShape& workspace);

// "experts.workspace.<name>", a scratch slot that all layers share.
Result<storage::SlotId> define_scratch(storage::Registry& registry, const char* name,
                                       tensor::DType dtype, const tensor::Shape& shape);

// A constant f32 [E] in kConstantsArena, the same value for every expert.
Result<storage::SlotId> define_constant(storage::Registry& registry, const ExpertsSpec& spec,
                                        const std::string& name, float value);
// The three constants of one layer, f32 [E] each, the same value for every expert.
struct ConstantSlots {
  storage::SlotId alpha, beta, limit;
  std::vector<std::string> names;
};
Result<ConstantSlots> define_constants(storage::Registry& registry, const ExpertsSpec& spec);

// Errors: kMismatch naming operand and both shapes or dtypes; kFailedPrecondition for more rows
// than shape.max_rows.
Status check_forward(const ExpertsArgs& args, const ExpertsShape& shape);

}  // namespace holdfast::experts
