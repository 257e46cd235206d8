// StepBatch: the rows of one step, as the scheduler's choice spelled out for the decoder. A value,
// reused from step to step.
#pragma once

#include <cstdint>
#include <vector>

namespace holdfast::engine {

struct StepRow {
  std::int32_t token = 0;
  std::int32_t position = 0;
  std::int32_t sequence = 0;  // row of the block tables
  std::int32_t kv_slot = 0;   // page * page_size + offset
  bool wants_logits = false;
  float temperature = 0;  // of the token that ops::choose takes from those logits
  double draw = 0;
};

struct StepBatch {
  std::vector<StepRow> rows;
  void clear() { rows.clear(); }
};

}  // namespace holdfast::engine
