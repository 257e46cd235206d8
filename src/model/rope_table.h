// Rope tables: the cosines and sines that a model's rotary embedding needs, with YaRN scaling
// (semantics.md 4.4; Peng et al. 2023, arXiv:2309.00071). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "config/model_config.h"

namespace holdfast::model {

// One angle per position for each pair of elements: head_dim / 2 values. `config.factor` 1 gives
// theta^(-2i / head_dim).
std::vector<float> rope_inverse_frequencies(const config::RopeConfig& config,
                                            std::int64_t head_dim);
// What YaRN multiplies cosines and sines with: 0.1 ln(factor) + 1; 1 when there is no scaling.
float rope_concentration(const config::RopeConfig& config);

// Row-major [positions, head_dim / 2], the concentration included.
struct RopeTables {
  std::vector<float> cos, sin;
};
RopeTables make_rope_tables(const config::RopeConfig& config, std::int64_t head_dim,
                            std::int64_t positions);

}  // namespace holdfast::model
