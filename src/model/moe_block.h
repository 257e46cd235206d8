// MoeBlock: hidden += experts(top_k(router(norm(hidden)))). Defined while the registry is building;
// step() only enqueues.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experts/experts.h"
#include "model/slots.h"
#include "model/step.h"

namespace holdfast::model {

// What a model's router has.
struct RouterTraits {
  bool bias = false;
  bool renormalise = true;  // the chosen experts' weights sum to 1
};

class MoeBlock {
 public:
  static Result<MoeBlock> define(storage::Registry& registry, const config::ModelConfig& config,
                                 std::int64_t layer, const RouterTraits& traits);
  // The experts themselves: `spec` without the names, which are the layer's.
  Status define_experts(storage::Registry& registry, experts::ExpertsBackend& backend,
                        const config::ModelConfig& config, experts::ExpertsSpec spec);

  Status step(const Step& step) const;
  std::vector<std::string> constant_slots() const { return experts_->constant_slots(); }

 private:
  std::int64_t layer_ = 0;
  bool renormalise_ = true;
  storage::SlotId norm_;
  LinearSlots router_;
  std::unique_ptr<experts::ExpertsLayer> experts_;
};

}  // namespace holdfast::model
