#include <algorithm>
#include <numeric>
#include <utility>

#include "checkpoint/checkpoint.h"

namespace holdfast::checkpoint {
namespace {

// Levenshtein distance, or `limit` when it is not below it. Two rows of the usual table.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t gap = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (gap >= limit) return limit;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    std::size_t best = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      best = std::min(best, row[j]);
    }
    if (best >= limit) return limit;
  }
  return std::min(row.back(), limit);
}

}  // namespace

std::vector<std::string> nearest_names(std::string_view name,
                                       const std::vector<std::string>& known, std::size_t count) {
  const std::string_view cut = name.substr(0, kMaxTensorNameBytes);
  std::vector<std::pair<std::size_t, std::string_view>> best;  // ascending, at most `count`
  for (const std::string& candidate : known) {
    if (count == 0) break;
    // One above the worst kept, so that equal distances still compare by name.
    const std::size_t limit =
        best.size() < count ? kMaxTensorNameBytes + 1 : best.back().first + 1;
    const std::string_view other = std::string_view(candidate).substr(0, kMaxTensorNameBytes);
    const std::pair entry(edit_distance(cut, other, limit), std::string_view(candidate));
    if (best.size() == count) {
      if (entry >= best.back()) continue;
      best.pop_back();
    }
    best.insert(std::upper_bound(best.begin(), best.end(), entry), entry);
  }
  std::vector<std::string> names;
  for (const auto& [distance, candidate] : best) names.emplace_back(candidate);
  return names;
}

}  // namespace holdfast::checkpoint
