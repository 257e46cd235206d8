#include "loadgen/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace holdfast::loadgen {

double percentile(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double share = std::clamp(percent, 0.0, 100.0) / 100;
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

Summary summarise(std::vector<double> values, std::span<const double> percents) {
  Summary out;
  out.count = values.size();
  std::sort(values.begin(), values.end());
  for (const double percent : percents) out.percentiles.push_back(percentile(values, percent));
  if (values.empty()) return out;
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  out.mean = sum / count;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  out.deviation = std::sqrt(squares / count);
  out.median = percentile(values, 50);
  out.least = values.front();
  out.most = values.back();
  return out;
}

std::string percentile_name(double percent) { return fmt::format("p{}", percent); }

}  // namespace holdfast::loadgen
