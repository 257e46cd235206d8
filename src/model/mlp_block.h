// MlpBlock: hidden += down(silu(gate(norm(hidden))) * up(norm(hidden))), of a layer without
// experts. Defined while the registry is building; step() only enqueues.
#pragma once

#include "model/slots.h"
#include "model/step.h"

namespace holdfast::model {

// Working memory that all such layers share.
struct MlpScratch {
  storage::SlotId gate_up;  // f32 [n, 2 I]
  storage::SlotId inner;    // f32 [n, I]
};
Result<MlpScratch> define_mlp_scratch(storage::Registry& registry,
                                      const config::ModelConfig& config, std::int64_t rows);

class MlpBlock {
 public:
  static Result<MlpBlock> define(storage::Registry& registry, const config::ModelConfig& config,
                                 std::int64_t layer, const MlpScratch& scratch);
  Status step(const Step& step) const;

 private:
  std::int64_t layer_ = 0;
  MlpScratch scratch_;
  storage::SlotId norm_;
  LinearSlots gate_up_, down_;
};

}  // namespace holdfast::model
