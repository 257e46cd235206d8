#include "experts/layer_slots.h"

#include <cstring>

#include "base/error.h"
#include "ops/check.h"
#include "tensor/codecs.h"

namespace holdfast::experts {

using storage::Registry;
using storage::SlotClass;
using storage::SlotId;
using storage::SlotSpec;
using tensor::DType;

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
  if (spec.format.scheme != config::ExpertScheme::kMxfp4) return {};
  if (shape.hidden_size % tensor::kMxBlock != 0 ||
      shape.intermediate_size % tensor::kMxBlock != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: hidden_size {} and intermediate_size {} must be multiples of {} (mxfp4)",
                      spec.slot_prefix, shape.hidden_size, shape.intermediate_size,
                      tensor::kMxBlock);
  }
  return {};
}

namespace {

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

}  // namespace

Result<ConstantSlots> define_constants(Registry& registry, const ExpertsSpec& spec) {
  ConstantSlots slots;
  slots.names = {spec.slot_prefix + ".swiglu_alpha", spec.slot_prefix + ".swiglu_beta",
                 spec.slot_prefix + ".swiglu_limit"};
  HF_ASSIGN(slots.alpha, define_constant(registry, spec, slots.names[0], spec.swiglu.alpha));
  HF_ASSIGN(slots.beta, define_constant(registry, spec, slots.names[1], spec.swiglu.beta));
  HF_ASSIGN(slots.limit, define_constant(registry, spec, slots.names[2], spec.swiglu.limit));
  return slots;
}

Result<SlotId> define_weight(Registry& registry, const ExpertsSpec& spec, const std::string& tensor,
                             DType dtype, const tensor::Shape& shape) {
  HF_ASSIGN(const SlotId slot, registry.define(SlotSpec{.name = spec.slot_prefix + "." + tensor,
                                                        .slot_class = SlotClass::kWeight,
                                                        .dtype = dtype,
                                                        .shape = shape,
                                                        .arena = {}}));
  HF_TRY(registry.bind(storage::ParameterSpec{.name = spec.parameter_prefix + "." + tensor,
                                              .dtype = dtype,
                                              .shape = shape,
                                              .slot = slot,
                                              .expert_axis = true}));
  return slot;
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
