#include "experts/layer_slots.h"

#include <cstring>

#include "base/error.h"
#include "ops/check.h"
#include "tensor/codecs.h"
#include "tensor/int4_codecs.h"
#include "tensor/nvfp4_codecs.h"

namespace holdfast::experts {

using storage::Registry;
using storage::SlotClass;
using storage::SlotId;
using storage::SlotSpec;
using tensor::DType;

namespace {

// How many inputs share a scale; 1 where nothing hangs on it.
std::int64_t inputs_of_a_scale(const config::ExpertFormat& format) {
  switch (format.scheme) {
    case config::ExpertScheme::kMxfp4:
    case config::ExpertScheme::kMxfp8: return tensor::kMxBlock;
    case config::ExpertScheme::kNvfp4: return tensor::kNvfp4Block;
    case config::ExpertScheme::kInt4: return format.group_size;
    default: return 1;
  }
}

Status check_groups(const ExpertsSpec& spec) {
  const ExpertsShape& shape = spec.shape;
  const std::int64_t group = inputs_of_a_scale(spec.format);
  if (spec.format.scheme == config::ExpertScheme::kInt4 &&
      (group < 1 || group % tensor::kInt4PerWord != 0)) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: group_size is {}, the kernels need a positive multiple of {} (int4)",
                      spec.slot_prefix, group, tensor::kInt4PerWord);
  }
  if (shape.hidden_size % group == 0 && shape.intermediate_size % group == 0) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: hidden_size {} and intermediate_size {} must be multiples of {} ({})",
                    spec.slot_prefix, shape.hidden_size, shape.intermediate_size, group,
                    config::expert_scheme_name(spec.format.scheme));
}

}  // namespace

Status check_spec(const ExpertsSpec& spec) {
  const ExpertsShape& shape = spec.shape;
  const struct {
    const char* name;
    std::int64_t value;
  } dimensions[] = {{"expert_count", shape.expert_count},
                    {"experts_per_token", shape.experts_per_token},
                    {"hidden_size", shape.hidden_size},
                    {"intermediate_size", shape.intermediate_size},
                    {"max_rows", shape.max_rows}};
  for (const auto& [name, value] : dimensions) {
    if (value >= 1) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}: {} is {}, must be 1 or more",
                      spec.slot_prefix, name, value);
  }
  if (shape.experts_per_token > shape.expert_count) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: experts_per_token is {}, must be at most expert_count {}",
                      spec.slot_prefix, shape.experts_per_token, shape.expert_count);
  }
  return check_groups(spec);
}

Status check_workspace(const ExpertsSpec& spec, const ExpertsShape& workspace) {
  const auto fits = [&](std::int64_t ExpertsShape::*field) {
    return spec.shape.*field <= workspace.*field;
  };
  if (fits(&ExpertsShape::expert_count) && fits(&ExpertsShape::experts_per_token) &&
      fits(&ExpertsShape::hidden_size) && fits(&ExpertsShape::intermediate_size) &&
      fits(&ExpertsShape::max_rows)) {
    return {};
  }
  return make_error(ErrorCode::kFailedPrecondition,
                    "{}: {} experts of {} x {}, {} per token, {} rows do not fit the workspace "
                    "of {} experts of {} x {}, {} per token, {} rows; call define_workspace "
                    "first",
                    spec.slot_prefix, spec.shape.expert_count, spec.shape.intermediate_size,
                    spec.shape.hidden_size, spec.shape.experts_per_token, spec.shape.max_rows,
                    workspace.expert_count, workspace.intermediate_size, workspace.hidden_size,
                    workspace.experts_per_token, workspace.max_rows);
}

Result<SlotId> define_scratch(Registry& registry, const char* name, DType dtype,
                              const tensor::Shape& shape) {
  return registry.define(SlotSpec{.name = std::string("experts.workspace.") + name,
                                  .slot_class = SlotClass::kScratch,
                                  .dtype = dtype,
                                  .shape = shape,
                                  .arena = {}});
}

Result<SlotId> define_constant(Registry& registry, const ExpertsSpec& spec, const std::string& name,
                               float value) {
  const auto count = static_cast<std::size_t>(spec.shape.expert_count);
  const std::vector<float> values(count, value);
  std::vector<std::byte> bytes(count * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return registry.define_constant(SlotSpec{.name = name,
                                           .slot_class = SlotClass::kConstant,
                                           .dtype = DType::kF32,
                                           .shape = {spec.shape.expert_count},
                                           .arena = kConstantsArena},
                                  std::move(bytes));
}

Result<ConstantSlots> define_constants(Registry& registry, const ExpertsSpec& spec) {
  ConstantSlots slots;
  slots.names = {spec.slot_prefix + ".swiglu_alpha", spec.slot_prefix + ".swiglu_beta",
                 spec.slot_prefix + ".swiglu_limit"};
  HF_ASSIGN(slots.alpha, define_constant(registry, spec, slots.names[0], spec.swiglu.alpha));
  HF_ASSIGN(slots.beta, define_constant(registry, spec, slots.names[1], spec.swiglu.beta));
  HF_ASSIGN(slots.limit, define_constant(registry, spec, slots.names[2], spec.swiglu.limit));
  return slots;
}

Status check_forward(const ExpertsArgs& args, const ExpertsShape& shape) {
  constexpr const char* kOp = "experts";
  HF_TRY(ops::check_rank(args.x, 2, kOp, "x"));
  const std::int64_t n = args.x.shape[0];
  const tensor::Shape rows{n, shape.hidden_size};
  const tensor::Shape routes{n, shape.experts_per_token};
  HF_TRY(ops::check_operand(args.x, {kOp, "x", {DType::kF32}, rows}));
  HF_TRY(ops::check_operand(args.ids, {kOp, "ids", {DType::kI32}, routes}));
  HF_TRY(ops::check_operand(args.weights, {kOp, "weights", {DType::kF32}, routes}));
  HF_TRY(ops::check_operand(args.residual, {kOp, "residual", {DType::kF32}, rows}));
  HF_TRY(ops::check_operand(args.out, {kOp, "out", {DType::kF32}, rows}));
  HF_TRY(ops::check_active_rows(args.active_rows, kOp));
  HF_TRY(ops::check_disjoint(args.x, args.out, kOp, "x and out"));
  if (n > shape.max_rows) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "experts: operand x has {} rows, the workspace was defined for {}", n,
                      shape.max_rows);
  }
  return {};
}

}  // namespace holdfast::experts
