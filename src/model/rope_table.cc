#include "model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace holdfast::model {

namespace {

// The pair index at which a full turn takes `rotations`-th part of the original context.
double correction_index(const config::RopeConfig& config, std::int64_t head_dim, double rotations) {
  const double original = static_cast<double>(config.original_max_positions);
  return static_cast<double>(head_dim) *
         std::log(original / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(config.theta));
}

// How much of pair `index` is interpolated: 0 below the correction range, 1 above it.
struct Ramp {
  double low = 0;
  double high = 1;
  double at(std::int64_t index) const {
    return std::clamp((static_cast<double>(index) - low) / (high - low), 0.0, 1.0);
  }
};

Ramp correction_ramp(const config::RopeConfig& config, std::int64_t head_dim) {
  double low = correction_index(config, head_dim, config.beta_fast);
  double high = correction_index(config, head_dim, config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  // An empty range would divide by zero.
  if (high <= low) high = low + 0.001;
  return Ramp{.low = low, .high = high};
}

}  // namespace

std::vector<float> rope_inverse_frequencies(const config::RopeConfig& config,
                                            std::int64_t head_dim) {
  const std::int64_t pairs = head_dim / 2;
  const bool scaled = config.factor != 1.0;
  const Ramp ramp = scaled ? correction_ramp(config, head_dim) : Ramp{};
  std::vector<float> result(static_cast<std::size_t>(pairs));
  for (std::int64_t i = 0; i < pairs; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
    const double extrapolated = std::pow(config.theta, -exponent);
    const double blend = scaled ? ramp.at(i) : 0.0;
    result[static_cast<std::size_t>(i)] = static_cast<float>(
        extrapolated / config.factor * blend + extrapolated * (1.0 - blend));
  }
  return result;
}

float rope_concentration(const config::RopeConfig& config) {
  return config.factor <= 1.0 ? 1.0f : static_cast<float>(0.1 * std::log(config.factor) + 1.0);
}

RopeTables make_rope_tables(const config::RopeConfig& config, std::int64_t head_dim,
                            std::int64_t positions) {
  const std::vector<float> frequencies = rope_inverse_frequencies(config, head_dim);
  const float concentration = rope_concentration(config);
  RopeTables tables;
  tables.cos.reserve(frequencies.size() * static_cast<std::size_t>(positions));
  tables.sin.reserve(frequencies.size() * static_cast<std::size_t>(positions));
  for (std::int64_t position = 0; position < positions; ++position) {
    for (const float frequency : frequencies) {
      // The angle is rounded to float32 as in the models' own code: at large positions that decides
      // more than the cosine's own rounding.
      const float angle = static_cast<float>(position) * frequency;
      const double exact = static_cast<double>(angle);
      tables.cos.push_back(static_cast<float>(std::cos(exact)) * concentration);
      tables.sin.push_back(static_cast<float>(std::sin(exact)) * concentration);
    }
  }
  return tables;
}

}  // namespace holdfast::model
