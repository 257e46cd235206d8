// QuantizePlan: what becomes of each tensor of a checkpoint whose experts are quantised. A value;
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "config/expert_quantizer.h"
#include "config/expert_tensors.h"
#include "holdfast/result.h"

namespace holdfast::checkpoint {

struct QuantizePlan {
  config::ModelConfig source;  // its expert format with the dtype that the files have
  config::ModelConfig target;
  std::vector<config::ExpertTensor> source_tensors, target_tensors;  // of one layer's experts
  std::vector<ExpectedTensor> tensors;                               // of the new checkpoint
  std::unordered_set<std::string> made;  // those of `tensors` that are not copied
  std::vector<std::int64_t> layers;      // that have experts
  std::string config_json;
  std::uint64_t expert_bytes = 0;   // of the matrices that are quantised, in the source
  std::uint64_t matrix_bytes = 0;   // the most that one matrix takes: read, quantised, in between
};

// `source_json` is the source's config.json. Of the source no tensor may be missing or unknown, and
// all shapes must be the config's; dtypes may be f32, f16 or bf16, the same for all experts.
// Errors: kMismatch naming what is not so; those of config::quantized_format; kUnsupported for a
// config.json that no quantization_config can be added to.
Result<QuantizePlan> plan_quantize(const Checkpoint& source, const std::string& source_json,
                                   const config::QuantizeTarget& target);

// `name` for all experts: where expert `expert` has it, and the byte offset of its part.
struct ExpertPart {
  std::string tensor;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};
ExpertPart expert_part(const config::ModelConfig& config, const config::ExpertTensor& tensor,
                       std::int64_t layer, std::int64_t expert);

}  // namespace holdfast::checkpoint
