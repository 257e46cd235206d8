// What the CPU backends share around their products: the slots and the launches that group a step's
// pairs by expert before, and combine what each pair gave after. Values; the thread that defines or
// launches.
#pragma once

#include "experts/cpu_kernels.h"
#include "experts/experts.h"

namespace holdfast::experts {

struct GroupingSlots {
  storage::SlotId group_begin, group_pairs;
  storage::SlotId down_out;  // f32 [n * K, H]
};
Result<GroupingSlots> define_grouping(storage::Registry& registry, const ExpertsShape& shape);

// Of one layer; asserts that the registry is sealed.
class Grouping {
 public:
  Grouping(const storage::Registry& registry, const ExpertsShape& shape, const GroupingSlots& slots)
      : registry_(registry), shape_(shape), slots_(slots) {}

  cpu::MoeShape moe_shape(const ExpertsArgs& args) const;
  cpu::Groups groups() const;
  tensor::TensorView group_begin() const { return registry_.view(slots_.group_begin); }
  tensor::TensorView group_pairs() const { return registry_.view(slots_.group_pairs); }
  tensor::TensorView down_out() const { return registry_.view(slots_.down_out); }

  Status launch_group(device::Stream& stream, const ExpertsArgs& args) const;
  Status launch_combine(device::Stream& stream, const ExpertsArgs& args) const;

 private:
  const storage::Registry& registry_;
  ExpertsShape shape_;
  GroupingSlots slots_;
};

}  // namespace holdfast::experts
