#include "experts/cpu_grouping.h"

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "experts/layer_slots.h"

namespace holdfast::experts {

using device::reads;
using device::writes;
using tensor::DType;
using tensor::TensorView;

Result<GroupingSlots> define_grouping(storage::Registry& registry, const ExpertsShape& shape) {
  const std::int64_t pairs = shape.max_rows * shape.experts_per_token;
  GroupingSlots slots;
  HF_ASSIGN(slots.group_begin,
            define_scratch(registry, "group_begin", DType::kI32, {shape.expert_count + 1}));
  HF_ASSIGN(slots.group_pairs, define_scratch(registry, "group_pairs", DType::kI32, {pairs}));
  HF_ASSIGN(slots.down_out,
            define_scratch(registry, "down_out", DType::kF32, {pairs, shape.hidden_size}));
  return slots;
}

cpu::MoeShape Grouping::moe_shape(const ExpertsArgs& args) const {
  return {.n = args.x.shape[0],
          .expert_count = shape_.expert_count,
          .experts_per_token = shape_.experts_per_token,
          .hidden = shape_.hidden_size,
          .intermediate = shape_.intermediate_size};
}

cpu::Groups Grouping::groups() const {
  return {.begin = group_begin().as<const std::int32_t>(),
          .pairs = group_pairs().as<const std::int32_t>()};
}

Status Grouping::launch_group(device::Stream& stream, const ExpertsArgs& args) const {
  const cpu::GroupArgs kernel_args{.shape = moe_shape(args),
                                   .ids = args.ids.as<const std::int32_t>(),
                                   .active_rows = args.active_rows.as<const std::int32_t>(),
                                   .group_begin = group_begin().as<std::int32_t>(),
                                   .group_pairs = group_pairs().as<std::int32_t>()};
  return device::launch_cpu<&cpu::group_pairs>(
      stream, "experts.group", kernel_args,
      {reads("ids", args.ids), reads("active_rows", args.active_rows),
       writes("group_begin", group_begin()), writes("group_pairs", group_pairs())});
}

Status Grouping::launch_combine(device::Stream& stream, const ExpertsArgs& args) const {
  const cpu::CombineArgs kernel_args{.shape = moe_shape(args),
                                     .down_out = down_out().as<const float>(),
                                     .ids = args.ids.as<const std::int32_t>(),
                                     .weights = args.weights.as<const float>(),
                                     .residual = args.residual.as<const float>(),
                                     .active_rows = args.active_rows.as<const std::int32_t>(),
                                     .out = args.out.as<float>()};
  return device::launch_cpu<&cpu::combine>(
      stream, "experts.combine", kernel_args,
      {reads("down_out", down_out()), reads("ids", args.ids), reads("weights", args.weights),
       reads("residual", args.residual), reads("active_rows", args.active_rows),
       writes("out", args.out)});
}

}  // namespace holdfast::experts
