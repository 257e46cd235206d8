// Quantising on arrival: a layer whose checkpoint publishes plain values, and whose format is a
// quantised one. Derivations read the tensors that the format publishes; here these are made, one
// expert's matrix at a time, from the values that come, by the code that `holdfast quantize` runs.
// The thread that defines; derivations run on the reload's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config/expert_quantizer.h"
#include "config/expert_tensors.h"
#include "experts/experts.h"
#include "holdfast/result.h"
#include "storage/registry.h"

namespace holdfast::experts {

// Whether the layer makes `tensor` instead of reading it: all but biases, when the checkpoint has
// other tensors than the format.
bool is_made(const ExpertsSpec& spec, const config::ExpertTensor& tensor);

// The tensors that a layer makes, as inputs of its derivations.
class QuantizedInputs {
 public:
  QuantizedInputs(storage::Registry& registry, const ExpertsSpec& spec)
      : registry_(registry), spec_(spec) {}

  // Stands for `tensor` among a derivation's inputs until `resolve`. No registry knows it.
  storage::ParameterId stand_in(const config::ExpertTensor& tensor);
  // Puts the values that come in place of the stand-ins among the inputs, and around the function
  // what makes the tensors of each slice from them. Without stand-ins nothing changes. Errors:
  // those of Registry::bind; kInvalidArgument when the source lacks a projection.
  Status resolve(storage::Derivation& derivation);

 private:
  storage::Registry& registry_;
  const ExpertsSpec& spec_;
  std::vector<config::ExpertTensor> made_;
};

// A derived slot `<slot_prefix>.<name>` that holds a made tensor of all experts as published.
Result<storage::SlotId> define_made(storage::Registry& registry, const ExpertsSpec& spec,
                                    const config::ExpertTensor& tensor);

}  // namespace holdfast::experts
