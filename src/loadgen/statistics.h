// Statistics of measured times: what the tables and vLLM's result keys are made of. Pure functions;
// any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace holdfast::loadgen {

// The value below which `percent` of the values lie, linear between the two nearest; `sorted`
// rises. 0 for no values. `percent` in [0, 100]. (numpy's default, which vLLM's results use.)
double percentile(std::span<const double> sorted, double percent);

struct Summary {
  std::size_t count = 0;
  double mean = 0, median = 0, deviation = 0, least = 0, most = 0;  // deviation: of the population
  std::vector<double> percentiles;  // in the order that was asked for
};
// All zero for no values.
Summary summarise(std::vector<double> values, std::span<const double> percents);

// "p99", "p99.9".
std::string percentile_name(double percent);

}  // namespace holdfast::loadgen
