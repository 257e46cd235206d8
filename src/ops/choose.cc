// choose's arithmetic on the host, as choose_math.h has it.
#include <algorithm>
#include <array>
#include <cmath>

#include "ops/choose_math.h"

namespace holdfast::ops {
namespace {

struct Best {
  std::int32_t id = 0;
  std::int32_t broken = -1;
};
Best find_best(const ChooseRow& row) {
  Best best;
  for (std::int64_t i = 0; i < row.vocab; ++i) {
    if (!std::isfinite(row.logits[i])) {
      best.broken = static_cast<std::int32_t>(i);
      return best;
    }
    if (row.logits[i] > row.logits[best.id]) best.id = static_cast<std::int32_t>(i);
  }
  return best;
}

struct Weights {
  const ChooseRow& row;
  float largest;
  double temperature;

  double leaf(std::int64_t begin) const {
    double sum = 0.0;
    const std::int64_t end = std::min(row.vocab, begin + kChooseLeaf);
    for (std::int64_t i = begin; i < end; ++i) {
      sum += choose_weight(row.logits[i], largest, temperature);
    }
    return sum;
  }
  double chunk(std::int64_t begin) const {
    double sum = 0.0;
    for (std::int64_t run = 0; run < kChooseLeaves; run += kChooseRun) {
      std::array<double, kChooseRun> leaves;
      for (std::int64_t i = 0; i < kChooseRun; ++i) {
        leaves[static_cast<std::size_t>(i)] = leaf(begin + (run + i) * kChooseLeaf);
      }
      for (std::size_t distance = kChooseRun / 2; distance > 0; distance /= 2) {
        for (std::size_t i = 0; i < distance; ++i) leaves[i] += leaves[i + distance];
      }
      sum += leaves[0];
    }
    return sum;
  }
  double all() const {
    double sum = 0.0;
    for (std::int64_t begin = 0; begin < row.vocab; begin += kChooseChunk) sum += chunk(begin);
    return sum;
  }
};

std::int32_t draw(const Weights& weights) {
  const ChooseRow& row = weights.row;
  const double target = row.draw * weights.all();
  double reached = 0.0;
  std::int64_t begin = 0;
  for (; begin + kChooseChunk < row.vocab; begin += kChooseChunk) {
    const double next = reached + weights.chunk(begin);
    if (next > target) break;
    reached = next;
  }
  const std::int64_t end = std::min(row.vocab, begin + kChooseChunk);
  for (std::int64_t leaf = begin; leaf < end; leaf += kChooseLeaf) {
    double inside = reached;
    for (std::int64_t i = leaf; i < std::min(end, leaf + kChooseLeaf); ++i) {
      inside += choose_weight(row.logits[i], weights.largest, weights.temperature);
      if (inside > target) return static_cast<std::int32_t>(i);
    }
    reached += weights.leaf(leaf);
  }
  return static_cast<std::int32_t>(end - 1);  // rounding has left none
}

}  // namespace

Choice choose_row(const ChooseRow& row) {
  const Best best = find_best(row);
  Choice choice{.id = best.id, .broken = best.broken};
  if (best.broken >= 0) {
    choice.logit = row.logits[best.broken];
    return choice;
  }
  choice.largest = row.logits[best.id];
  choice.total = choose_total(row, choice.largest);
  if (row.temperature > 0) {
    choice.id = draw({row, choice.largest, static_cast<double>(row.temperature)});
  }
  choice.logit = row.logits[choice.id];
  return choice;
}

double choose_total(const ChooseRow& row, float largest) {
  return Weights{row, largest, 1.0}.all();
}

}  // namespace holdfast::ops
